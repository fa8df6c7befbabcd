"""Who gives which region of whole parameters, over all pipeline stages, or why nobody does."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.manifest import Digests
from ms_recover.model.strategy import Layout
from ms_recover.planning.supply.whole import WholeParameters
from tests.unit.planning.supply.test_parameters import CUT, SHAPES, WHOLE, everyone, file_of, supply_of_slices

UPPER, LOWER, BOTH = ((0, 2), (0, 3)), ((2, 4), (0, 3)), ((0, 4), (0, 3))
"""Regions of ``w``: the rows of the first and the second rank of a stage, and all."""
FOUR = [replace(CUT, device_matrix=(2, 2)), replace(WHOLE, device_matrix=(2, 2))]
"""Layouts of one stage of four ranks: ``w`` is cut between the ranks 0 and 1, and 2 and 3 hold the same."""


def wholes(slices, layouts=(CUT, WHOLE), **how):
    return WholeParameters(supply_of_slices(slices, layouts, **how))


def values(slices, odd):
    """Return contents that are equal on ranks of the same place in their stage of two, but for the `odd` ones."""
    return Contents(
        {
            one.path: Digests(
                f"file:{one.path}",
                tuple(
                    odd.get((one.rank, item.name), f"{item.name}:{one.rank % 2 if item.name == 'w' else ''}")
                    for item in one.parameters
                ),
            )
            for one in slices
        }
    )


def given(whole):
    return {region.box: region.holders for region in whole.regions}


def lost(whole):
    return [(gone.region, gone.bytes) for gone in whole.missing]


def test_regions_come_from_the_ranks_that_hold_them():
    found = wholes(everyone(), FOUR, stages=(0,)).parameters()
    assert list(found) == list(SHAPES)
    assert (found["w"].shape, given(found["w"])) == ((4, 3), {UPPER: (0, 2), LOWER: (1, 3)})
    assert (found["bias"].shape, given(found["bias"])) == ((3,), {((0, 3),): (0, 1, 2, 3)})
    assert [found[name].cut for name in SHAPES] == [True, True, False, False, False]


def test_a_region_that_one_stage_lost_comes_from_another_that_holds_the_same():
    found = wholes(everyone(1)).parameters()["w"]
    assert given(found) == {UPPER: (0,), LOWER: (3,)}
    assert (found.missing, found.stages) == ((), {0, 1})


def test_a_region_that_all_stages_lost_is_missing():
    found = wholes(everyone(1, 3)).parameters()["w"]
    assert (given(found), lost(found)) == ({UPPER: (0,)}, [(LOWER, 6)])
    assert found.missing[0].reason == "no sound slice has it"
    assert found.known


def test_what_another_stage_holds_of_a_missing_region_is_taken_and_the_rest_is_missing():
    """The second stage cuts columns; of each stage the second rank is lost."""
    columns = replace(CUT, tensor_map=((), (0,)))
    slices = [file_of(0, {**SHAPES, "w": (2, 4)}), file_of(2, {**SHAPES, "w": (4, 2)})]
    found = wholes(slices, {0: (CUT, WHOLE), 1: (columns, WHOLE)}).parameters()["w"]
    upper, left, rest = ((0, 2), (0, 4)), ((0, 4), (0, 2)), ((2, 4), (2, 4))
    assert given(found) == {upper: (0,), left: (2,)}
    assert lost(found) == [(rest, 4)]
    assert [(pair.one.box, pair.other.box) for pair in found.overlaps] == [(upper, left)]


def test_stages_that_list_it_with_different_shapes_give_nothing():
    narrow = [file_of(rank, {**SHAPES, "w": (2, 2)}) for rank in (2, 3)]
    found = wholes([*everyone(2, 3), *narrow]).parameters()["w"]
    assert lost(found) == [((), 0)]
    assert found.missing[0].reason == "pipeline stages list it as Int8 [4, 3] and Int8 [4, 2]"


def test_a_stage_that_holds_all_of_it_is_only_compared_with_one_that_cuts_it():
    whole = replace(CUT, tensor_map=((), ()))
    slices = [*everyone(2, 3), *(file_of(rank, {**SHAPES, "w": (4, 3)}) for rank in (2, 3))]
    found = wholes(slices, {0: (CUT, WHOLE), 1: (whole, WHOLE)}).parameters()["w"]
    assert given(found) == {UPPER: (0,), LOWER: (1,)}
    assert [(pair.one.box, pair.other.box) for pair in found.overlaps] == [(UPPER, BOTH), (LOWER, BOTH)]


def test_stages_that_hold_different_contents_of_a_region_are_a_dispute():
    slices = everyone()
    found = wholes(slices, known=values(slices, {(3, "w"): "other"}))
    whole = found.parameters()["w"]
    assert (given(whole), lost(whole), whole.known) == ({}, [(BOTH, 12)], False)
    assert found.disputes == ["'w': pipeline stages hold different contents of it, and nothing settles which is right"]


@pytest.mark.parametrize(("odd", "missing"), [({}, []), ({(2, "w"): "odd"}, [(UPPER, 6)])], ids=["alike", "differ"])
def test_replicas_of_a_region_that_differ_give_nothing(odd, missing):
    slices = everyone()
    found = wholes(slices, FOUR, stages=(0,), known=values(slices, odd)).parameters()["w"]
    assert given(found) == ({LOWER: (1, 3)} if missing else {UPPER: (0, 2), LOWER: (1, 3)})
    assert lost(found) == missing


def test_of_slices_that_list_it_differently_each_region_is_settled_for_itself():
    """Rank 2 lists a narrower part, so that rank 0 alone has these rows."""
    slices = [*everyone(2), file_of(2, {**SHAPES, "w": (2, 2)})]
    found = wholes(slices, FOUR, stages=(0,)).parameters()["w"]
    assert given(found) == {UPPER: (0,), LOWER: (1, 3)}


def test_a_layout_that_does_not_fit_the_slices_gives_nothing():
    found = wholes(everyone(), [Layout("w", (3,), ((0,), ())), WHOLE], stages=(0,)).parameters()["w"]
    assert (found.regions, found.known) == ((), False)


def test_a_parameter_without_layout_is_whole_where_all_of_its_stage_hold_the_same():
    slices = everyone()
    found = wholes(slices, known=values(slices, {})).parameters()["local"]
    assert (given(found), found.cut, found.own) == ({((0, 5),): (0, 1, 2, 3)}, False, False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, "no layout states how it is cut, and it differs from rank to rank"),
        ({"local": (6,)}, "no layout states how it is cut, and slices list it as Int8 [5] and Int8 [6]"),
    ],
    ids=["contents", "shapes"],
)
def test_a_parameter_without_layout_that_differs_is_not_whole(change, reason):
    slices = [*everyone(3), file_of(3, {**SHAPES, **change})]
    odd = {} if change else {(3, "local"): "odd"}
    found = wholes(slices, known=values(slices, odd)).parameters()["local"]
    assert (found.regions, found.known, found.stages) == ((), False, {0, 1})
    assert [(gone.region, gone.bytes, gone.reason) for gone in found.missing] == [(((0, 5),), 5, reason)]


def test_a_parameter_without_layout_of_one_rank_of_a_stage_may_be_a_part_of_its_own():
    found = wholes(everyone(1, 3)).parameters()
    assert found["local"].regions == ()
    assert "it may be a part of their own" in found["local"].missing[0].reason
    assert given(found["global_step"]) == {(): (0, 2)}
    assert given(found["rate"]) == {((0, 1),): (0, 2)}


def test_where_a_stage_has_no_strategy_file_counters_alone_are_whole_without_layout():
    found = wholes(everyone(), stages=(0,)).parameters()
    assert "no strategy file of its stage (ranks 2 to 3) survived" in found["local"].missing[0].reason
    assert given(found["rate"]) == {((0, 1),): (0, 1, 2, 3)}


def test_sound_slices_go_before_damaged_ones_and_four_are_named():
    slices = [replace(one, problem="cut off") if one.rank == 0 else one for one in everyone()]
    found = wholes(slices, FOUR, stages=(0,)).parameters()["w"]
    assert given(found) == {UPPER: (2,), LOWER: (1, 3)}


@pytest.mark.parametrize(
    ("stages", "missing"), [((0, 1), []), ((0,), ["every parameter of stage 1"])], ids=["known", "unknown"]
)
def test_a_stage_without_slices_and_strategy_file_is_lost(stages, missing):
    assert [gone.parameter for gone in wholes(everyone(2, 3), stages=stages).lost_stages()] == missing


def test_a_parameter_that_no_slice_lists_any_more_is_lost_by_its_layouts():
    """Of the second stage a layout names a parameter that the slices of the first do not list."""
    more = Layout("head", (2,), ((0,),))
    found = wholes(everyone(2, 3), {0: (CUT, WHOLE), 1: (CUT, WHOLE, more)}).parameters()["head"]
    assert (found.regions, found.known) == ((), False)
    assert [gone.reason for gone in found.missing] == ["nothing states what the lost slice of rank 2 held"]
