"""Parameters that manifests call rank-local differ between replicas, and are named where a rank loses its own."""

from dataclasses import replace

import pytest

from ms_recover.model.manifest import Digests, TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.rank_local import RESUME_CHOICE
from ms_recover.planning.choice import assess_step
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.supply.lent_values import lost_values, why_not_shown
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from ms_recover.reporting.plan_text import plan_text
from tests.support.inventories import STEP, slice_file, tree
from tests.support.plans import make_plan
from tests.unit.planning.test_contents import backed

NAMES = ("weight", "bank", "bn.moving_mean", "step")
BOTH = {0: [0, 1], 1: [0, 1]}


def saved(rank, bank=None, rank_local=("bank",), mean="same", **changes):
    """Return a slice of two data-parallel ranks with its own bank, as its manifest states it."""
    file = slice_file(rank, names=NAMES)
    values = ("w", bank or f"bank:{rank}", mean, "s")
    digests = Digests(f"file:{values}", values)
    record = TrainingRecord(1, rank_local=rank_local)
    made = backed(file, "a", pairs=True, world_size=2, group=(0, 1), digests=digests, training=record)
    return replace(made, manifest=replace(made.manifest, **changes))


def planned(*slices, **options):
    return make_plan(tree(slices, BOTH), PlanOptions(**options))


def test_own_memory_banks_are_no_disagreement():
    plan = planned(saved(0), saved(1))
    assert [rank.verdict for rank in plan.ranks] == ["keep", "keep"]
    assert (plan.disagreements, plan.warnings) == ((), ())


def test_without_the_record_they_are():
    assert planned(saved(0, rank_local=()), saved(1, rank_local=())).disagreements
    unproven = backed(slice_file(0), "a", origin="sealed by structure").manifest.provenance
    assert planned(saved(0, provenance=unproven), saved(1, provenance=unproven)).disagreements


def test_a_weight_that_differs_is_still_a_disagreement():
    other = saved(1, digests=Digests("file:1", ("x", "bank:1", "same", "s")))
    assert planned(saved(0), other).disagreements


def test_a_lost_rank_gets_the_other_ranks_values_and_it_is_said():
    plan = planned(saved(0))
    (action,) = plan.actions
    assert (action.rank, action.borrowed) == (1, ("bank",))
    lost = "rank-local, lost: bank; the values are those of rank 0"
    assert lost in plan.ranks[1].reason
    assert plan.warnings == (f"rank 1: {lost}", RESUME_CHOICE)
    assert f"WARNING: {RESUME_CHOICE}" in plan_text(plan, None)


def test_batch_statistics_are_named_and_ask_for_no_choice():
    names = ("bn.moving_mean",)
    plan = planned(saved(0, bank="one", rank_local=names, mean="0"))
    assert plan.actions[0].borrowed == names
    assert plan.warnings == ("rank 1: batch statistics of rank 0: bn.moving_mean",)


def test_what_a_recovered_slice_has_of_others_stays_named():
    copied = backed(slice_file(1), "a", origin="recovered from rank 0 (ckpt_dir0/test-2_8.ckpt), by manifest")
    provenance = replace(copied.manifest.provenance, borrowed=("bank",))
    plan = planned(saved(0), saved(1, bank="bank:0", provenance=provenance))
    assert [rank.verdict for rank in plan.ranks] == ["keep", "keep"]
    assert plan.warnings == (
        "rank 1: rank-local, lost: bank; the values are those of rank 0",
        RESUME_CHOICE,
    )


def listing(one, parameters, values):
    """Return a slice with other parameters, whose manifest says so."""
    digests = Digests(f"file:{values}", tuple(values))
    return replace(one, parameters=parameters, manifest=replace(one.manifest, parameters=parameters, digests=digests))


def test_own_values_may_have_another_shape_or_be_missing():
    one, other = saved(0), saved(1)
    weight, bank, mean, step = other.parameters
    longer = listing(other, (weight, replace(bank, shape=(5,)), mean, step), ("w", "own", "same", "s"))
    without = listing(other, (weight, mean, step), ("w", "same", "s"))
    at_the_end = listing(one, (weight, mean, step, bank), ("w", "same", "s", "own"))
    for first, second in ((one, longer), (one, without), (at_the_end, without)):
        plan = planned(first, second)
        assert [rank.verdict for rank in plan.ranks] == ["keep", "keep"]
        assert plan.disagreements == ()
    odd = listing(other, (replace(weight, shape=(5,)), bank, mean, step), ("w", "own", "same", "s"))
    assert planned(one, odd).disagreements


@pytest.mark.parametrize(
    ("slices", "options", "lost"),
    [
        ([saved(0)], {}, ("bank",)),
        ([saved(0), saved(1)], {}, ()),
        ([saved(0)], {"tolerate": ("ba*",)}, ()),
        ([saved(0, rank_local=("bn.moving_mean",))], {}, ()),
    ],
    ids=["lost", "has its own", "tolerated", "statistics"],
)
def test_the_values_that_a_resume_must_ask_about(slices, options, lost):
    compared = compare_slices(gather_facts(tree(slices, BOTH), PlanOptions(**options)))
    assert lost_values(compared.facts, assess_step(compared, STEP, runs_of(compared.facts, STEP)[0]), 1) == lost


def test_ranks_that_differ_in_every_parameter_are_no_replicas():
    everything = ("weight", "bank", "bn.moving_mean", "step")
    plan = planned(saved(0, rank_local=everything))
    assert not plan.recoverable
    assert "each rank has its own values of every parameter" in plan.ranks[1].reason


@pytest.mark.parametrize(
    ("slices", "rank", "shown"),
    [
        ([saved(0)], 1, True),
        ([saved(0, rank_local=())], 1, False),
        ([saved(0, rank_local=())], 0, True),
    ],
    ids=["its own are named", "nothing says it", "it has its slice"],
)
def test_values_of_another_rank_are_shown_to_be_right_by_a_comparison_alone(slices, rank, shown):
    compared = compare_slices(gather_facts(tree(slices, BOTH)))
    assessment = assess_step(compared, STEP, runs_of(compared.facts, STEP)[0])
    assert (why_not_shown(compared.facts, assessment, rank) is None) == shown
