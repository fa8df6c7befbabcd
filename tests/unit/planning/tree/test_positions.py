"""The steps that were trained when a slice was saved, and the order of steps by them."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from ms_recover.model.inventory import RankPath, SliceFile
from ms_recover.model.manifest import Digests, Manifest, RunStep, TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import RunRecord, find_lineage
from ms_recover.planning.tree.positions import NO_POSITIONS, Saved, find_positions, find_times, newest_first
from ms_recover.planning.tree.runs import OlderRuns

FIRST, LATER = Step(2, 2), Step(2, 6)


def slice_of(step, *, rank=0, prefix="CKP", stated=None, stock=False, **counters):
    """Return a slice, as MindFormers names it unless `stock`; `stated` is what its manifest says."""
    parts = ("rank_", f"/{prefix}-{step}.ckpt") if stock else ("rank_", f"/{prefix}_rank_", f"-{step}.ckpt")
    manifest = None
    if stated is not None:
        trained, said = stated if isinstance(stated, tuple) else (stated, step)
        manifest = Manifest("run", rank, 4, said, trained, "file", 1, Digests("d"), (), (rank,))
    return SliceFile(rank, step, RankPath(parts), prefix, 1, 1, manifest=manifest, **counters)


def of_run(file, run, started):
    """Return a slice with the manifest of a run."""
    return replace(file, manifest=replace(file.manifest, run_id=run, training=TrainingRecord(started)))


def known(files):
    return {(one.prefix, one.step): (one.cumulative_step, one.stated_by) for one in find_positions(files).every}


def test_manifests_come_before_global_step_and_that_before_step_num():
    files = [
        slice_of(FIRST, stated=10, global_step=9, step_num=8),
        slice_of(LATER, stated=14, global_step=13, step_num=12),
    ]
    assert known(files) == {("CKP", FIRST): (10, "manifest"), ("CKP", LATER): (14, "manifest")}
    bare = [slice_of(FIRST, global_step=9, step_num=8), slice_of(LATER, global_step=13, step_num=12)]
    assert {source for _, source in known(bare).values()} == {"global_step"}
    assert known([slice_of(FIRST, step_num=8)]) == {("CKP", FIRST): (8, "step_num")}


def test_one_source_counts_for_all_where_it_states_all():
    """An overflow adds nothing to a global_step, so that counts of two sources are not compared."""
    files = [slice_of(FIRST, prefix="CKP_1", global_step=15), slice_of(LATER, stated=20, global_step=14)]
    assert known(files) == {("CKP_1", FIRST): (15, "global_step"), ("CKP", LATER): (14, "global_step")}
    assert [find_positions(files).of(file) for file in files] == [15, 14]


def test_where_no_source_states_all_each_step_has_its_strongest():
    files = [slice_of(FIRST, prefix="CKP_1", global_step=16), slice_of(LATER, stated=14)]
    assert known(files) == {("CKP_1", FIRST): (16, "global_step"), ("CKP", LATER): (14, "manifest")}


@pytest.mark.parametrize(
    ("stock", "first", "later", "right"),
    [(True, 8, 14, True), (True, 14, 8, False), (False, 14, 8, True), (True, 8, 8, False), (False, 8, 8, False)],
)
def test_a_source_that_cannot_be_right_states_nothing(stock, first, later, right):
    """Names order the steps of one run of MindSpore's, not of MindFormers'; two steps never have one position."""
    files = [slice_of(FIRST, stock=stock, global_step=first), slice_of(LATER, stock=stock, global_step=later)]
    assert bool(find_positions(files).known) == right


def test_most_slices_of_a_step_must_agree():
    several = [slice_of(FIRST, rank=rank, global_step=value) for rank, value in enumerate([9, 9, 7])]
    assert known(several) == {("CKP", FIRST): (9, "global_step")}
    assert known(several[1:]) == {}


def test_a_slice_whose_manifest_states_another_position_is_apart():
    odd = slice_of(FIRST, rank=3, stated=16)
    files = [*(slice_of(FIRST, rank=rank, stated=10) for rank in range(3)), odd]
    positions = find_positions(files)
    assert [positions.of(file) for file in files] == [10, 10, 10, 16]
    assert positions.apart(files) == [[odd], files[:3]]


@pytest.mark.parametrize("stated", [(99, LATER), (None, FIRST)])
def test_the_manifest_of_another_step_states_nothing(stated):
    files = [slice_of(FIRST, stated=10), slice_of(FIRST, rank=1, stated=stated)]
    assert [find_positions(files).of(file) for file in files] == [10, 10]


def test_slices_that_nothing_counts_may_be_with_any():
    old, new, bare = slice_of(FIRST, stated=10), slice_of(FIRST, prefix="CKP_1", stated=16), slice_of(FIRST, prefix="x")
    assert find_positions([old, new, bare]).apart([old, new, bare]) == [[new, bare], [old, bare]]
    assert NO_POSITIONS.apart([old, new]) == [[old, new]]


def test_a_position_that_slices_state_counts_where_others_of_the_name_state_none_or_another():
    """One slice of three states another position than the others; that of a further prefix states the only one."""
    files = [slice_of(FIRST, rank=0, stated=10), slice_of(FIRST, rank=1, stated=10), slice_of(FIRST, rank=2, stated=0)]
    lone = slice_of(LATER, prefix="x", stated=3)
    bare = slice_of(LATER, prefix="y", rank=3)
    positions = find_positions([*files, lone, bare])
    assert [positions.of(file) for file in (*files, lone, bare)] == [10, 10, 0, 3, None]
    assert positions.of_all([*files, bare]) == 10
    assert positions.of_all([bare]) is None
    assert [positions.first_of(prefix) for prefix in ("CKP", "x", "y")] == [10, 3, None]


def test_the_first_position_of_a_prefix_is_the_smallest_of_its_own():
    files = [slice_of(FIRST, stated=10), slice_of(LATER, stated=14), slice_of(FIRST, prefix="CKP_1", stated=5)]
    positions = find_positions(files)
    assert [positions.first_of(prefix) for prefix in ("CKP", "CKP_1")] == [10, 5]
    assert [position.cumulative_step for position in positions.every] == [5, 10, 14]


@pytest.mark.parametrize("kind", [None, "model"])
def test_the_number_of_an_iteration_is_its_position(kind):
    file = slice_of(FIRST, stated=10, kind=kind)
    assert find_positions([file]).of(file) == (10 if kind is None else None)


def test_the_manifest_of_another_rank_states_nothing():
    moved = replace(slice_of(FIRST, rank=1, stated=99), rank=2)
    files = [slice_of(FIRST, stated=10), moved]
    assert [find_positions(files).of(file) for file in files] == [10, 10]


def order(*items):
    return [(str(one.step), one.trained) for one in newest_first(items)]


def test_steps_are_ordered_by_training_then_by_rerun():
    items = [Saved(step=LATER, trained=14), Saved(step=FIRST, trained=16, rerun=1), Saved(step=FIRST, trained=10)]
    assert order(*items) == [("2_2", 16), ("2_6", 14), ("2_2", 10)]
    same = [Saved(step=Step(2, 8), trained=16), Saved(step=FIRST, trained=16, rerun=1)]
    assert order(*same) == [("2_2", 16), ("2_8", 16)]


def test_a_step_without_a_position_finds_its_place_by_name():
    items = [
        Saved(step=LATER, trained=14),
        Saved(step=Step(2, 7)),
        Saved(step=FIRST, trained=16),
        Saved(step=Step(1, 8)),
    ]
    assert order(*items) == [("2_7", None), ("2_2", 16), ("2_6", 14), ("1_8", None)]


def test_without_positions_names_order_the_steps():
    assert order(Saved(step=FIRST), Saved(step=LATER)) == [("2_6", None), ("2_2", None)]


def test_a_later_run_of_the_lineage_comes_first_whatever_was_trained():
    items = [Saved(step=LATER, trained=14, generation=1), Saved(step=FIRST, trained=10, generation=2)]
    assert order(*items) == [("2_2", 10), ("2_6", 14)]


def test_every_step_has_one_place_and_those_without_a_position_stand_before_the_first_older_name():
    random = Random(4)
    for _ in range(300):
        lineage, counted = random.random() < 0.5, random.random() < 0.7
        items = [
            Saved(
                step=Step(1, random.randint(1, 5)),
                trained=random.randint(1, 9) if random.random() < (1 if counted else 0.6) else None,
                generation=random.randint(0, 2) if lineage else 0,
                rerun=random.randint(0, 2),
            )
            for _ in range(random.randint(0, 6))
        ]
        ordered = newest_first(items)
        assert sorted(map(repr, ordered)) == sorted(map(repr, items))
        lineage = any(saved.generation for saved in items)
        inside = [saved for saved in ordered if (saved.generation if lineage else saved.trained is not None)]
        for earlier, later in pairwise(inside):
            assert earlier.generation >= later.generation
            if earlier.generation == later.generation and all(saved.trained is not None for saved in inside):
                assert (earlier.trained, earlier.rerun) >= (later.trained, later.rerun)
            elif earlier.generation == later.generation:
                assert (earlier.step, earlier.rerun) >= (later.step, later.rerun)
        for place, saved in enumerate(ordered):
            if saved not in inside:
                before = [other for other in ordered[:place] if other in inside]
                after = [other for other in ordered[place:] if other in inside]
                assert all(other.step >= saved.step for other in before)
                assert all(other.step < saved.step for other in after[:1])


PRESENT = OlderRuns(present=frozenset({"CKP"}), reasons={})


def times(*files, lineage=None, older=PRESENT):
    files = list(files)
    return find_times(FIRST, files, older, lineage, find_positions(files))


def test_slices_of_one_name_are_of_the_times_at_which_they_were_saved():
    """Slices of other runs than the present one are seen at each of the times."""
    old, new = slice_of(FIRST, stated=10), slice_of(FIRST, prefix="CKP_2", rank=1, stated=16)
    other = slice_of(FIRST, prefix="other_7", rank=2, stated=12)
    assert times(old, new, other) == (
        Saved(step=FIRST, trained=16, rerun=2, paths=frozenset({new.path, other.path})),
        Saved(step=FIRST, trained=10, paths=frozenset({old.path, other.path})),
    )
    assert times(old, other) == (Saved(step=FIRST, trained=10),)
    assert times(other) == (Saved(step=FIRST, trained=12, rerun=7),)
    assert times(slice_of(FIRST), slice_of(FIRST, prefix="CKP_2")) == (Saved(step=FIRST, rerun=2),)
    assert times() == (Saved(step=FIRST),)


def test_of_a_lineage_the_last_run_counts_that_has_the_step():
    records = [
        RunRecord(run_id="old", newest=FIRST, started=1),
        RunRecord(run_id="new", newest=FIRST, started=2, resumed_from=RunStep("old", FIRST, 1)),
    ]
    lineage = find_lineage(tuple(records))
    old, new, beside = (
        of_run(slice_of(FIRST, rank=rank, prefix=prefix, stated=trained), run, started)
        for rank, prefix, trained, run, started in (
            (0, "CKP", 10, "old", 1),
            (1, "CKP_1", 4, "new", 2),
            (2, "CKP_2", 99, "beside", 3),
        )
    )
    assert times(old, new, beside, lineage=lineage) == (Saved(step=FIRST, trained=4, generation=2, rerun=1),)
    assert times(old, beside, lineage=lineage) == (Saved(step=FIRST, trained=10, generation=1),)
    assert times(beside, lineage=lineage) == (Saved(step=FIRST, trained=99, rerun=2),)
