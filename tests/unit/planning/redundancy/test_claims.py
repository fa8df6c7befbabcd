"""Rank lists and layouts that contradict each other."""

import pytest

from ms_recover.model.strategy import Layout
from ms_recover.planning.redundancy.claims import settle_claims
from ms_recover.planning.redundancy.stages import Stages
from tests.support.inventories import group_file, slice_file
from tests.unit.planning.test_contents import backed

SLICES = [slice_file(rank) for rank in range(4)]
NAMES = [parameter.name for parameter in SLICES[0].parameters]


def stages(*cut, named=NAMES):
    """Return the layouts of four ranks, 2 x 2: the parameters in `cut` over model parallelism, the others whole."""
    layouts = {name: Layout(name, (2, 2), ((0,) if name in cut else (),)) for name in named}
    return Stages(4, {0: layouts}, {0: "strategy.ckpt"})


def lists(*groups):
    return [group_file(rank, list(group)) for group in groups for rank in group]


PAIRS = stages(*NAMES)
"""Ranks 0 and 2 hold the same by these layouts, and 1 and 3."""


def test_lists_and_layouts_that_agree_are_both_used():
    claims = settle_claims(lists((0, 2), (1, 3)), SLICES, PAIRS)
    assert claims.stages is PAIRS
    assert claims.groups.of(0) == (0, 2)
    assert not claims.rejected_lists


def test_a_list_that_the_layouts_and_more_lists_contradict_is_not_used():
    told = [*lists((1, 3)), group_file(0, [0, 2, 4])]
    claims = settle_claims(told, SLICES, PAIRS)
    assert list(claims.rejected_lists) == ["ckpt_dir0/group_info.pb"]
    assert "ranks 0 and 4 hold the same slice by their rank lists" in claims.rejected_lists["ckpt_dir0/group_info.pb"]
    assert "and 2 rank lists or manifests" in claims.rejected_lists["ckpt_dir0/group_info.pb"]
    assert not claims.groups.knows(0)
    assert claims.stages is PAIRS


def test_layouts_that_as_many_lists_contradict_as_agree_are_not_used():
    claims = settle_claims([group_file(0, [0, 1]), group_file(3, [3])], SLICES, stages(*NAMES))
    assert claims.stages.contradicts == "strategy.ckpt"
    assert "ranks 0 and 1 hold the same slice" in claims.stages.problem
    assert claims.groups.of(0) == (0, 1)


def test_a_list_that_a_manifest_states_too_stands_against_the_layouts():
    alone = {name: Layout(name, (4,), ((0,),)) for name in NAMES}
    layouts = Stages(4, {0: alone}, {0: "strategy.ckpt"})
    told = [group_file(0, [0, 1]), *lists((2,), (3,))]
    assert settle_claims(told, SLICES, layouts).rejected_lists
    claims = settle_claims(told, [backed(SLICES[0], "a", group=(0, 1)), *SLICES[1:]], layouts)
    assert claims.stages.contradicts == "strategy.ckpt"
    assert claims.groups.of(0) == (0, 1)


@pytest.mark.parametrize("origin", ["saved", "recovered from rank 3 (ckpt_dir3/test-2_8.ckpt), by manifest"])
def test_manifests_of_training_and_recovery_outvote_lists(origin):
    alone = {name: Layout(name, (4,), ((0,),)) for name in NAMES}
    layouts = Stages(4, {0: alone}, {0: "strategy.ckpt"})
    stated = [backed(file, "a", group=(file.rank,), origin=origin) for file in SLICES]
    claims = settle_claims(lists((0, 1)), stated, layouts)
    assert len(claims.rejected_lists) == 2
    assert claims.stages is layouts
    sealed = [backed(file, "a", group=(file.rank,), origin="sealed, by vote") for file in SLICES]
    assert settle_claims(lists((0, 1)), sealed, layouts).stages.contradicts == "strategy.ckpt"


@pytest.mark.parametrize("many", [lists((2, 3), (0, 1)), lists((0, 1), (2, 3))])
def test_the_reason_does_not_depend_on_the_order_of_lists(many):
    assert "ranks 0 and 1 hold the same" in settle_claims(many, SLICES, PAIRS).stages.problem


@pytest.mark.parametrize(("named", "used"), [(NAMES, False), (NAMES[1:], True)])
def test_lists_of_fewer_ranks_contradict_layouts_that_leave_no_parameter_out(named, used):
    """A strategy file in which nothing is cut, beside the lists of ranks that are alone."""
    claims = settle_claims(lists((0,), (1,), (2,), (3,)), SLICES, stages(named=named))
    assert (claims.stages.contradicts is None) == used
    assert used or "hold different slices" in claims.stages.problem


def test_encrypted_slices_do_not_show_that_layouts_leave_nothing_out():
    slices = [slice_file(rank, names=()) for rank in range(4)]
    assert settle_claims(lists((0,), (1,), (2,), (3,)), slices, stages()).stages.contradicts is None


def test_the_manifest_of_a_slice_without_a_list_contradicts_no_layouts():
    slices = [backed(SLICES[0], "a", group=(0,)), *SLICES[1:]]
    claims = settle_claims([], slices, PAIRS)
    assert claims.stages is PAIRS
    assert not claims.rejected_lists


def test_a_list_over_two_stages_of_which_one_has_layouts_is_named():
    layouts = Stages(4, {1: PAIRS.layouts[0]}, {1: "strategy.ckpt"})
    claims = settle_claims([group_file(0, [0, 4])], SLICES, layouts)
    assert claims.stages.contradicts == "strategy.ckpt"
    assert "ranks 4 and 0 hold the same slice" in claims.stages.problem


def test_sealing_again_takes_no_weight_from_what_training_stated():
    """Slices of one rank may have a manifest of training at one step and a sealed one at another, in any order."""
    alone = {name: Layout(name, (4,), ((0,),)) for name in NAMES}
    layouts = Stages(4, {0: alone}, {0: "strategy.ckpt"})
    saved = [backed(file, "a", group=(file.rank,)) for file in SLICES]
    sealed = [backed(file, "a", group=(file.rank,), origin="sealed, by vote") for file in SLICES]
    for slices in ([*saved, *sealed], [*sealed, *saved]):
        assert settle_claims(lists((0, 1)), slices, layouts).rejected_lists


def test_a_list_that_manifests_of_its_ranks_contradict_is_not_used():
    sealed = [backed(one, "a", group=(one.rank % 2, one.rank % 2 + 2)) for one in SLICES]
    claims = settle_claims(lists((0, 1, 2, 3)), sealed, Stages())
    assert claims.groups.of(0) == (0, 2)
    assert set(claims.rejected_lists) == {f"ckpt_dir{rank}/group_info.pb" for rank in range(4)}
    assert "4 manifests of these name others" in claims.rejected_lists["ckpt_dir0/group_info.pb"]


def test_a_list_that_one_manifest_contradicts_is_used():
    one = backed(SLICES[0], "a", group=(0, 2))
    claims = settle_claims(lists((0, 1, 2, 3)), [one, *SLICES[1:]], Stages())
    assert claims.groups.of(0) == (0, 1, 2, 3)
