"""Slips of an operator's hand: each is named in a word, changes nothing, and says what to do next."""

import json
import os
import re
import shutil
from contextlib import ExitStack

import pytest

from ms_recover.errors import FormatError, MsRecoverError, UnrecoverableError, UsageError
from ms_recover.model.steps import Step
from ms_recover.system_errors import from_os_error
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support import page_trees

USAGE = UsageError.exit_code


@pytest.fixture
def dead(tmp_path):
    with ExitStack() as stack:
        page_trees.dead_node(tmp_path / "tree", stack)
        yield tmp_path / "tree"


@pytest.fixture
def plan_file(dead, tmp_path, recover_ckpt):
    """Return a function that changes the plan of a tree and writes it."""
    recover_ckpt("plan", dead, "-o", tmp_path / "plan.json")
    made = json.loads((tmp_path / "plan.json").read_text())

    def write(**members):
        (tmp_path / "plan.json").write_text(json.dumps(made | members))
        return tmp_path / "plan.json"

    write.made = made
    return write


@pytest.mark.parametrize(
    ("end", "shown"), [("\0x", "root is '{root}\\x00x', which is no path"), ("\ud800", "a text has U+D800, half of")]
)
def test_a_plan_file_whose_root_is_no_path_is_refused(plan_file, recover_ckpt, end, shown):
    root = plan_file.made["root"]
    done = recover_ckpt("apply", plan_file(root=root + end))
    assert done.code == FormatError.exit_code
    assert shown.format(root=root) in done.err
    assert done.err.endswith(": plan again\n")


def test_a_plan_file_whose_root_is_empty_is_refused(plan_file, recover_ckpt):
    assert "which is no path" in recover_ckpt("apply", plan_file(root="")).err


def test_bytes_of_a_name_that_are_no_utf_8_stay_a_name(tmp_path, recover_ckpt):
    root = os.fsencode(tmp_path) + b"/\xff"
    make_tree(tmp_path / "made", steps=(Step(1, 8),))
    save_manifests(tmp_path / "made")
    os.rename(os.fsencode(tmp_path / "made"), root)
    shutil.rmtree(root + b"/ckpt_dir1")
    plan = tmp_path / "plan.json"
    assert recover_ckpt("plan", os.fsdecode(root), "-o", plan).code == 0
    assert recover_ckpt("apply", plan).code == 0


def test_names_in_failures_steer_no_terminal(dead, plan_file, recover_ckpt):
    actions = plan_file.made["actions"]
    actions[0]["target"] = "rank_0/a\x1b[31mred-1_200.ckpt"
    (dead / "rank_0" / "a\x1b[31mred-1_200.ckpt").mkdir(parents=True)
    done = recover_ckpt("apply", plan_file(actions=actions))
    assert done.code != 0
    assert "a\\x1b[31mred-1_200.ckpt is no file, and in the way of one" in done.err
    assert "\x1b" not in done.err + done.out


@pytest.mark.parametrize(
    ("name", "kind"), [("llama-1_200.ckpt", "a slice (.ckpt)"), ("group_info.pb", "a group_info.pb")]
)
def test_apply_says_what_a_file_is_that_is_no_plan(dead, recover_ckpt, name, kind):
    done = recover_ckpt("apply", dead / "rank_2" / name)
    assert done.code == USAGE
    assert f"rank_2/{name} is {kind}, and no plan: name the folder of the tree" in done.err


def test_no_command_speaks_of_1_ranks(tmp_path, recover_ckpt):
    root = make_tree(tmp_path / "tree", data_parallel=1, model_parallel=1, steps=(Step(1, 8),))
    page = tmp_path / "report.html"
    texts = []
    for turn in range(2):
        for words in (
            ("scan", root),
            ("plan", root),
            ("plan", root, "--world-size", 1),
            ("plan", root, "--lost", 0),
            ("verify", root),
            ("audit", root),
            ("audit", root, "--ranks-per-host", 1),
            ("history", root),
            ("apply", root),
            ("reshard", root, "--full", "-o", tmp_path / f"out{turn}"),
        ):
            done = recover_ckpt(*words)
            texts.append((words, done.out + done.err))
        assert recover_ckpt("report", root, "-o", page).code == 0
        drawn = page.read_text().partition("<body")[2].partition('<script type="application/json"')[0]
        texts.append((("report",), re.sub(r"<[^>]*>", " ", drawn)))
        save_manifests(root)
    for words, text in texts:
        assert re.findall(r"\b1 (?:ranks|slices|hosts|steps|files|parameters|manifests|lists)\b", text) == [], words
        assert re.findall(r"\branks [0-9]+(?![0-9,-]|\s*[,│])", text) == [], words


def test_partial_in_a_tree_of_one_step_goes_back_to_none(tmp_path, recover_ckpt):
    root = tmp_path / "tree"
    with ExitStack() as stack:
        page_trees.no_replica_left(root, stack)
    for path in root.glob("*/*-1_77.*"):
        path.unlink()
    done = recover_ckpt("apply", root, "--partial")
    assert done.code == UnrecoverableError.exit_code
    assert "PARTIAL: the surviving parameters of 2 slices of step 2_77 are written beside them" in done.out
    assert "going back" not in done.out
    assert "Newer steps" not in done.out


@pytest.mark.parametrize("verb", ["scan", "plan", "verify"])
def test_an_empty_pattern_is_warned_of_and_not_typed_again(dead, recover_ckpt, verb):
    done = recover_ckpt(verb, dead, "--pattern", "")
    assert done.err == "recover-ckpt: --pattern: the pattern is empty, so that the known layouts are looked for\n"
    assert done.out.replace("Read: ", "").split("\n")[1] == recover_ckpt(verb, dead).out.split("\n")[1]
    assert "--pattern" not in done.out


@pytest.mark.parametrize("pattern", ["*", "?*", "**"])
def test_tolerating_every_parameter_is_warned_of(dead, recover_ckpt, pattern):
    done = recover_ckpt("plan", dead, "--tolerate", pattern)
    assert done.code == 0
    assert f"--tolerate: every parameter matches '{pattern}', so that no contents are compared" in done.err
    assert recover_ckpt("plan", dead, "--tolerate", "bn.*").err == ""


def test_a_failing_device_is_named_with_the_next_step():
    error = from_os_error(OSError(5, "Input/output error"), "reading", "/tree/rank_0/a.ckpt")
    assert isinstance(error, MsRecoverError)
    assert "if it is this file alone, move it away, then apply" in str(error)
