"""Which run is the present one, and which steps it goes on from."""

from dataclasses import replace

import pytest

from ms_recover.errors import ContradictionError, MissingInputError, UsageError
from ms_recover.formats.manifest_json import parse_origin
from ms_recover.model.inventory import SetAside
from ms_recover.model.manifest import RunStep, TrainingRecord
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import (
    RunRecord,
    choose_run,
    find_lineage,
    find_run_records,
    follow_choice,
    inventory_of_run,
    lists_of_others,
    merge_run_records,
    naming_sizes,
    text_of_sizes,
    texts_of_aside,
)
from tests.support.inventories import group_file, slice_file, tree
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


# --- what is said about runs ------------------------------------------------------------------------------------------


def refused(name, *records):
    with pytest.raises(UsageError) as said:
        choose_run(merge_run_records(records), name)
    return str(said.value)


def test_a_run_without_a_name_is_meant_by_the_prefixes_of_its_slices():
    nameless, named = record("", None, prefixes=("x_1", "y")), record("a", 1)
    for name in ("x_1", "x", "y"):
        assert choose_run((nameless, named), name) == nameless
    assert choose_run((nameless, named), "a") == named
    called = record("y", 2)
    assert choose_run((nameless, named, called), "y") == called


def test_who_names_no_run_or_two_is_told_which_there_are():
    night = [record("night", 1000, "1_8"), record("night", 2000, None, aside=Step(3, 4))]
    other, bare = record("other", 3000, base_prefix="exp"), record("", None, prefixes=("x",))
    twice = "night@2000 (run night, started 1970-01-01 00:00:02 UTC, up to 3_4); night@1000 (run night, started "
    assert refused("night", *night, other, bare) == (
        f"there is more than one run 'night' here; there is {twice}1970-01-01 00:00:01 UTC, up to 1_8)"
    )
    assert refused("z", *night, other, bare) == (
        "there is no run 'z' here; there is other (run other, started 1970-01-01 00:00:03 UTC, up to 1_8); "
        f"{twice}1970-01-01 00:00:01 UTC, up to 1_8); x (by the prefix of its slices); exp (an experiment)"
    )
    assert refused("z") == "there is no run 'z' here; there is no run that has a name"


RESUMED = (
    record("a", 1, "2_8"),
    record("b", 2, "2_2", resumed_from=RunStep("a", Step(2, 4), 1)),
    record("x", 3, "2_6"),
    record("y", 3, None, aside=Step(9, 9)),
)


@pytest.mark.parametrize(
    ("step", "newer"), [("2_1", ["a", "x"]), ("2_2", ["a", "x"]), ("2_5", ["a", "x"]), ("2_6", ["a"]), ("2_8", [])]
)
def test_newer_steps_of_other_runs_and_those_that_were_given_up_are_named(step, newer):
    """Run b stands in the lineage, and went on from an earlier step than the last one of run a."""
    texts = find_lineage(RESUMED, "b").newer_texts(Step.parse(step))
    last = {"a": "2_8", "x": "2_6"}
    begins = {name: f"step {last[name]} of run {name}, started 1970-01-01 00:00:00 UTC is newer: " for name in newer}
    assert sorted(texts) == sorted(
        f"{begin}--run {name} chooses it, or recover_train(run='{name}'), or MS_RECOVER_RUN={name} in the environment"
        for name, begin in begins.items()
    )


def test_a_run_that_saved_nothing_after_another_one_went_on_gave_nothing_up():
    found = find_lineage((record("a", 1, "2_4"), RESUMED[1]), "b")
    assert found.newer_texts(Step(1, 1)) == []


@pytest.mark.parametrize(("aside", "named"), [("2_2", False), ("2_3", True), (None, False)])
def test_what_was_set_aside_is_named_where_it_is_newer(aside, named):
    records = (record("a", 1, "2_2", aside=aside and Step.parse(aside)), record("b", 2))
    for chosen, expected in (("a", named), ("b", named), (None, named)):
        texts = find_lineage(records, chosen).set_aside_texts(Step(2, 2))
        assert len(texts) == (expected if chosen != "b" else False)


def test_why_steps_of_several_other_runs_are_passed_over_and_how_the_last_of_them_is_taken():
    found = lineage(record("a", 1000), record("b", 2000), record("c", 3000))
    (first, _), (second, _) = both("1_8", "a", 1000), both("1_8", "b", 2000)
    assert found.why_outside([first, second]) == (
        "its slices are of run b, started 1970-01-01 00:00:02 UTC, run a, started 1970-01-01 00:00:01 UTC, and run c, "
        "started 1970-01-01 00:00:03 UTC was started later; --run b chooses it, or recover_train(run='b'), or "
        "MS_RECOVER_RUN=b in the environment"
    )
    bare = replace(first, manifest=None)
    assert found.why_outside([bare]) == (
        "its slices are of a run that no manifest names, and run c, started 1970-01-01 00:00:03 UTC was started later"
    )


def test_a_run_that_began_with_the_first_step_was_not_resumed_by_hand():
    first, later = both("1_1", "a", 1, cumulative=1), both("3_4", "a", 1, cumulative=20)
    assert [find_run_records(files)[0].begun for files in (first, later)] == [None, None]
    assert find_run_records(both("1_2", "a", 1, cumulative=1))[0].begun == Step(1, 1)
    assert find_run_records(both("3_1", "a", 1, cumulative=8))[0].begun == Step(2, 1)


def test_prefixes_name_the_runs_of_slices_whose_manifests_name_none():
    bare = [replace(file, manifest=None) for prefix in ("y", "x", "") for file in both("1_8", "", None, prefix=prefix)]
    (nameless,), (named,) = find_run_records(bare), find_run_records(both("1_8", "a", 1))
    assert (nameless.prefixes, named.prefixes) == (("x", "y"), ())


def test_a_run_that_was_resumed_by_hand_goes_on_from_its_experiment_alone():
    by_hand = record("b", 2, "3_1", begun=Step(2, 8), base_prefix="test")
    found = lineage(record("a", 1), by_hand)
    (file, _) = both("2_8", "a", 1)
    assert found.order(file) == (1, Step(2, 8))  # by its prefix
    stating = replace(file.manifest, training=replace(file.manifest.training, base_prefix="other"))
    assert found.order(replace(file, manifest=stating)) is None
    assert found.order(replace(file, prefix="other")) is None
    assert found.order_of(stating, file.step, "test") is None


# --- what a tree shows of the chosen run ------------------------------------------------------------------------------


def of_size(size, *files):
    return [replace(file, manifest=replace(file.manifest, world_size=size)) for file in files]


@pytest.mark.parametrize(("size", "ranks"), [(2, (0,)), (3, (0, 2)), (1, (0,))])
def test_the_world_of_a_chosen_run_is_that_of_its_slices(size, ranks):
    """Rank 1 has slices of another run alone, rank 2 none at all."""
    (own, _), others = both("1_8", "new", 200, prefix="test_1"), both("2_8", "old", 100)
    bare = replace(own, manifest=None, prefix="bare")
    whole = tree([*of_size(size, own), bare, *others], {2: [2]})
    found = find_lineage(find_run_records(whole.slices), "new")
    left = inventory_of_run(whole, found)
    assert (left.ranks, [file.prefix for file in left.slices]) == (ranks, ["test_1", "bare"])
    assert inventory_of_run(whole, None) == inventory_of_run(whole, replace(found, chosen=False)) == whole


def test_where_nothing_of_the_chosen_run_or_of_others_is_in_place_everything_counts():
    (own, _), others = both("1_8", "new", 200, prefix="test_1"), both("2_8", "old", 100)
    found = find_lineage(find_run_records([own, *others]), "new")
    for slices in ([own], others):
        assert inventory_of_run(tree(slices, GROUPS), found).slices == tuple(slices)
        assert inventory_of_run(tree(slices, GROUPS), found).ranks == (0, 1)


def listing(ranks):
    return replace(group_file(0, ranks or (0,)), info=None) if ranks is None else group_file(0, ranks)


@pytest.mark.parametrize(
    ("own", "other", "listed", "rejected"),
    [
        ({"group": (0, 1)}, 0, (0, 2), True),
        ({"group": (1, 0, 1)}, 0, (0, 2), True),
        ({"group": (0, 1)}, 0, (1, 0), False),
        ({"group": (0, 1)}, 1, (0, 2), False),  # no slice of another run lies at rank 0
        ({"group": (0, 1), "provenance": parse_origin("recovered from rank 0 (a), by group")}, 0, (0, 2), False),
        ({"group": (1,)}, 0, (0, 2), False),
        ({"group": (0,), "rank": 0}, 0, (0, 2), False),
        ({"group": (0, 1)}, 0, None, False),
        ({}, 0, (0, 2), False),
    ],
)
def test_a_list_that_another_run_wrote_is_known_by_the_manifests_of_the_chosen_one(own, other, listed, rejected):
    mine = both("1_8", "new", 200, prefix="test_1")[1]
    mine = replace(mine, manifest=replace(mine.manifest, **own))
    theirs = both("2_8", "old", 100)[other]
    whole = tree([mine, theirs], {})
    found = find_lineage((record("new", 200), record("old", 100)), "new")
    reasons = lists_of_others(whole, [listing(listed), replace(group_file(0, (0, 2)), rank=None)], found)
    why = "another run wrote it: it names ranks [0, 2], and the manifests of run new, started 1970-01-01 00:00:00 UTC"
    assert reasons == ({"ckpt_dir0/group_info.pb": f"{why} name [0, 1]"} if rejected else {})
    assert lists_of_others(whole, [listing(listed)], replace(found, chosen=False)) == {}


def test_manifests_that_name_different_ranks_reject_no_list():
    mine = both("1_8", "new", 200, prefix="test_1")[1]
    several = [replace(mine, manifest=replace(mine.manifest, group=group)) for group in ((0, 1), (0, 1, 2))]
    found = find_lineage((record("new", 200), record("old", 100)), "new")
    whole = tree([*several, both("2_8", "old", 100)[0]], {})
    assert lists_of_others(whole, [group_file(0, (0, 2))], found) == {}


def test_runs_of_different_sizes_are_named_the_last_one_first():
    large, small = of_size(4, *both("1_8", "a", 1000), *both("2_8", "a", 1000)), of_size(2, *both("1_4", "b", 2000))
    old = of_size(8, *both("1_2", "old", None))
    text = text_of_sizes(tree([*large, *small, *old], {}))
    assert [part.split(", started")[0] for part in text.partition(": ")[2].split("; ")] == [
        "run b",
        "run a",
        "run old, of 8 rank(s), up to step 1_2. run= (--run) chooses one of these runs",
    ]
    assert "of 4 rank(s), up to step 2_8" in text
    assert text_of_sizes(tree(large, {})) is None
    aside = SetAside(rank=0, step=Step(1, 4), path="a", aside="b", manifest=small[0].manifest)
    assert "run b" in text_of_sizes(replace(tree(large, {}), set_aside=(aside,)))


@pytest.mark.parametrize("error", [ContradictionError, UsageError])
def test_what_is_refused_in_a_tree_of_several_sizes_names_them(error):
    large, small = of_size(4, *both("1_8", "a", 1000)), of_size(2, *both("1_4", "b", 2000))
    for files, text in (([*large, *small], r"^no\. Slices of different numbers of ranks lie here"), (large, r"^no$")):
        with pytest.raises(error, match=text), naming_sizes(tree(files, {})):
            raise error("no")
