"""Which run is the present one, and which steps it goes on from."""

from dataclasses import replace

import pytest

from ms_recover.errors import MissingInputError, UsageError
from ms_recover.model.inventory import SetAside
from ms_recover.model.manifest import RunStep, TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import (
    RunRecord,
    find_lineage,
    find_run_records,
    follow_choice,
    merge_run_records,
    texts_of_aside,
)
from tests.support.inventories import slice_file, tree
from tests.support.plans import make_plan
from tests.unit.planning.test_contents import backed

EPOCH = 8
GROUPS = {rank: [rank] for rank in range(2)}


def saved(rank, text, run, started, resumed_from=None, *, cumulative=None, prefix="test", epoch_steps=EPOCH):
    """Return a rank's slice of a run that began with the first epoch, or was resumed."""
    step = Step.parse(text)
    training = TrainingRecord(started, resumed_from, epoch_steps) if started is not None else None
    trained = (step.epoch - 1) * EPOCH + step.step if cumulative is None else cumulative
    file = slice_file(rank, step, prefix=prefix)
    return backed(
        file, f"{run}{rank}", run=run, group=(rank,), cumulative_step=trained, world_size=2, training=training
    )


def both(text, run, started, resumed_from=None, **changes):
    return [saved(rank, text, run, started, resumed_from, **changes) for rank in range(2)]


def plan(*slices, aside=(), **options):
    files = [file for pair in slices for file in pair]
    return make_plan(replace(tree(files, GROUPS), set_aside=tuple(aside)), PlanOptions(**options))


def lineage(*records, chosen=None):
    return find_lineage(merge_run_records(records), chosen)


def record(run_id, started, newest="1_8", resumed_from=None, **changes):
    step = None if newest is None else Step.parse(newest)
    return RunRecord(run_id=run_id, started=started, newest=step, resumed_from=resumed_from, **changes)


ABANDONED = (both("1_8", "old", 100), both("3_4", "old", 100))
PRESENT = (both("1_8", "new", 200, prefix="test_1"), both("2_2", "new", 200, prefix="test_1"))


def test_the_run_that_was_started_last_wins_and_a_newer_step_of_another_is_named():
    made = plan(*ABANDONED, *PRESENT)
    assert (made.step, made.run_id) == (Step(2, 2), "new")
    assert [rank.path for rank in made.ranks] == [f"ckpt_dir{rank}/test_1-2_2.ckpt" for rank in range(2)]
    (warning,) = made.warnings
    assert "step 3_4 is passed over: its slices are of run old, started 1970-01-01 00:00:00 UTC" in warning
    assert "run new, started 1970-01-01 00:00:00 UTC was started later" in warning
    assert "--run old chooses it" in warning
    assert made.given_up == ()


def test_another_run_can_be_chosen():
    made = plan(*ABANDONED, *PRESENT, run="old")
    assert (made.step, made.run_id, made.warnings) == (Step(3, 4), "old", ())


def test_a_step_that_both_have_is_taken_from_the_present_run():
    made = plan(*ABANDONED, PRESENT[0])
    assert (made.step, made.run_id) == (Step(1, 8), "new")
    assert "3_4" in made.warnings[0]


def test_nothing_goes_back_to_another_run_when_the_present_one_has_no_whole_step():
    made = plan(*ABANDONED, PRESENT[0][:1])
    assert not made.recoverable
    assert "--run old chooses it" in made.warnings[0]
    assert plan(*ABANDONED, PRESENT[0][:1], run="old").step == Step(3, 4)


def test_a_resumed_run_goes_on_from_the_step_it_names():
    resumed = both("3_8", "new", 200, RunStep("old", Step(2, 8), 100), prefix="test_1")
    older = both("2_8", "old", 100)
    given_up = both("3_2", "old", 100)
    assert plan(older, given_up, resumed).step == Step(3, 8)
    made = plan(older, given_up, resumed[:1])
    assert (made.step, made.run_id) == (Step(2, 8), "old")
    assert [(one.step, one.another_run) for one in made.rejected_steps] == [(Step(3, 8), False), (Step(3, 2), True)]


def test_a_lineage_goes_back_over_several_resumes():
    found = lineage(
        record("a", 1),
        record("b", 2, resumed_from=RunStep("a", Step(1, 4), 1)),
        record("x", 3),
        record("c", 4, resumed_from=RunStep("b", Step(2, 2), 2)),
    )
    assert [(one.run_id, one.until) for one in found.members] == [("c", None), ("b", Step(2, 2)), ("a", Step(1, 4))]
    assert [one.run_id for one in found.others] == ["x"]


def test_a_resume_from_the_run_before_leaves_the_one_between_out():
    found = lineage(
        record("a", 1),
        record("b", 2, resumed_from=RunStep("a", Step(2, 8), 1)),
        record("c", 3, resumed_from=RunStep("a", Step(1, 4), 1)),
    )
    assert [one.run_id for one in found.members] == ["c", "a"]


def test_two_starts_with_one_id_are_two_runs():
    first = (both("1_8", "night", 100), both("3_4", "night", 100))
    second = both("2_2", "night", 200, prefix="test_1")
    made = plan(*first, second)
    assert made.step == Step(2, 2)
    assert "--run night@100 chooses it" in made.warnings[0]
    assert plan(*first, second, run="night@100").step == Step(3, 4)
    with pytest.raises(UsageError, match="more than one run 'night'"):
        plan(*first, second, run="night")


def test_a_resume_under_the_same_id_goes_on_from_the_earlier_start():
    first = (both("1_8", "night", 100), both("2_8", "night", 100))
    second = both("3_2", "night", 200, RunStep("night", Step(2, 8), 100), prefix="test_1")
    assert plan(*first, second[:1]).step == Step(2, 8)


def test_one_step_of_two_starts_with_one_id_is_never_mixed():
    first = both("1_8", "night", 100)
    second = both("1_8", "night", 200, prefix="test_1")
    made = plan(first, second[:1])
    assert not made.recoverable
    assert "another start of run night" in made.ranks[1].reason


def test_runs_of_an_older_version_come_before_those_that_state_their_start():
    made = plan(both("3_4", "old", None), both("2_2", "new", 200, prefix="test_1"))
    assert (made.step, made.run_id) == (Step(2, 2), "new")
    assert plan(both("2_8", "old", None), both("2_2", "older", None, prefix="test_1")).step == Step(2, 8)


def test_a_run_that_states_no_start_and_was_written_later_may_go_on_with_the_training():
    last = both("2_8", "new", 200)
    later = [replace(file, mtime_ns=9) for file in both("3_4", "other", None, prefix="other")]
    assert plan(last, later).step == Step(3, 4)
    assert plan(last, [replace(file, manifest=None) for file in later]).step == Step(3, 4)


def test_a_save_that_was_not_committed_is_no_other_program():
    left = [replace(file, manifest=None, mtime_ns=9) for file in both("2_4", "new", 200, prefix="test_1")]
    made = plan(*ABANDONED, *PRESENT, left)
    assert (made.step, made.run_id) == (Step(2, 2), "new")


def test_a_resume_from_a_run_of_an_older_version_or_without_a_name_is_known():
    resumed = both("3_2", "new", 200, RunStep("old", Step(2, 8)), prefix="test_1")
    assert plan(both("2_8", "old", None), resumed[:1]).step == Step(2, 8)
    nameless = [replace(file, manifest=None) for file in both("2_8", "", None)]
    resumed = both("3_2", "new", 200, RunStep("", Step(2, 8)), prefix="test_1")
    assert plan(nameless, resumed[:1]).step == Step(2, 8)


def test_a_run_that_was_resumed_by_hand_goes_on_from_whatever_lies_before_it():
    by_hand = both("3_1", "new", 200, cumulative=1, prefix="test_1")
    assert find_run_records(by_hand)[0].begun == Step(2, 8)
    older = (both("2_8", "old", 100), both("2_4", "old", 100))
    assert plan(*older, both("3_4", "old", 100), by_hand).step == Step(3, 1)
    assert plan(*older, both("3_4", "old", 100), by_hand[:1]).step == Step(2, 8)


def test_steps_that_a_run_counts_anew_come_behind_those_it_goes_on_from():
    before = (both("2_4", "old", 100), both("2_6", "old", 100))
    changed = both("2_4", "new", 200, RunStep("old", Step(2, 6), 100), prefix="test_1")
    made = plan(*before, changed)
    assert (made.step, made.run_id) == (Step(2, 4), "new")
    assert made.rejected_steps == ()
    made = plan(*before, changed[:1])
    assert (made.step, made.run_id) == (Step(2, 6), "old")


def test_an_earlier_step_of_another_run_is_no_fallback():
    made = plan(both("1_8", "old", 100), both("2_2", "new", 200, prefix="test_1")[:1])
    assert not made.recoverable


def test_a_step_that_is_named_is_taken_from_whatever_run_has_it():
    made = plan(*ABANDONED, *PRESENT, step=Step(3, 4))
    assert (made.step, made.run_id) == (Step(3, 4), "old")
    assert "step 3_4 is not of the present run" in made.warnings[0]


def test_slices_of_lost_ranks_start_no_run():
    made = plan(*ABANDONED, PRESENT[1][:1], lost=frozenset({0}))
    assert made.run_id == "old"


def test_slices_that_were_set_aside_are_named_and_make_no_run_the_present_one():
    (file, _) = both("3_4", "gone", 300)
    aside = SetAside(rank=0, step=file.step, path=file.path, aside=f"{file.path}.superseded", manifest=file.manifest)
    made = plan(*PRESENT, aside=[aside])
    assert made.step == Step(2, 2)
    assert "step 3_4 of run gone" in made.warnings[0]
    assert "recover_train(run='gone') brings it back" in made.warnings[0]


def test_a_chosen_run_that_was_set_aside_is_not_found_without_the_reason():
    (file, _) = both("3_4", "gone", 100)
    aside = SetAside(rank=0, step=file.step, path=file.path, aside=f"{file.path}.superseded", manifest=file.manifest)
    with pytest.raises(MissingInputError, match=r"step 3_4 of run gone.* was set aside .*MS_RECOVER_RUN=gone"):
        plan(*PRESENT, aside=[aside], run="gone")
    made = plan(*PRESENT, both("2_8", "gone", 100, prefix="test_2"), aside=[aside], run="gone")
    assert made.step == Step(2, 8)
    assert "step 3_4 of run gone" in made.warnings[0]
    with pytest.raises(MissingInputError, match=r"no slice: .*slices of run gone, .* up to step 3_4, were set aside"):
        plan(aside=[aside])


def test_what_training_gave_up_of_its_own_lineage_is_not_named():
    (file, _) = both("3_4", "old", 100)
    aside = SetAside(rank=0, step=file.step, path=file.path, aside=f"{file.path}.superseded", manifest=file.manifest)
    resumed = both("3_2", "new", 200, RunStep("old", Step(2, 8), 100), prefix="test_1")
    assert plan(both("2_8", "old", 100), resumed, aside=[aside]).warnings == ()


def test_a_run_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(UsageError, match=r"no run 'other' here; there is new \(run new, started .*up to 2_2\); old "):
        plan(*ABANDONED, *PRESENT, run="other")


def test_a_manifest_of_another_rank_or_step_names_no_run():
    (file, _) = both("3_4", "other", 900)
    assert find_run_records([replace(file, rank=1)]) == ()
    assert find_run_records([replace(file, step=Step(3, 5))]) == ()


def test_ranks_know_more_together():
    merged = merge_run_records([record("a", 1, "1_8"), record("a", 1, "2_8"), record("b", 2)])
    assert [(one.run_id, one.newest) for one in merged] == [("a", Step(2, 8)), ("b", Step(1, 8))]


def test_a_circle_of_resumes_ends():
    found = lineage(
        record("a", 1, resumed_from=RunStep("b", Step(1, 1), 2)),
        record("b", 2, resumed_from=RunStep("a", Step(1, 2), 1)),
    )
    assert [one.run_id for one in found.members] == ["b", "a"]


@pytest.mark.parametrize(
    ("name", "runs", "expected"),
    [
        ("old", [record("old", 100, "3_4"), record("new", 200, "2_2")], "old"),
        ("old", [record("old", 100, "3_4"), record("new", 200, "4_2", RunStep("old", Step(3, 4), 100))], "new"),
        ("old", [record("old", 100, "3_4"), record("new", 200, "3_6", RunStep("old", Step(2, 8), 100))], "old"),
        ("old", [record("new", 200, "4_2", RunStep("old", Step(3, 4), 100))], "new"),  # its slices were removed
        (
            "old",
            [
                record("old", 100, None, aside=Step(3, 4)),
                record("new", 200, "4_2", RunStep("old", Step(3, 4), 100)),
                record("late", 300, "4_8", RunStep("new", Step(4, 2), 200)),
                record("other", 400, "1_8"),
            ],
            "late",
        ),
        (
            "old@100",
            [record("old", 100), record("old", 150), record("new", 200, "2_2", RunStep("old", Step(1, 8), 100))],
            "new",
        ),
        ("gone", [record("old", 100)], "gone"),
        ("gone", [], "gone"),
        (
            "a",
            [
                record("a", 100, "1_8", RunStep("b", Step(1, 8), 200)),
                record("b", 200, "1_8", RunStep("a", Step(1, 8), 100)),
            ],
            "a",
        ),
    ],
)
def test_a_choice_that_stays_made_goes_on_and_not_back(name, runs, expected):
    assert follow_choice(merge_run_records(runs), name) == expected


@pytest.mark.parametrize(("started", "later"), [(3, False), (4, False), (5, True), (None, False)])
def test_a_slice_is_later_than_a_lineage_where_its_run_was_started_after_the_last_one(started, later):
    found = lineage(record("a", 1), record("b", 4, resumed_from=RunStep("a", Step(1, 4), 1)))
    (file, _) = both("1_8", "x", started)
    assert found.is_later(file.manifest) is later
    assert not found.is_later(None)


def test_the_choice_of_an_experiment_is_that_of_its_last_run():
    records = (record("a", 1, base_prefix="one"), record("b", 2, base_prefix="one"), record("c", 3, base_prefix="two"))
    assert [lineage(*records, chosen=name).last.run_id for name in ("one", "two", "a")] == ["b", "c", "a"]


@pytest.mark.parametrize(
    ("newest", "aside", "named"), [(None, "3_4", True), ("1_8", "3_4", False), (None, None, False)]
)
def test_a_run_of_which_everything_was_set_aside_is_brought_back_by_its_name(newest, aside, named):
    one = record("old", 100, newest, aside=None if aside is None else Step.parse(aside))
    texts = texts_of_aside([one])
    assert ["recover_train(run='old') brings it back" in text for text in texts] == [True] * named


def test_a_run_without_a_name_is_chosen_by_one_of_its_steps():
    found = lineage(record("a", 1))
    assert found.advice(record("", None)) == "--step names one of its steps"
    assert found.advice(record("b", 2)).startswith("--run b chooses it, or recover_train(run='b')")
    assert found.advice(record("", None, prefixes=("x", "y"))).startswith("--run x or --run y chooses it")
