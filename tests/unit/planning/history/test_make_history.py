"""Which replica differed first, and the last clean step."""

from dataclasses import replace

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.history import Disagreement
from ms_recover.model.manifest import RunStep, TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.steps import Step
from ms_recover.planning.history.make_history import why_not_clean, with_clean
from tests.support.histories import PAIRS, course, flip, history, inventory, orphan, saved, value
from tests.support.plans import make_plan

STEPS = [Step(1, number) for number in range(21)]


def test_replicas_that_agree_are_clean_at_the_newest_step():
    found = history(course())
    assert (found.clean, found.newest, found.disagreements) == (STEPS[20], STEPS[20], ())
    assert {one.state for one in found.steps} == {"clean"}
    assert len(found.steps) == 20
    assert found.ok
    assert found.stopped == ()
    assert found.frozen == ()


@pytest.mark.parametrize("since", [2, 7, 13, 20])
@pytest.mark.parametrize("rank", [0, 5])
def test_a_flip_in_a_norm_is_outvoted_by_the_tensor_parallel_ranks(since, rank):
    found = history(course(flip(rank, since, "norm")))
    (one,) = found.disagreements
    assert (one.parameter, one.first, one.last, one.outvoted) == ("norm", STEPS[since], STEPS[20], (rank,))
    assert (one.agreed_until, one.steps) == (STEPS[since - 1], 21 - since)
    assert len(one.sides[0]) == 7
    assert found.clean == STEPS[since - 1]
    assert [step.state for step in found.steps] == ["clean"] * (since - 1) + ["disagreed"] * (21 - since)
    assert not found.ok


def test_without_strategy_files_equal_values_before_show_who_votes():
    found = history(course(flip(6, 9, "norm")), strategy=None)
    (one,) = found.disagreements
    assert (one.parameter, one.first, one.outvoted, one.source) == ("norm", STEPS[9], (6,), "equal values before")
    assert len(one.ranks) == 8


def test_without_strategy_files_a_flip_at_the_second_step_is_outvoted_by_later_steps():
    found = history(course(flip(6, 2, "norm")), strategy=None)
    (one,) = found.disagreements
    assert (one.first, one.outvoted) == (STEPS[2], (6,))


def test_a_flip_in_a_cut_weight_of_two_replicas_is_a_tie_and_both_are_named():
    found = history(course(flip(5, 7)))
    (one,) = found.disagreements
    assert (one.parameter, one.first, one.sides, one.outvoted) == ("column", STEPS[7], ((1,), (5,)), ())
    assert one.suspects == ()
    assert found.clean == STEPS[6]


def test_a_rank_that_was_outvoted_elsewhere_is_the_suspect_of_a_tie():
    def flipped(rank, step, name):
        column, norm = flip(5, 7)(rank, step, name), flip(5, 7, "norm")(rank, step, name)
        return column if name == "column" else norm

    norm, column = sorted(history(course(flipped)).disagreements, key=lambda one: one.parameter, reverse=True)
    assert (norm.outvoted, norm.suspects) == ((5,), ())
    assert (column.outvoted, column.suspects) == ((), (5,))


def test_only_the_ranks_of_an_optimizer_shard_vote_on_it():
    found = history(course(flip(1, 4, "moments.norm")))
    (one,) = found.disagreements
    assert (one.outvoted, one.ranks) == ((1,), (1, 3, 5, 7))


def test_a_parameter_without_layout_is_compared_over_all_ranks():
    (one,) = history(course(flip(3, 4, "rate"))).disagreements
    assert (one.parameter, one.outvoted, len(one.ranks)) == ("rate", (3,), 8)


def test_replicas_that_agree_again_are_clean_again():
    found = history(course(flip(5, 7, "norm", until=10)))
    (one,) = found.disagreements
    assert (one.first, one.last, one.steps) == (STEPS[7], STEPS[9], 3)
    assert found.clean == STEPS[20]


def own_bank(rank, step, name):
    return f"{name}.{step.step}.{rank}" if name == "bank" else value(rank, step, name)


def test_rank_local_values_from_the_beginning_are_no_disagreement():
    slices = course(own_bank, names=("column", "bank"), recorded=lambda rank, step: ("bank",))
    found = history(slices)
    assert found.disagreements == ()
    assert [(one.parameter, one.recorded) for one in found.own] == [("bank", True)]
    assert found.clean == STEPS[20]


def test_a_parameter_that_was_equal_before_it_was_recorded_as_rank_local_is_a_disagreement():
    noticed = lambda rank, step: ("norm",) if step.step >= 8 else ()  # noqa: E731
    (one,) = history(course(flip(5, 8, "norm"), recorded=noticed)).disagreements
    assert (one.first, one.outvoted, one.recorded) == (STEPS[8], (5,), True)


def test_one_rank_against_most_is_a_disagreement_although_it_is_recorded_from_the_beginning():
    found = history(course(flip(5, 1, "norm"), recorded=lambda rank, step: ("norm",)))
    (one,) = found.disagreements
    assert (one.outvoted, one.recorded, one.agreed_until, found.clean) == ((5,), True, None, None)


def test_two_replicas_that_are_recorded_from_the_beginning_have_own_values():
    found = history(course(flip(5, 1), recorded=lambda rank, step: ("column",)))
    assert ([one.parameter for one in found.own], found.disagreements) == (["column"], ())


def test_parameters_that_may_differ_by_name_are_no_disagreement():
    names = ("column", "bn.moving_mean")
    odd = lambda rank, step, name: f"{name}.{rank}" if "mean" in name else value(rank, step, name)  # noqa: E731
    assert history(course(odd, names=names)).disagreements == ()
    assert history(course(flip(5, 3)), PlanOptions(tolerate=("col*",))).clean == STEPS[20]


def test_a_step_without_a_manifest_of_some_rank_is_not_called_clean():
    slices = [file for file in course() if (file.rank, file.step.step) != (6, 20)]
    found = history(slices)
    assert found.clean == STEPS[19]
    assert found.steps[-1].state == "uncompared"
    assert why_not_clean(found, STEPS[20]) == "not known to be clean: no manifest of rank 6"
    bare = [replace(file, manifest=None) if (file.rank, file.step.step) == (6, 20) else file for file in course()]
    assert history(bare).clean == STEPS[19]


def test_a_recovered_slice_is_no_witness():
    copy = Provenance(kind="copied", evidence="manifest", sources=(ProvenanceSource(2, "ckpt_dir2/test-1_20.ckpt"),))
    slices = [file for file in course() if (file.rank, file.step.step) != (6, 20)]
    slices.append(saved(6, STEPS[20], value, provenance=copy))
    found = history(slices)
    assert found.clean == STEPS[19]
    assert "recovered from other ranks, and so no witness: the slice of rank 6" in found.steps[-1].reason


def test_a_step_at_which_one_rank_alone_of_each_pair_has_a_manifest_is_not_compared():
    apart = lambda rank, step, name: f"{name}.{step}.{rank % 4}"  # noqa: E731
    alone = [replace(file, manifest=None) if file.rank > 3 else file for file in course(apart, steps=(2,))]
    found = history([*course(apart, steps=(1,)), *alone], strategy=None)
    assert [one.state for one in found.steps] == ["clean", "uncompared"]
    assert found.steps[1].reason == "no two ranks that hold the same have manifests"
    assert found.clean == STEPS[1]


def test_ranks_that_are_gone_for_good_do_not_hinder():
    found = history([file for file in course() if file.rank != 6])
    assert found.clean == STEPS[20]
    assert found.alone == (2,)


def test_manifests_of_slices_that_are_gone_are_evidence():
    slices = course(flip(5, 7, "norm"))
    gone = [orphan(file) for file in slices if file.step.step < 18]
    found = history([file for file in slices if file.step.step >= 18], orphans=gone)
    (one,) = found.disagreements
    assert (one.first, one.outvoted, found.clean) == (STEPS[7], (5,), STEPS[6])


def test_a_lost_rank_is_no_witness():
    found = history(course(flip(5, 7, "norm")), PlanOptions(lost=frozenset((5,))))
    assert (found.disagreements, found.clean) == ((), STEPS[20])


def test_without_manifests_the_history_says_what_is_missing():
    found = history([replace(file, manifest=None) for file in course(steps=(1, 2))])
    assert found.clean is None
    assert "no slice has a manifest" in found.clean_reason
    assert "SliceCheckpoint" in found.notes[0]
    assert [one.state for one in found.steps] == ["uncompared"] * 2


def test_one_step_alone():
    found = history(course(steps=(3,)))
    assert (found.clean, found.stopped, found.frozen) == (STEPS[3], (), ())
    (one,) = history(course(flip(5, 3, "norm"), steps=(3,))).disagreements
    assert (one.first, one.agreed_until, one.outvoted) == (STEPS[3], None, (5,))


def test_ranks_without_replicas_are_not_called_clean():
    groups = {rank: [rank] for rank in range(2)}
    unlike = lambda rank, step, name: f"{name}.{step}.{rank}"  # noqa: E731
    found = history(course(unlike, ranks=2, groups=groups), groups=groups, strategy=None)
    assert found.clean is None
    assert found.alone == (0, 1)
    assert "--group" in found.notes[0]


def test_a_strategy_file_of_another_run_is_not_used():
    swapped = lambda rank, step, name: f"{name}.{step}.{rank % 4}"  # noqa: E731
    found = history(course(swapped))
    assert "strategy/0.ckpt is not used" in found.notes[0]
    assert (found.disagreements, found.clean) == ((), STEPS[20])


def runs():
    """Run b goes on from step 5 of run a, which went on to 8 by itself."""
    first = course(steps=range(1, 9), run="a", training=TrainingRecord(1000, None, 100))
    resumed = TrainingRecord(2000, RunStep("a", Step(1, 5), 1000), 100)
    second = [
        replace(file, prefix="test_1", place=replace(file.place, parts=("ckpt_dir", f"/test_1-{file.step}.ckpt")))
        for file in course(flip(5, 7, "norm"), range(6, 11), run="b", training=resumed)
    ]
    second = [replace(file, manifest=replace(file.manifest, file=file.path.rpartition("/")[2])) for file in second]
    return [*first, *second]


def test_the_history_follows_the_run_that_was_started_last_and_says_where_runs_part():
    found = history(runs())
    assert found.run_id == "b"
    assert [one.step.step for one in found.steps] == list(range(1, 11))
    assert [one.run_id for one in found.steps] == ["a"] * 5 + ["b"] * 5
    assert (found.disagreements[0].first, found.clean) == (STEPS[7], STEPS[6])
    older, newer = found.runs
    assert (older.run_id, older.followed, older.until, older.last) == ("a", True, STEPS[5], STEPS[8])
    assert (newer.run_id, newer.resumed_from.step, newer.first) == ("b", STEPS[5], STEPS[6])


def test_another_run_is_followed_where_it_is_chosen():
    found = history(runs(), PlanOptions(run="a"))
    assert (found.run_id, found.clean, found.disagreements) == ("a", STEPS[8], ())
    assert [one.followed for one in found.runs] == [True, False]


@pytest.mark.parametrize(
    ("states", "clean", "words"),
    [
        ((), None, "no step of the run has a slice or manifest"),
        ((("uncompared", 0), ("uncompared", 0)), None, "no slice has a manifest, so that nothing states"),
        ((("disagreed", 8), ("uncompared", 8)), None, "at no step did all ranks that hold the same agree"),
        ((("uncompared", 8),), None, "no step has manifests of all ranks that hold the same"),
        ((("clean", 8), ("clean", 8), ("disagreed", 8)), 2, ""),
    ],
)
def test_the_last_clean_step_or_why_there_is_none(states, clean, words):
    one = history(course(steps=(1,)))
    steps = [
        replace(one.steps[0], step=STEPS[number], state=state, ranks=ranks)
        for number, (state, ranks) in enumerate(states, 1)
    ]
    found = with_clean(replace(one, steps=tuple(steps)))
    assert found.clean == (STEPS[clean] if clean else None)
    assert found.clean_reason.startswith(words)
    assert bool(found.clean_reason) == bool(words)


def test_why_a_step_is_not_clean():
    found = history([*course(flip(5, 7, "norm"), range(1, 9)), *course(steps=(9,))[:7]])
    assert why_not_clean(found, STEPS[6]) is None
    assert why_not_clean(found, STEPS[7]) == "not clean: ranks that hold the same differ in 'norm'; outvoted: rank 5"
    assert why_not_clean(found, STEPS[8]).endswith("differ in 'norm', first at step 1_7; outvoted: rank 5")
    assert why_not_clean(found, STEPS[9]) == "not known to be clean: no manifest of rank 7"
    assert why_not_clean(found, STEPS[10]) == "not clean: no manifest of the run describes it"


def test_values_are_the_same_whatever_the_order_of_the_slices():
    slices = course(flip(5, 7, "norm"))
    assert history(slices) == history(slices[::-1])


def test_sides_name_all_ranks():
    one = Disagreement(
        parameter="w", first=STEPS[1], last=STEPS[1], steps=1, agreed_until=None, sides=((4, 2), (0,)), outvoted=(0,)
    )
    assert one.ranks == (0, 2, 4)


def test_the_tree_of_the_tests_is_dp_2_tp_4():
    assert inventory(course(steps=(1,))).ranks == tuple(range(8))
    assert PAIRS[5] == [1, 5]


def test_a_plan_of_clean_steps_takes_the_last_one_and_says_what_it_passes_over():
    made = make_plan(inventory(course(flip(5, 7, "norm"))), PlanOptions(clean=True))
    assert made.step == STEPS[6]
    assert [one.step for one in made.given_up] == STEPS[20:6:-1]
    why = "not clean: ranks that hold the same differ in 'norm', first at step 1_7; outvoted: rank 5"
    assert made.given_up[0].reason == why
    assert make_plan(inventory(course()), PlanOptions(clean=True)).step == STEPS[20]


def test_a_clean_step_is_judged_as_any_other():
    slices = course(flip(5, 7, "norm"))
    broken = [
        replace(file, problem="it ends in the middle") if file.step.step == 6 and file.rank in (2, 6) else file
        for file in slices
    ]
    made = make_plan(inventory(broken), PlanOptions(clean=True))
    assert made.step == STEPS[5]
    assert "not clean" not in made.given_up[-1].reason


def test_without_a_clean_step_there_is_no_plan():
    made = make_plan(inventory(course(flip(5, 1, "norm"))), PlanOptions(clean=True))
    assert not made.recoverable
    assert len(made.rejected_steps) == 20


def test_a_clean_step_and_a_named_one_are_refused():
    with pytest.raises(UsageError, match="leave out --step 1_5, or --clean"):
        make_plan(inventory(course()), PlanOptions(clean=True, step=STEPS[5]))
