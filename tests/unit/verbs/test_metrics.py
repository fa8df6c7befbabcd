"""Figures about a tree."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.metrics import NO_STEP
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.verbs.metrics import measure, number_of
from tests.support.histories import saved, value
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree

HOSTS = Topology(("host",), (("a", "b", "c", "d"),), "a hostfile")


def test_what_a_loss_costs_is_that_of_the_newest_step_also_where_the_plan_is_to_be_clean(tmp_path):
    root = make_tree(tmp_path, data_parallel=4, model_parallel=1, steps=(Step(1, 8), Step(2, 8)))
    differing = root / "ckpt_dir1" / "test-2_8.ckpt"
    differing.chmod(0o600)
    differing.write_bytes(differing.read_bytes()[:-4] + b"else")
    save_manifests(root)
    for rank in (1, 2, 3):
        (root / f"ckpt_dir{rank}" / "test-1_8.ckpt").unlink()
    made = [measure(api.scan(root), PlanOptions(clean=clean), topology=HOSTS) for clean in (False, True)]
    assert [(figures.recoverable_step, figures.host_losses) for figures in made] == [(16, 1), (8, 1)]


def _slice(step, cumulative=None, run="run", epoch_steps=None):
    file = saved(0, step, value, run=run, training=TrainingRecord(started=1, epoch_steps=epoch_steps))
    return replace(file, manifest=replace(file.manifest, cumulative_step=cumulative))


@pytest.mark.parametrize(
    ("slices", "number"),
    [
        ([_slice(Step(2, 3))], 6),
        ([_slice(Step(2, 3)), _slice(Step(1, 5))], 8),
        ([_slice(Step(2, 3), epoch_steps=10), _slice(Step(1, 5), epoch_steps=7)], 13),
        ([_slice(Step(1, 5), 70), _slice(Step(2, 3), 80)], 80),
        ([_slice(Step(2, 3), 70, run="other"), _slice(Step(2, 3), 80)], 80),
        ([_slice(Step(2, 3), 70), _slice(Step(2, 3), 80, run="other")], 70),
        ([_slice(Step(2, 3), 70, run="other")], 70),
        ([_slice(Step(2, 3), epoch_steps=5, run="other"), _slice(Step(2, 3), epoch_steps=10)], 13),
        ([_slice(Step(2, 3), epoch_steps=2)], 6),
        ([slice_file(0, Step(2, 3)), slice_file(0, Step(1, 4))], 7),
        ([], 6),
    ],
)
def test_a_step_has_the_number_of_steps_that_were_trained(slices, number):
    assert number_of(tree(slices, {0: [0]}), Step(2, 3), "run") == number


def test_an_iteration_is_its_number():
    slices = [_slice(Step.iteration(7), 70, epoch_steps=5), _slice(Step.iteration(9), 90)]
    assert number_of(tree(slices, {0: [0]}), Step.iteration(7), "run") == 7


@pytest.mark.parametrize(
    ("lost", "recoverable"), [((), 16), ((0,), 16), ((0, 2), 8), ((0, 1, 2), 8), ((0, 2, "older"), NO_STEP)]
)
def test_slices_are_counted_at_the_newest_step_whether_or_not_it_can_be_recovered(lost, recoverable):
    """Ranks 0 and 2 hold the same, and 1 and 3; ``older`` takes both from the older step, too."""
    gone = {(rank, STEP) for rank in lost} | ({(0, OLDER), (2, OLDER)} if "older" in lost else set())
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP) if (rank, step) not in gone]
    figures = measure(tree(slices, pairs(4)), topology=HOSTS)
    missing = sum(rank != "older" for rank in lost)
    counts = {state: count for state, count in figures.slices if count}
    assert counts == {state: count for state, count in (("ok", 4 - missing), ("missing", missing)) if count}
    assert (figures.newest_step, figures.recoverable_step) == (16, recoverable)
    assert (figures.host_losses is None) == (recoverable == NO_STEP)
    assert measure(tree(slices, pairs(4))).host_losses is None
