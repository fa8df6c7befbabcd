"""What a report says to do next: each answer has its own, and none says what another one needs."""

import re
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from ms_recover.model.verdicts import Answer
from ms_recover.reporting.page.next_step import LOOKS, next_step
from ms_recover.reporting.plan_text import headline_lines
from tests.support.report_pages import SCENES, SHOWN, page_of, report_of

TITLES = {
    "COMPLETE": "start the training",
    "RECOVERABLE": "apply the plan",
    "BLOCKED": "clear the way",
    "UNCERTAIN": "say --world-size N",
    "UNDECIDED": "say who is right",
    "UNHEALTHY": "choose a step",
    "PERMISSION DENIED": "get permission",
    "UNRECOVERABLE": "find a source",
    "REFUSED": "bring the newest step back",
}


def test_every_answer_has_a_scene_a_look_and_a_next_step():
    assert set(get_args(Answer)) == set(SCENES) == set(LOOKS) == set(TITLES)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    with ExitStack() as stack:
        yield {answer: report_of(answer, tmp_path_factory.mktemp("tree") / "checkpoints", stack) for answer in SCENES}


@pytest.mark.parametrize("answer", get_args(Answer))
def test_each_answer_says_what_to_do(answer, reports):
    report = reports[answer]
    refused = SCENES[answer].require_newest
    assert refused or report.plan.answer == answer
    assert headline_lines(report.plan, refused)[0].startswith(answer)
    found = next_step(report, answer)
    assert found.title == TITLES[answer]
    assert bool(found.command) == (answer == "RECOVERABLE")
    text = " ".join(f"{line} {command}" for line, command in found.lines)
    assert ("Bring a lost host or disk back" in text) == (answer == "UNRECOVERABLE")
    assert ("--world-size N" in text) == (answer == "UNCERTAIN")
    assert ("--lost RANK" in text) == (answer == "UNDECIDED")


@pytest.mark.parametrize("answer", get_args(Answer))
def test_each_page_shows_it_once(answer, tmp_path):
    with ExitStack() as stack:
        page = page_of(answer, tmp_path / "checkpoints", stack)
    titles = re.findall(r'<p class="big">(.*?)</p>', page)
    assert titles[-1] == TITLES[answer]
    assert titles[0].startswith("nothing") or answer not in ("COMPLETE", "UNCERTAIN", "UNHEALTHY")
    assert "find a source" not in page or answer == "UNRECOVERABLE"


def test_small_files_of_a_complete_tree_are_work_too(reports):
    report = replace(reports["COMPLETE"], next_command="recover-ckpt apply /tree")
    assert next_step(report, "COMPLETE").title == "apply the plan"
    unsure = next_step(replace(reports["UNCERTAIN"], next_command="recover-ckpt apply /tree"), "UNCERTAIN")
    assert unsure.title == "say --world-size N"
    assert unsure.lines[-1][1] == "recover-ckpt apply /tree"


def test_a_guessed_world_is_said_before_its_plan_is_applied(reports):
    report = reports["RECOVERABLE"]
    guessed = replace(report, plan=replace(report.plan, world_size_guessed=True))
    assert next_step(guessed, "RECOVERABLE").lines[0][1].endswith("--world-size N")


def test_the_pictures_of_the_documentation_are_those_that_the_script_makes():
    docs = Path(__file__).parents[4] / "docs"
    names = {f"report-{answer.lower().replace(' ', '-')}-{look}.png" for answer, look in SHOWN}
    assert {path.name for path in docs.glob("report-*.png")} == names
    text = (docs / "report.md").read_text()
    assert all(f"]({name})" in text for name in names)
