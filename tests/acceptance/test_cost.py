"""Point 14: the cost is linear, shown by counting and not by a clock; benchmarks/bench_scale.py measures seconds."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.acceptance import ENTRY, Tree

HEAVY = ("numpy", "google", "msgspec", "cattrs", "rich", "fsspec", "mindspore", "xxhash", "ms_recover.model")

COUNT = f"""
import sys
from {ENTRY[0]} import {ENTRY[1]} as main
warm, words = sys.argv[1], sys.argv[2:]
main([words[0], warm, "--json"])
calls = 0
def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(count)
code = main(words)
sys.setprofile(None)
print("COUNTED", calls, code, file=sys.stderr)
"""

LOADED = f"""
import sys
from {ENTRY[0]} import {ENTRY[1]} as main
code = main(sys.argv[1:])
print("LOADED", *sorted(name for name in sys.modules if name.startswith({HEAVY!r})), code, file=sys.stderr)
"""


def last_words(mark, code, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False
    )
    assert mark in done.stderr, done.stderr
    return done.stderr.rpartition(mark)[2].split()


def calls_of(command, small, tree, *options):
    """Count the calls that a command makes over a tree, imports aside, in its main thread."""
    calls, code = last_words("COUNTED", COUNT, small, command, tree.root, *options, "--json")
    assert code == "0"
    return int(calls)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two trees of one training, one with four times the replicas of the other, and a small one to begin with."""

    def make(**options):
        folder = tmp_path_factory.mktemp("cost")
        warm = Tree(folder / "warm").save()
        return warm.root, *(Tree(folder / str(dp), dp=dp, mp=2, **options).save() for dp in (16, 64))

    return make


@pytest.mark.parametrize("layouts", [False, True])
@pytest.mark.parametrize("command", ["plan", "seal", "verify"])
def test_14_contents_without_manifests_are_judged_in_linear_time(command, layouts, pair):
    warm, small, large = pair(strategies=layouts)
    assert calls_of(command, warm, large) < 6 * calls_of(command, warm, small)


@pytest.mark.parametrize("lost", ["a node", "all of a group but one"])
def test_14_a_plan_by_headers_is_linear_in_ranks(lost, pair):
    warm, *trees = pair()
    counted = []
    for tree in trees:
        gone = range(2) if lost == "a node" else tree.group(0)[1:]
        counted.append(calls_of("plan", warm, tree, "--quick", "--lost", ",".join(map(str, gone))))
    assert counted[1] < 6 * counted[0]


def test_14_several_steps_without_manifests_are_judged_in_linear_time(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cost")
    warm = Tree(folder / "warm").save()
    trees = [Tree(folder / str(dp), dp=dp, mp=1).save("1_77", "2_77", "3_77") for dp in (16, 64)]
    small, large = (calls_of("plan", warm.root, tree) for tree in trees)
    assert large < 6 * small


@pytest.mark.parametrize("name", ["swap-{}.tmp", "core.{}.tmp", ".download{}.tmp", "worker_{}-graph.meta"])
def test_14_leftovers_of_other_programs_are_folded_into_one_note(name, tree_of, recover_ckpt):
    tree = tree_of().save()
    for number in range(400):
        (tree.folder(1) / name.format(number)).touch()
    plan = recover_ckpt("plan", tree.root, "--json")
    assert plan.code == 0, plan
    notes = [note for note in plan.json["notes"] if note["path"].startswith("ckpt_dir1")]
    assert len(notes) == 1
    assert "397" in str(notes)  # three named, and 397 more
    assert len(recover_ckpt("scan", tree.root).out.splitlines()) < 40


def test_14_leftovers_in_two_directories_are_two_notes(tree_of, recover_ckpt):
    tree = tree_of().save()
    for rank in (0, 3):
        for number in range(50):
            (tree.folder(rank) / f"swap-{number}.tmp").touch()
    notes = recover_ckpt("plan", tree.root, "--json").json["notes"]
    assert sorted(note["path"].split("/")[0] for note in notes) == ["ckpt_dir0", "ckpt_dir3"]


def test_14_help_loads_neither_nouns_nor_libraries():
    assert last_words("LOADED", LOADED, "--help") == ["0"]


@pytest.mark.parametrize("command", ["plan", "apply", "verify", "seal", "scan", "inspect", "complete"])
def test_14_help_of_a_command_loads_no_library(command):
    *loaded, code = last_words("LOADED", LOADED, command, "--help")
    assert code == "0"
    assert [name for name in loaded if not name.startswith("ms_recover.model")] == []
