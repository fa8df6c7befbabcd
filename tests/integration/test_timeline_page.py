"""The timeline of a splitter in a browser, and its trace events as their format documents them."""

import pytest

from ms_recover.splitting.timeline.page import write_timeline
from ms_recover.splitting.timeline.trace import write_trace
from tests.support.browser import open_browser
from tests.support.trace_events import faults_of_trace
from tests.unit.splitting.test_timeline import pipeline


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("timeline") / "timeline.html"
    write_timeline(path, *pipeline())
    return path


@pytest.mark.parametrize("dark", [False, True])
def test_the_timeline_works_under_its_policy_and_axe_finds_nothing_serious(browser, page, dark):
    opened = browser.open(page, dark=dark)
    assert opened.console() == []
    before = opened.run("return document.getElementById('plot').getBoundingClientRect().width")
    opened.run("document.querySelector('button[data-z=\"2\"]').click()")
    assert opened.run("return document.getElementById('plot').getBoundingClientRect().width") == 2 * before
    assert opened.run("return document.querySelectorAll('#ticks text').length") > 3
    opened.run("document.querySelector('tbody tr:last-child').click()")
    assert opened.run("return document.getElementById('scroll').scrollLeft") > 0
    assert opened.fault_finds() == []
    assert opened.console() == []


def test_trace_events_have_the_fields_that_their_format_documents(tmp_path):
    write_trace(tmp_path / "timeline.html", *pipeline())
    assert faults_of_trace((tmp_path / "timeline.trace.json").read_text()) == []
