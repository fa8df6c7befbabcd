"""Slices that hold the bytes of another slice."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.stages import Stages
from ms_recover.planning.judging.misplaced import ContentIndex
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import OLDER, STEP, slice_file, tree
from tests.unit.planning.test_contents import PAIRS, backed, digests


def index_of(slices, values, stages=Stages(), lists=PAIRS):  # noqa: B008
    """Return the index and its slices by (rank, step); `values` names contents for each (rank, step)."""
    read = Contents(
        {file.path: digests(values[file.rank, file.step]) for file in slices if (file.rank, file.step) in values}
    )
    facts = gather_facts(tree(slices, lists), contents=read)
    by = {(one.rank, one.file.step): one for one in facts.counted}
    return ContentIndex(facts.counted, stages), by


def cut(axes):
    """Return one stage of four ranks with a parameter cut over some axes of its matrix."""
    return Stages(4, {0: {"a": Layout("a", (2, 2), (axes,))}}, {0: "strategy.ckpt"})


def plain(step=STEP):
    return [slice_file(rank, step) for rank in range(4)]


def right():
    """Return contents in which nothing is misplaced: each step and group has its own."""
    return {(rank, step): f"{rank % 2}{step}" for rank in range(4) for step in (OLDER, STEP)}


def why(slices, values, rank, *, confirmed=False, **how):
    index, by = index_of(slices, values, **how)
    return index.why_misplaced(by[rank, STEP], confirmed=confirmed)


def test_contents_of_its_own_are_not_misplaced():
    slices, values = [*plain(OLDER), *plain()], right()
    assert [why(slices, values, rank) for rank in range(4)] == [None] * 4


def test_contents_that_were_not_read_show_nothing():
    assert why(plain(), {}, 0) is None


def test_an_older_slice_of_its_group_that_all_others_of_the_step_confirm():
    values = right() | {(0, STEP): f"0{OLDER}"}
    reason = why([*plain(OLDER), *plain()], values, 0)
    assert "ckpt_dir0/test-1_8.ckpt" in reason
    assert "renamed" in reason


def test_an_older_slice_of_its_group_that_another_of_the_step_contradicts_shows_nothing():
    values = right() | {(0, STEP): f"0{OLDER}", (2, OLDER): "other"}
    assert why([*plain(OLDER), *plain()], values, 0) is None


def test_a_newer_slice_of_its_own_group_shows_nothing_about_the_older_one():
    values = right() | {(0, OLDER): f"0{STEP}"}
    index, by = index_of([*plain(OLDER), *plain()], values)
    assert index.why_misplaced(by[0, OLDER]) is None


def test_an_older_slice_with_a_manifest_speaks_even_against_confirmed_ones():
    values = right() | {(0, STEP): f"0{OLDER}", (2, STEP): f"0{OLDER}"}
    older = [backed(file, f"{file.rank % 2}{OLDER}") for file in plain(OLDER)]
    assert why([*older, *plain()], values, 0, confirmed=True) is not None
    assert why([*plain(OLDER), *plain()], values, 0, confirmed=True) is None


def test_a_manifest_of_other_bytes_proves_nothing():
    values = right() | {(0, STEP): f"0{OLDER}", (2, STEP): f"0{OLDER}"}
    older = [backed(file, "something else") for file in plain(OLDER)]
    assert why([*older, *plain()], values, 0, confirmed=True) is None


def test_the_bytes_of_another_group_which_another_of_that_group_confirms():
    values = right() | {(0, STEP): f"1{STEP}"}
    assert "ckpt_dir1/test-2_8.ckpt" in why(plain(), values, 0)


def test_the_bytes_of_another_group_which_nobody_confirms_show_nothing():
    values = right() | {(0, STEP): f"1{STEP}", (3, STEP): "other"}
    assert why(plain(), values, 0) is None


def test_the_bytes_of_another_group_show_nothing_where_its_own_group_confirms_them():
    values = dict.fromkeys(right(), "all the same")
    assert why(plain(), values, 0, confirmed=True) is None


def test_the_bytes_of_another_group_show_nothing_where_layouts_make_both_ranks_alike():
    values = right() | {(0, STEP): f"1{STEP}"}
    assert why(plain(), values, 0, stages=cut(())) is None


def test_without_rank_lists_the_ranks_that_layouts_make_alike_confirm_a_slice():
    values = right() | {(0, STEP): f"1{STEP}"}
    assert why(plain(), values, 0, lists={}) is None
    assert "ckpt_dir1" in why(plain(), values, 0, stages=cut((0,)), lists={})


@pytest.mark.parametrize("problem", [None, "cut"])
def test_a_damaged_slice_confirms_nothing(problem):
    values = right() | {(0, STEP): f"1{STEP}"}
    slices = [replace(file, problem=problem if file.rank == 3 else None) for file in plain()]
    assert (why(slices, values, 0) is None) == (problem is not None)


def test_a_copy_is_no_witness_for_its_source():
    """The slice of rank 1 was copied from rank 0's, and so shows nothing about it, though it has a manifest."""
    values = {(rank, STEP): "same" if rank < 2 else f"own {rank}" for rank in range(4)}
    copied = "recovered from rank 0 (ckpt_dir0/test-2_8.ckpt), by vote"
    slices = plain()
    from_elsewhere = backed(slices[1], "same")
    assert why([slices[0], from_elsewhere, *slices[2:]], values, 0) is not None
    assert why([slices[0], backed(slices[1], "same", origin=copied), *slices[2:]], values, 0) is None


def test_of_several_with_these_bytes_the_one_with_a_manifest_is_the_evidence():
    values = right() | {(rank, OLDER): "x" for rank in (0, 2)} | {(0, STEP): "x"}
    older = [backed(file, "x") if file.rank == 2 else file for file in plain(OLDER)]
    older = [
        replace(file, manifest=replace(file.manifest, digests=digests("x"))) if file.rank == 2 else file
        for file in older
    ]
    assert "ckpt_dir2/test-1_8.ckpt" in why([*older, *plain()], values, 0, confirmed=True)
    assert why([*plain(OLDER), *plain()], values, 0, confirmed=True) is None


def test_a_copy_of_the_slice_itself_hides_no_other_holder_of_its_bytes():
    values = right() | {(0, STEP): f"1{STEP}"}
    copied = Provenance(kind="copied", evidence="structure", sources=(ProvenanceSource(0, "ckpt_dir0/test-2_8.ckpt"),))
    slices = plain()
    made = backed(slices[1], "x").manifest
    slices[1] = replace(slices[1], manifest=replace(made, digests=digests(values[1, STEP]), provenance=copied))
    assert "ckpt_dir3" in why(slices, values, 0)


def test_of_several_with_a_manifest_the_first_is_the_evidence():
    values = right() | {(0, STEP): f"0{OLDER}", (2, STEP): f"0{OLDER}"}
    older = [backed(file, f"{file.rank % 2}{OLDER}") for file in plain(OLDER)]
    older = [
        replace(file, manifest=replace(file.manifest, digests=digests(values[file.rank, OLDER]))) for file in older
    ]
    assert "ckpt_dir0/test-1_8.ckpt" in why([*older, *plain()], values, 0, confirmed=True)
