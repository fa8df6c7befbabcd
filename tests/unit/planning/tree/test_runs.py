"""Runs: the slices of a step that were saved together."""

from dataclasses import replace
from itertools import permutations

import pytest

from ms_recover.model.inventory import RankPath
from ms_recover.model.manifest import RunStep, TrainingRecord
from ms_recover.planning.tree.lineage import RunRecord, find_lineage
from ms_recover.planning.tree.prefixes import base_of
from ms_recover.planning.tree.runs import OlderRuns, Run, find_older_runs, find_runs, why_alone
from tests.support.inventories import OLDER, STEP, slice_file
from tests.unit.planning.test_contents import backed

PRESENT = frozenset({"test", "other"})


def runs(*files, present=PRESENT, newest=False):
    return find_runs(files, OlderRuns(present=present, reasons={}), newest=newest)


def named(rank, run, step=STEP, **changes):
    return backed(slice_file(rank % 4, step, **changes), "a", run=run)


def in_safetensors(file):
    return replace(file, place=RankPath(("ckpt_dir", "/test-2_8.safetensors")))


@pytest.mark.parametrize(
    ("prefix", "base"),
    [("test", "test"), ("test_1", "test"), ("test_12", "test"), ("test_1_2", "test_1"), ("_1", "_1"), ("a_b", "a_b")],
)
def test_the_rerun_suffix_is_no_part_of_the_base(prefix, base):
    assert base_of(prefix) == base


def test_one_prefix_is_one_run_whatever_the_rerun_suffix():
    assert runs(slice_file(0), slice_file(1, prefix="test_1")) == (Run(base="test"),)


def test_a_step_without_sound_slices_has_one_run_that_nothing_is_foreign_to():
    (run,) = runs(slice_file(0, problem="cut"))
    assert run == Run()
    assert run.why_foreign(slice_file(0)) is None


def test_the_run_that_most_ranks_have_comes_first():
    found = runs(named(0, "few"), named(1, "many"), named(2, "many"))
    assert [run.run_id for run in found] == ["many", "few"]


def test_of_equals_the_one_that_was_started_again_most_often_comes_first():
    found = runs(named(0, "a", prefix="test_1"), named(1, "b", prefix="test_3"), named(2, "c", prefix="test_2"))
    assert [run.run_id for run in found] == ["b", "c", "a"]


def test_slices_of_prefixes_that_are_not_present_count_only_where_there_are_no_others():
    files = [slice_file(rank, prefix="gone") for rank in range(3)] + [slice_file(3)]
    assert runs(*files) == (Run(base="test"),)
    assert runs(*files[:3]) == (Run(base="gone"),)


def test_two_prefixes_are_two_runs_as_long_as_no_rank_has_both():
    apart = [slice_file(0), slice_file(1), slice_file(2, prefix="other")]
    assert {run.base for run in runs(*apart)} == {"test", "other"}
    assert runs(*apart, slice_file(0, prefix="other")) == (Run(),)


def test_a_prefix_that_clearly_prevails_stays_a_run_of_its_own():
    files = [*(slice_file(rank) for rank in range(3)), slice_file(0, prefix="other")]
    assert [run.base for run in runs(*files)] == ["test", "other"]


def test_newest_splits_a_run_of_which_ranks_have_two_reruns_the_one_that_most_ranks_have_first():
    files = [slice_file(0), slice_file(0, prefix="test_1", mtime=9), slice_file(1, mtime=5)]
    assert [run.prefix for run in runs(*files, newest=True)] == ["test", "test_1"]
    assert [run.prefix for run in runs(*files)] == [None]
    assert [run.prefix for run in runs(files[0], files[2], newest=True)] == [None]


def test_of_reruns_that_equally_many_ranks_have_newest_takes_the_last_modified():
    files = [
        slice_file(rank, prefix=prefix, mtime=at) for rank in range(2) for prefix, at in (("test", 9), ("test_1", 5))
    ]
    assert [run.prefix for run in runs(*files, newest=True)] == ["test", "test_1"]


def test_a_run_that_times_call_older_counts_where_more_ranks_have_it():
    old = [slice_file(rank, prefix="old", mtime=1) for rank in range(4)]
    new = [slice_file(rank, prefix="new", mtime=2) for rank in range(4)]
    older = find_older_runs([*old, *new])
    assert [run.base for run in find_runs([*old, *new], older, newest=False)] == ["new"]
    assert [run.base for run in find_runs([*old, *new[1:]], older, newest=False)] == ["old", "new"]
    assert [run.base for run in find_runs([*old[1:], *new], older, newest=True)] == ["new"]


def test_the_prefix_that_was_chosen_is_the_present_run():
    old = [slice_file(rank, prefix="old", mtime=1) for rank in range(4)]
    new = [slice_file(rank, OLDER, prefix="new", mtime=2) for rank in range(4)]
    found = find_older_runs([*old, *new], "old")
    assert found.why_older(old) is None
    assert found.why_older(new) == (
        "its slices are of the run 'new', and the run with the prefix 'old' was chosen; --run new takes it"
    )


def test_a_rerun_that_was_chosen_takes_no_step_of_which_only_other_reruns_have_slices():
    first, again = slice_file(0), slice_file(0, OLDER, prefix="test_1")
    found = find_older_runs([first, again], "test_1")
    assert "--run test takes it" in found.why_older([first])
    assert found.why_older([again]) is None
    assert found.why_older([again, slice_file(1, OLDER, prefix="test_2")]) is None
    assert "--run test_1 takes it" in find_older_runs([first, again], "test").why_older([again])
    assert find_older_runs([again], "test").why_older([again]) is None


def test_newest_splits_by_format_where_a_rank_has_one_prefix_in_both():
    file = slice_file(0)
    found = runs(file, in_safetensors(slice_file(0, mtime=9)), newest=True)
    assert [run.ending for run in found] == [".safetensors", ".ckpt"]
    assert ".safetensors" in found[0].why_foreign(file)


def test_the_reason_why_a_slice_is_foreign_names_both_runs():
    run = Run(run_id="new", base="test", prefix="test_1")
    assert "run old, not to new" in run.why_foreign(named(0, "old"))
    assert "a run without a name" in run.why_foreign(named(0, ""))
    assert "'other'" in run.why_foreign(slice_file(0, prefix="other"))
    assert "which was chosen" in run.why_foreign(slice_file(0))
    assert run.why_foreign(slice_file(0, prefix="test_1")) is None


def test_a_prefix_that_few_ranks_have_is_a_leftover():
    files = [*(slice_file(rank) for rank in range(3)), slice_file(0, OLDER, prefix="left")]
    found = find_older_runs(files)
    assert found.present == {"test"}
    assert "only rank 0 has the prefix 'left'" in found.why_older(files[3:])
    assert found.why_older(files) is None
    assert found.why_older([]) is None


def test_one_file_of_another_prefix_does_not_take_over_a_tree_of_two_ranks():
    older = [slice_file(0, mtime=1), slice_file(1, mtime=2)]
    found = find_older_runs([*older, slice_file(1, prefix="copied", mtime=9)])
    assert found.present == {"test"}
    assert found.reasons == {"copied": "only rank 1 has the prefix 'copied', of another run"}


def test_of_widespread_prefixes_the_one_written_after_all_others_is_present():
    old = [slice_file(rank, prefix="old", mtime=1) for rank in range(3)]
    new = [slice_file(rank, prefix="new", mtime=2) for rank in range(3)]
    found = find_older_runs([*old, *new])
    assert found.present == {"new"}
    assert "of an older run than those of 'new'" in found.why_older(old)


def test_times_that_overlap_prove_nothing():
    one = [slice_file(rank, prefix="one", mtime=rank) for rank in range(3)]
    two = [slice_file(rank, prefix="two", mtime=rank + 1) for rank in range(3)]
    assert find_older_runs([*one, *two]).present == {"one", "two"}


def test_prefixes_that_manifests_name_are_present_although_few_ranks_have_them():
    files = [*(slice_file(rank) for rank in range(4)), named(0, "run", prefix="left")]
    assert find_older_runs(files).present == {"test", "left"}


def test_a_step_of_a_run_that_another_followed_is_warned_of():
    old = [named(rank, "old", STEP, mtime=1) for rank in range(3)]
    new = [named(rank, "new", OLDER, mtime=2) for rank in range(3)]
    found = find_older_runs([*old, *new])
    assert found.newest == ("new", OLDER)
    warning = found.why_not_last(STEP, "old")
    assert "run new was written later" in warning
    assert f"--step {OLDER}" in warning
    assert found.why_not_last(OLDER, "new") is None
    assert found.why_not_last(OLDER, "old") is None
    assert found.why_not_last(STEP, None) is None
    assert find_older_runs(old).why_not_last(STEP, "old") is None


# --- words about runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "text"),
    [
        (Run(run_id="a", started=5, base="test", prefix="test_1"), "run a"),
        (Run(base="test", prefix="test_1"), "run test_1"),
        (Run(base="test"), "run test"),
        (Run(base="test", trained=14), "run test"),
        (Run(base="test", trained=14, apart=frozenset({"x"})), "run test at step 14 of the training"),
    ],
)
def test_a_run_is_called_by_the_closest_name_it_has(run, text):
    assert run.text == text


def test_a_slice_of_another_time_of_the_training_is_foreign():
    mine, other = slice_file(0), slice_file(1)
    run = Run(base="test", apart=frozenset({other.path}))
    assert run.why_foreign(mine) is None
    assert run.why_foreign(other) == "is of another step of the training that has the same name"


def test_a_start_is_foreign_to_another_one_where_both_are_stated():
    run = Run(run_id="a", started=100)
    for started, foreign in ((100, False), (200, True), (None, False)):
        file = started_at(0, "a", started)
        assert (run.why_foreign(file) is not None) == foreign
        assert Run(run_id="a").why_foreign(file) is None


@pytest.mark.parametrize("field", ["run_id", "started", "base", "prefix"])
def test_runs_of_two_parts_may_be_one_unless_they_state_different_things(field):
    whole = Run(run_id="a", started=1, base="test", prefix="test_1")
    assert whole.may_be(whole)
    assert whole.may_be(replace(whole, **{field: None}))
    assert replace(whole, **{field: None}).may_be(whole)
    assert not whole.may_be(replace(whole, **{field: 7 if field == "started" else "b"}))


def started_at(rank, run, started, step=STEP, **changes):
    return backed(slice_file(rank, step, **changes), "a", run=run, group=(rank,), training=TrainingRecord(started))


def texts(files, taken, older=None):
    older = find_older_runs(files) if older is None else older
    begin = f"step {STEP} of another run is passed over: "
    found = older.others_at(STEP, files, {file.path for file in taken})
    assert all(text.startswith(begin) for text in found)
    return [text.removeprefix(begin) for text in found]


def all_of(prefix, ranks=(0, 1, 2), mtime=1):
    return [slice_file(rank, prefix=prefix, mtime=mtime) for rank in ranks]


def test_other_runs_that_have_a_step_are_named_with_their_ranks():
    one, two = [slice_file(rank, prefix="one", mtime=rank) for rank in range(3)], all_of("two")
    assert texts([*one, *two], one) == ["ranks 0, 1, 2 have slices with the prefix 'two' as well; --run two takes it"]
    assert texts([*one, *two[2:]], one) == ["only rank 2 has the prefix 'two', of another run; --run two takes it"]
    assert texts([*one, *two], []) == []
    assert texts([*one, *two], one, find_older_runs([*one, *two], "one")) == []
    assert texts(one, one) == []


@pytest.mark.parametrize(("mtime", "later"), [(0, False), (4, False), (5, True)])
def test_another_run_that_was_written_after_the_one_that_is_taken_is_called_so(mtime, later):
    present = OlderRuns(present=frozenset({"one", "two"}), reasons={})
    one, two = [*all_of("one", mtime=1), slice_file(3, prefix="one", mtime=4)], all_of("two", mtime=mtime)
    (text,) = texts([*one, *two], one, present)
    assert (", written after those that are taken" in text) == later


def test_reruns_are_one_run_as_long_as_no_rank_has_two_of_them():
    first, again = all_of("test", (0, 1)), all_of("test_1", (2, 3))
    assert texts([*first, *again], first) == []
    both = all_of("test_1", (1, 2, 3))
    assert texts([*first, *both], first) == [
        "ranks 1, 2, 3 have slices with the prefix 'test_1' as well; --run test_1 takes it"
    ]


def test_other_runs_are_told_apart_by_the_ids_in_manifests():
    new, old = [named(rank, "new") for rank in range(3)], [named(rank, "old", prefix="test_1") for rank in (1, 2)]
    assert texts([*new, *old], new) == ["ranks 1, 2 have slices of run old as well; --run old takes it"]
    bare = all_of("test_2", (3,))
    assert texts([*new, *bare], new) == []


def test_where_an_older_run_is_taken_its_own_reason_is_not_that_of_another_rerun():
    old, new = all_of("old", mtime=1), all_of("new", mtime=2)
    again, later = all_of("old_1", (0,), mtime=1), ", written after those that are taken"
    assert texts([*old, *again, *new], old) == [
        f"ranks 0, 1, 2 have slices with the prefix 'new' as well{later}; --run new takes it",
        "rank 0 has slices with the prefix 'old_1' as well; --run old_1 takes it",
    ]


def test_a_run_that_one_rank_alone_has_is_warned_of_where_others_have_other_runs():
    lone, *others = [named(0, "a"), named(1, "b"), named(2, "b")]
    assert why_alone([lone, *others], {lone.path}).startswith(f"only rank 0 has this run, with {lone.path}; ")
    assert why_alone([lone, *others], {others[0].path}) is None
    assert why_alone([lone], {lone.path}) is None
    assert why_alone([lone, named(0, "b", prefix="test_1")], {lone.path}) is None
    assert why_alone([lone, *others], set()) is None


# --- the order of runs ------------------------------------------------------------------------------------------------


def test_where_a_lineage_has_no_slice_of_a_step_the_run_that_was_started_last_comes_first():
    record = RunRecord(run_id="last", started=900, newest=STEP)
    files = [started_at(rank, "most", 100) for rank in range(3)]
    files += [started_at(3, "later", 200), started_at(2, "nameless", None), started_at(2, "", None)]
    present = OlderRuns(present=PRESENT, reasons={})
    found = find_runs(files, present, newest=False, lineage=find_lineage((record,)))
    assert [run.run_id for run in found] == ["later", "most", "", "nameless"]
    assert [run.run_id for run in find_runs(files, present, newest=False)] == ["most", "", "later", "nameless"]


def test_of_the_runs_of_a_lineage_the_last_one_that_has_the_step_counts():
    records = (
        RunRecord(run_id="a", started=1, newest=STEP),
        RunRecord(run_id="b", started=2, newest=STEP, resumed_from=RunStep("a", STEP, 1)),
    )
    first, second = [started_at(rank, "a", 1) for rank in range(3)], started_at(3, "b", 2)
    present = OlderRuns(present=PRESENT, reasons={})
    for files, expected in (([*first, second], ["b"]), (first, ["a"])):
        found = find_runs(files, present, newest=False, lineage=find_lineage(records))
        assert [run.run_id for run in found] == expected


@pytest.mark.parametrize(("most", "prevails"), [(3, False), (4, False), (5, True)])
def test_a_prefix_prevails_that_more_than_twice_as_many_ranks_have(most, prevails):
    files = [*all_of("test", range(most)), *all_of("other", (0, 1))]
    assert (len(runs(*files)) == 2) == prevails


def test_a_prefix_in_one_format_stays_in_one_piece():
    both = [slice_file(0), slice_file(0, prefix="test_1", mtime=2)]
    assert {run.ending for run in runs(*both, newest=True)} == {None}


@pytest.mark.parametrize(("mtime", "present"), [(2, {"old", "new"}), (3, {"new"})])
def test_what_was_written_at_the_time_of_the_last_slice_was_not_written_after_it(mtime, present):
    files = [*all_of("old", (0, 1), 1), *all_of("old", (2,), 2), *all_of("new", mtime=mtime)]
    assert find_older_runs(files).present == present


def test_facts_about_runs_do_not_depend_on_the_order_of_slices():
    files = [named(0, "b"), named(1, "a"), named(2, "c", prefix="other"), named(3, "c")]
    orders = [[(run.run_id, run.base) for run in runs(*order)] for order in permutations(files)]
    assert orders.count(orders[0]) == len(orders)
