"""Pages from templates: what is put in stays text, and the policy names what is in the page."""

import base64
import hashlib
import json
import re
import sys
from html.parser import HTMLParser

import pytest
from jinja2 import UndefinedError

from ms_recover.reporting.page.templates import json_block, render_page


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Make a package with a template, a style and a script."""
    folder = tmp_path / "small_page"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "small.html").write_text(
        '{% extends "base.html" %}{% block title %}{{ name }}{% endblock %}'
        '{% block body %}<p id="name" title="{{ name }}">{{ name }}</p>{% endblock %}'
    )
    (folder / "small.css").write_text("p > b { color: red }\n")
    (folder / "small.js").write_text('"use strict"; if (1 < 2 && 3 > 2) document.title = "é";\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "small_page"
    sys.modules.pop("small_page", None)


class Tags(HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.tags, self.texts, self.attributes = [], [], {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes.setdefault(tag, []).append(dict(attrs))

    def handle_data(self, data):
        self.texts.append(data)


HOSTILE = ["<img src=x onerror=alert(1)>", "</script><script>alert(1)</script>", "<!--", "\"' onclick=x ", "{{ name }}"]


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_put_in_stays_text(package, name):
    found = Tags(render_page(package, "small.html", name=name))
    assert found.tags == ["html", "head", *["meta"] * 5, "title", "style", "body", "p"]
    assert found.attributes["p"] == [{"id": "name", "title": name}]
    assert found.texts.count(name) == 2


@pytest.mark.parametrize(
    ("name", "shown"), [("a\u202eb", "a\\u202eb"), ("\udcff", "\\xff"), ("a\nb", "a\\nb"), ("\x1b[0m", "\\x1b[0m")]
)
def test_what_acts_on_a_page_is_shown_as_an_escape(package, name, shown):
    page = render_page(package, "small.html", name=name)
    page.encode()
    assert shown in Tags(page).texts


def test_the_policy_has_the_digest_of_each_style_and_script_and_allows_nothing_else(package):
    page = render_page(package, "small.html", styles=("small.css",), scripts=("small.js",), name="x")
    [policy] = [meta["content"] for meta in Tags(page).attributes["meta"] if "http-equiv" in meta]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == rules.pop("base-uri") == rules.pop("form-action") == "'none'"
    for kind, element in (("style-src", "style"), ("script-src", "script")):
        [text] = re.findall(rf"<{element}>(.*?)</{element}>", page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(kind) == f"'sha256-{digest}'"
    assert rules == {}


def test_a_name_that_nobody_gives_is_an_error(package):
    with pytest.raises(UndefinedError, match="name"):
        render_page(package, "small.html")


@pytest.mark.parametrize("text", [*HOSTILE, "]]>", "&lt;", "\udcff", "\u2028", "\0"])
def test_no_text_ends_the_block_of_data(text):
    block = json_block({text: [text]})
    assert block.isascii()
    assert not set(block) & set("<>&")
    assert json.loads(block) == {text: [text]}


def test_data_that_is_no_json_is_an_error():
    with pytest.raises(ValueError, match="JSON"):
        json_block([float("nan")])
