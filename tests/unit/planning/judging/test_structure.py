from dataclasses import replace

import pytest

from ms_recover.planning.claims.stages import Stages
from ms_recover.planning.judging.structure import compare_structure, is_misread, list_the_same
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, parameters, slice_file, tree

PAIRS = {0: [0, 2], 1: [1, 3]}


def compare(slices):
    return compare_structure(gather_facts(tree(slices, PAIRS)).counted)


def damaged(slices):
    return set(compare(slices).damaged)


def test_equal_slices_are_fine():
    findings = compare([slice_file(rank) for rank in range(4)])
    assert not findings.damaged
    assert not findings.conflicts


@pytest.mark.parametrize("kept", range(1, len(NAMES)))
def test_cut_at_any_record_boundary_shows_by_the_peer(kept):
    slices = [slice_file(0, names=NAMES[:kept]), slice_file(1), slice_file(2), slice_file(3)]
    assert damaged(slices) == {"ckpt_dir0/test-2_8.ckpt"}


def test_without_a_peer_it_shows_by_the_same_ranks_other_steps():
    slices = [slice_file(0, names=NAMES[:2]), slice_file(0, OLDER)]
    assert damaged(slices) == {"ckpt_dir0/test-2_8.ckpt"}


def test_another_run_of_the_same_rank_is_no_evidence():
    assert not damaged([slice_file(0, names=NAMES[:2]), slice_file(0, OLDER, prefix="test_1")])


def test_without_either_it_shows_by_the_other_ranks_of_the_step():
    assert damaged([slice_file(0, names=NAMES[:2]), slice_file(1), slice_file(3)]) == {"ckpt_dir0/test-2_8.ckpt"}


def test_something_appended_to_some_older_slices_condemns_no_newer_one():
    longer = [slice_file(rank, OLDER, names=(*NAMES, "extra")) for rank in (0, 1)]
    slices = [*longer, *(slice_file(rank, OLDER) for rank in (2, 3)), *(slice_file(rank) for rank in range(4))]
    assert not {path for path in damaged(slices) if "2_8" in path}


def test_both_members_cut_alike_show_by_the_other_groups():
    cut = [slice_file(rank, names=NAMES[:3]) for rank in (0, 2)]
    assert damaged([*cut, slice_file(1), slice_file(3)]) == {"ckpt_dir0/test-2_8.ckpt", "ckpt_dir2/test-2_8.ckpt"}


def test_one_rank_that_appends_something_does_not_condemn_the_other_groups():
    slices = [
        slice_file(0, names=(*NAMES, "extra")),
        slice_file(2, names=(*NAMES, "extra")),
        slice_file(1),
        slice_file(3),
    ]
    assert not damaged([*slices, slice_file(4), slice_file(5)])


def test_pipeline_stages_with_other_parameters_are_fine():
    slices = [slice_file(rank, names=("a", "s")) for rank in (0, 2)] + [
        slice_file(rank, names=("b", "s")) for rank in (1, 3)
    ]
    findings = compare(slices)
    assert not findings.damaged
    assert not findings.conflicts


def test_a_flipped_name_makes_the_odd_one_damaged():
    odd = ("a", "B", "moment1.a", "global_step")  # one bit from "b"
    slices = [slice_file(0, names=odd), slice_file(1), slice_file(2), slice_file(3)]
    findings = compare(slices)
    assert set(findings.damaged) == {"ckpt_dir0/test-2_8.ckpt"}
    assert "'B'" in findings.damaged["ckpt_dir0/test-2_8.ckpt"]
    assert not findings.conflicts


def test_two_that_differ_with_nobody_to_settle_it_are_a_conflict():
    findings = compare([slice_file(0, shape=(4,)), slice_file(2, shape=(2, 2))])
    assert not findings.damaged
    assert ((0, 2), STEP) in findings.conflicts
    assert not findings.deduplicated


def test_history_settles_a_difference_in_shape():
    slices = [slice_file(0, shape=(2, 2)), slice_file(2), slice_file(2, OLDER), slice_file(0, OLDER)]
    assert damaged(slices) == {"ckpt_dir0/test-2_8.ckpt"}


def test_deduplicated_slices_are_recognised():
    one, other = ("a", "global_step"), ("b", "moment1.a")
    slices = [slice_file(rank, names=one if rank < 2 else other) for rank in range(4)]
    findings = compare(slices)
    assert STEP in findings.deduplicated
    assert not findings.damaged


def test_a_deduplicated_slice_alone_of_its_kind_is_not_damaged():
    one, other = ("a", "c", "global_step"), ("b", "d", "global_step")
    slices = [slice_file(1, names=one), slice_file(2, names=other), slice_file(3, names=other)]
    findings = compare(slices)
    assert not findings.damaged
    assert STEP in findings.deduplicated


def test_names_that_differ_in_one_letter_are_other_parameters():
    one, other = ("layer1", "global_step"), ("layer2", "global_step")
    slices = [slice_file(1, names=one), slice_file(2, names=other), slice_file(3, names=other)]
    assert not compare(slices).damaged


def test_a_slice_that_was_cut_does_not_condemn_the_ranks_other_step():
    slices = [slice_file(rank, step) for rank in range(3) for step in (OLDER, STEP)]
    slices = [*slices, slice_file(3, OLDER), slice_file(3, names=NAMES[:2])]
    alone = {rank: [rank] for rank in range(4)}
    found = compare_structure(gather_facts(tree(slices, alone)).counted)
    assert set(found.damaged) == {"ckpt_dir3/test-2_8.ckpt"}


def test_a_slice_with_the_list_of_another_stage_is_damaged_where_its_replicas_have_the_usual_one():
    first, second = ("a", "s"), ("b", "s")
    slices = [slice_file(rank, OLDER, names=second if rank % 2 else first) for rank in range(4)]
    slices += [slice_file(rank, names=second if rank else first) for rank in range(4) if rank != 1]
    slices += [slice_file(1, names=second)]
    found = compare(slices)
    assert set(found.damaged) == {"ckpt_dir2/test-2_8.ckpt"}
    assert not found.deduplicated


def test_a_slice_with_the_list_of_another_stage_is_damaged_where_its_replica_had_the_usual_one():
    """The slice of the replica is lost, and the two steps of the rank list different parameters."""
    first, second = ("a", "s"), ("b", "s")
    slices = [slice_file(rank, OLDER, names=second if rank % 2 else first) for rank in range(4)]
    slices += [slice_file(rank, names=second) for rank in (1, 2, 3)]
    assert damaged(slices) == {"ckpt_dir2/test-2_8.ckpt"}


OF_STAGES = {0: [0, 1], 1: [0, 1], 2: [2, 3], 3: [2, 3]}


def damaged_of_stages(slices):
    return set(compare_structure(gather_facts(tree(slices, OF_STAGES)).counted, Stages(devices=2)).damaged)


def test_a_rank_whose_replica_is_gone_does_not_have_the_list_of_other_stages():
    slices = [slice_file(rank, step, names=("a", "s")) for rank in (0, 1) for step in (OLDER, STEP)]
    slices += [slice_file(3, OLDER, names=("b", "s")), slice_file(3, names=("a", "s"))]
    assert damaged_of_stages(slices) == {"ckpt_dir3/test-2_8.ckpt"}


def test_an_odd_older_slice_does_not_condemn_the_list_of_its_own_stage():
    slices = [slice_file(rank, step, names=("a", "s")) for rank in (0, 1) for step in (OLDER, STEP)]
    slices += [slice_file(2, step, names=("b", "s")) for step in (OLDER, STEP)]
    slices += [slice_file(3, OLDER, names=("c", "s")), slice_file(3, names=("b", "s"))]
    assert damaged_of_stages(slices) == {"ckpt_dir3/test-1_8.ckpt"}


@pytest.mark.parametrize(
    ("names", "ckpt", "safetensors"),
    [
        (NAMES, True, True),
        (NAMES[::-1], False, True),
        (NAMES[1:], False, False),
        ((*NAMES, "more"), False, False),
        ((*NAMES[1:], "more"), False, False),
    ],
    ids=["the same", "in another order", "one fewer", "one more", "another one"],
)
def test_the_order_of_parameters_counts_but_for_safetensors(names, ckpt, safetensors):
    one, other = gather_facts(tree([slice_file(0), slice_file(1, names=names)], {})).counted_at(STEP)
    assert list_the_same(one, other) is ckpt
    place = replace(other.file.place, parts=(other.file.place.parts[0], f"/test-{STEP}.safetensors"))
    loose = gather_facts(tree([slice_file(0), replace(other.file, place=place)], {})).counted_at(STEP)
    assert list_the_same(*loose) is safetensors
    assert list_the_same(*loose[::-1]) is safetensors


@pytest.mark.parametrize(
    ("theirs", "misread"),
    [
        (parameters(), True),
        (parameters(shape=(2, 2)), True),
        (parameters(("c", *NAMES[1:])), True),
        (parameters(("d", *NAMES[1:])), False),
        (parameters(("aa", *NAMES[1:])), False),
        (parameters(("c", "c", *NAMES[2:])), False),
        (parameters(NAMES[1:]), False),
        ((replace(parameters()[0], name="c", dtype="Int32"), *parameters()[1:]), False),
        ((replace(parameters()[0], name="c", shape=(2, 2)), *parameters()[1:]), False),
    ],
    ids=["same", "shapes", "one bit", "two bits", "longer", "two names", "fewer", "and a type", "and a shape"],
)
def test_a_list_is_misread_where_one_bit_of_a_name_or_shapes_alone_differ(theirs, misread):
    """The names ``a`` and ``c`` differ in one bit, ``a`` and ``d`` in two."""
    assert is_misread(parameters(), theirs) is misread
