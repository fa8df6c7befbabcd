"""Where a rank loses the values that it alone has, the ranks go back, stop, or do what was chosen."""

import logging
import shutil
from dataclasses import replace

import pytest

from ms_recover.errors import UnrecoverableError
from ms_recover.execution.manifests import write_manifest
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.training.deciding.agreement import agree
from ms_recover.training.own_steps import OwnSteps
from ms_recover.training.search import Search
from ms_recover.training.tree_view import see_trees
from tests.support.ranks import on_all, thread_jobs

OLD, NEW = Step(1, 8), Step(2, 8)
OWN = ("queue",)


@pytest.fixture
def tree(tmp_path):
    """Two steps of two data-parallel ranks, each with its own queue, as their manifests state."""
    root = make_tree(tmp_path, model_parallel=1, steps=(OLD, NEW), parameters={"weight": 48, "queue": 8})
    for path in root.glob("ckpt_dir1/*.ckpt"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.chmod(0o600)
        path.write_bytes(data)
    save_manifests(root)
    for path in root.glob("ckpt_dir*/*.ckpt"):
        manifest = read_manifest(f"{path}{MANIFEST_SUFFIX}")
        write_manifest(str(path), replace(manifest, training=TrainingRecord(1, rank_local=OWN)))
    return root


def lose(tree, *steps):
    for step in steps:
        for path in (tree / "ckpt_dir1").glob(f"*-{step}.*"):
            path.unlink()


def resumed(tree, rank_local="refuse", **options):
    """Return the step, and by rank what each lost; or what each raised."""
    jobs = thread_jobs(2)

    def work(rank):
        search = Search(str(tree), ScanOptions(), PlanOptions(world_size=2, **options), "refuse", rank_local)
        steps = OwnSteps.judged(rank, search, see_trees(search.root, search.scanning, None).place, ())
        step = agree(jobs[rank], steps).obtained.step
        return step, steps.steps.lost_values(step)

    found = on_all(2, work)
    if any(isinstance(one, Exception) for one in found):
        return None, found
    (step,) = {step for step, _ in found}
    return step, [lost for _, lost in found]


def test_own_slices_are_resumed_from(tree, caplog):
    assert resumed(tree) == (NEW, [(), ()])
    assert caplog.text == ""


def test_all_go_back_to_the_step_at_which_each_has_its_own(tree, caplog):
    lose(tree, NEW)
    assert resumed(tree) == (OLD, [(), ()])
    assert "rank 1, step 2_8: rank-local, lost: the own values of rank 1 in queue" in caplog.text
    assert not (tree / "ckpt_dir1" / f"test-{NEW}.ckpt").exists()


def test_without_such_a_step_all_stop_and_the_choice_is_stated(tree):
    lose(tree, OLD, NEW)
    _, errors = resumed(tree)
    assert all(isinstance(error, UnrecoverableError) for error in errors)
    assert "rank-local, lost: the own values of rank 1 in queue" in str(errors[1])
    assert "rank_local='peer'" in str(errors[1])
    assert "'initial'" in str(errors[1])


def test_the_refusal_is_one_line_with_the_reason_on_each_rank(tree, caplog):
    lose(tree, OLD, NEW)
    _, errors = resumed(tree)
    reason = "rank 1 lacks step 2_8, 1_8: rank-local, lost: the own values of rank 1 in queue"
    assert all(str(error).count(reason) == 1 for error in errors)
    said = [one for one in caplog.records if "rank-local, lost: the own values" in one.getMessage()]
    assert [one.levelname for one in said if one.levelno >= logging.WARNING] == ["WARNING"]


@pytest.mark.parametrize("choice", ["peer", "initial"])
def test_the_choice_makes_the_newest_step_available(tree, caplog, choice):
    lose(tree, OLD, NEW)
    assert resumed(tree, choice) == (NEW, [(), OWN])
    assert "rank-local, lost: queue; the values are those of rank 0" in caplog.text
    assert ("queue are left as the network begins with them" in caplog.text) == (choice == "initial")


@pytest.mark.parametrize("choice", ["peer", "initial", "refuse"])
def test_a_slice_that_was_recovered_earlier_asks_for_the_choice_again(tree, caplog, choice):
    lose(tree, NEW)
    assert resumed(tree, "peer") == (NEW, [(), OWN])
    caplog.clear()
    assert resumed(tree, choice) == ((OLD, [(), ()]) if choice == "refuse" else (NEW, [(), OWN]))
    assert "rank-local, lost" in caplog.text


def test_parameters_that_may_differ_by_the_callers_word_are_taken_from_the_other_rank(tree, caplog):
    shutil.rmtree(tree / "ckpt_dir1")
    assert resumed(tree, tolerate=("que*",)) == (NEW, [(), ()])
    assert "the values are those of rank 0" in caplog.text


@pytest.fixture
def unrecorded(tree):
    """The same, with manifests that record nothing about it, as `SliceManifests` writes them."""
    for path in tree.glob("ckpt_dir*/*.ckpt"):
        manifest = read_manifest(f"{path}{MANIFEST_SUFFIX}")
        write_manifest(str(path), replace(manifest, training=TrainingRecord(1)))
    return tree


def test_what_older_steps_show_is_refused_as_if_it_were_recorded(unrecorded, caplog):
    lose(unrecorded, NEW)
    assert resumed(unrecorded) == (OLD, [(), ()])
    assert "rank 1, step 2_8: rank-local, lost: the own values of rank 1 in queue" in caplog.text


@pytest.mark.parametrize("choice", ["peer", "initial"])
def test_the_choice_holds_for_what_older_steps_show(unrecorded, choice):
    lose(unrecorded, NEW)
    assert resumed(unrecorded, choice) == (NEW, [(), OWN])
    copied = read_manifest(f"{unrecorded}/ckpt_dir1/test-{NEW}.ckpt{MANIFEST_SUFFIX}")
    assert copied.provenance.borrowed == OWN
    assert resumed(unrecorded, "refuse") == (OLD, [(), ()])
