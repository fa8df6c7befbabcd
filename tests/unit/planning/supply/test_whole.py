"""Who gives which region of whole parameters, over all pipeline stages, or why nobody does."""

from dataclasses import replace

import pytest
from hypothesis import given as given_
from hypothesis import settings, strategies

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import OrphanManifest
from ms_recover.model.manifest import Digests, TrainingRecord
from ms_recover.model.strategy import Layout
from ms_recover.planning.judging.judgement import Judgement
from ms_recover.planning.supply.whole import WholeParameters
from tests.support.inventories import STEP
from tests.unit.planning.judging.test_votes import manifest
from tests.unit.planning.supply.test_parameters import (
    CUT,
    SHAPES,
    WHOLE,
    everyone,
    file_of,
    salvaged,
    supply_of_slices,
)

UPPER, LOWER, BOTH = ((0, 2), (0, 3)), ((2, 4), (0, 3)), ((0, 4), (0, 3))
"""Regions of ``w``: the rows of the first and the second rank of a stage, and all."""
FOUR = [replace(CUT, device_matrix=(2, 2)), replace(WHOLE, device_matrix=(2, 2))]
"""Layouts of one stage of four ranks: ``w`` is cut between the ranks 0 and 1, and 2 and 3 hold the same."""


def wholes(slices, layouts=(CUT, WHOLE), **how):
    return WholeParameters(supply_of_slices(slices, layouts, **how))


def values(slices, odd):
    """Return contents that are equal on ranks of the same place in their stage of two, but for the `odd` ones."""
    held = {}
    for one in slices:
        every = [(item.name, f"{item.name}:{one.rank % 2 if item.name == 'w' else ''}") for item in one.parameters]
        parts = tuple(odd.get((one.rank, name), usual) for name, usual in every)
        held[one.path] = Digests(" ".join(parts), parts)
    return Contents(held)


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


def left_by(rank, shapes=SHAPES, contents=None):
    """Return the manifest that the lost slice of a rank left, with contents by name."""
    gone = file_of(rank, shapes)
    parts = tuple((contents or {}).get(item.name, item.name) for item in gone.parameters)
    stated = manifest(gone, world_size=4, digests=Digests("gone", parts))
    return OrphanManifest(rank=rank, step=STEP, place=gone.place, prefix=gone.prefix, manifest=stated)


def test_a_parameter_that_lost_slices_alone_listed_is_lost_with_its_whole_shape():
    """Of the second stage nothing is left but the manifest of a slice with a cut parameter, and one without layout."""
    head = Layout("head", (2,), ((0,),))
    shapes = {"head": (3,), "extra": (2, 2), "empty": (0, 2)}
    found = wholes(everyone(2, 3), {0: (CUT, WHOLE), 1: (head,)}, orphans=[left_by(2, shapes)]).parameters()
    whole = found["head"]
    assert (whole.shape, whole.item_size, lost(whole), whole.known) == ((6,), 1, [(((0, 6),), 6)], True)
    extra = found["extra"]
    assert (extra.shape, extra.item_size, lost(extra), extra.known) == ((2, 2), 1, [(((0, 2), (0, 2)), 4)], False)
    assert (extra.cut, extra.stages, whole.cut, whole.stages) == (False, {1}, True, frozenset())
    assert found["empty"].shape == (0, 2)
    for name in shapes:
        assert [gone.reason for gone in found[name].missing] == ["no sound slice has it"]
        assert (found[name].regions, found[name].own) == ((), False)


def test_a_layout_that_no_slice_and_no_list_mentions_names_no_parameter():
    more = Layout("unsaved", (2,), ((0,),))
    assert "unsaved" not in wholes(everyone(), (CUT, WHOLE, more)).parameters()


def test_a_parameter_whose_rows_are_spread_unevenly_is_not_put_together():
    field = replace(FOUR[0], field=4)
    found = wholes(everyone(), (field, FOUR[1]), stages=(0,)).parameters()["w"]
    assert (found.regions, found.known) == ((), False)
    assert found.missing[0].reason == "its layout in ckpt_dir0/strategy.ckpt does not fit the slices"


def test_of_two_stages_the_one_whose_whole_is_known_gives_it():
    odd = Layout("w", (2,), ((0,),))
    for first, other, holders in ((CUT, odd, (0, 1)), (odd, CUT, (2, 3))):
        found = wholes(everyone(), {0: (first, WHOLE), 1: (other, WHOLE)}).parameters()["w"]
        assert (given(found), found.known) == ({UPPER: holders[:1], LOWER: holders[1:]}, True)
        assert found.stages == {0, 1}


def test_a_sound_slice_goes_before_one_of_which_some_parameters_are_good():
    found = wholes(everyone(), FOUR, stages=(0,), judgements=salvaged("w")).parameters()["w"]
    assert given(found) == {UPPER: (2, 0), LOWER: (1, 3)}


def test_parameters_that_are_cut_and_held_alike_share_their_regions():
    shapes = {**SHAPES, "v": (2, 3)}
    layouts = [*FOUR, replace(FOUR[0], parameter="v")]
    found = wholes(everyone(shapes=shapes), layouts, stages=(0,)).parameters()
    assert found["v"].regions is found["w"].regions
    less = wholes(everyone(shapes=shapes), layouts, stages=(0,), judgements=salvaged("w")).parameters()
    assert given(less["w"]) == {UPPER: (2, 0), LOWER: (1, 3)}
    assert given(less["v"]) == {UPPER: (2,), LOWER: (1, 3)}


@pytest.mark.parametrize(
    ("odd", "regions", "dispute"),
    [
        ({(2, "w"): "x", (3, "w"): "y"}, {}, "'w': by the layouts in ckpt_dir0/strategy.ckpt ranks "),
        ({(2, "w"): "x"}, {LOWER: (1, 3)}, "'w': rank 0 and rank 2 hold different contents, and nothing settles who "),
    ],
    ids=["in every part", "in one part"],
)
def test_sound_slices_that_differ_with_nothing_to_settle_it_are_a_dispute(odd, regions, dispute):
    slices = everyone()
    sound = [(one.path, Judgement(status="sound", reason="")) for one in slices]
    found = wholes(slices, FOUR, stages=(0,), known=values(slices, odd), judgements=sound)
    whole = found.parameters()["w"]
    assert (given(whole), whole.own) == (regions, False)
    assert [text[: len(dispute)] for text in found.disputes] == [dispute]


def test_what_lost_slices_stated_otherwise_is_not_given_by_those_that_are_left():
    slices = everyone(2)
    same = left_by(2, contents={"w": "w:0", "bias": "bias:", "local": "local:"})
    other = left_by(2, contents={"w": "odd", "bias": "odd", "local": "odd"})
    known = values(slices, {})
    found = wholes(slices, FOUR, stages=(0,), known=known, orphans=[same]).parameters()
    assert given(found["w"]) == {UPPER: (0,), LOWER: (1, 3)}
    assert given(found["local"]) == {((0, 5),): (0, 1, 3)}
    found = wholes(slices, FOUR, stages=(0,), known=known, orphans=[other]).parameters()
    assert (given(found["w"]), lost(found["w"])) == ({LOWER: (1, 3)}, [(UPPER, 6)])
    for name in ("w", "bias", "local"):
        assert found[name].missing[0].reason == (
            "rank 0 holds other contents of it than the manifest states that the slice of rank 2 left"
        )
    free = wholes(slices, FOUR, stages=(0,), known=known, tolerate=("w", "bias", "local"), orphans=[other]).parameters()
    assert given(free["w"]) == {UPPER: (0,), LOWER: (1, 3)}


def test_a_lost_slice_contradicts_its_own_stage_alone_unless_there_is_no_layout():
    slices = everyone(2)
    odd = left_by(2, contents={"w": "odd", "bias": "odd", "local": "odd"})
    found = wholes(slices, known=values(slices, {}), orphans=[odd]).parameters()
    assert given(found["w"]) == {UPPER: (0,), LOWER: (1,)}
    assert given(found["bias"]) == {((0, 3),): (0, 1)}
    assert found["local"].regions == ()


def test_a_parameter_is_the_own_value_of_each_rank_only_where_the_values_differ():
    """Both ``w``, which layouts cut, and ``local`` may differ; each holder of a differing ``local`` is named."""
    slices = everyone()
    odd = {(2, "w"): "odd", (1, "local"): "odd"}
    found = wholes(slices, FOUR, stages=(0,), known=values(slices, odd), tolerate=("w", "local")).parameters()
    assert (found["w"].own, found["local"].own, found["bias"].own) == (True, True, False)
    assert given(found["w"]) == {UPPER: (0, 2), LOWER: (1, 3)}
    five = [file_of(rank, {"bias": (6,), "local": (5,)}) for rank in range(6)]
    layout = replace(WHOLE, device_matrix=(6,))
    for value, own, holders in (("odd", True, range(6)), ("local:", False, range(4))):
        known = values(five, {(1, "local"): value})
        made = wholes(five, [layout], stages=(0,), world=6, known=known, tolerate=("local",)).parameters()["local"]
        assert (made.own, given(made)) == (own, {((0, 5),): tuple(holders)})
    alike = wholes(slices, FOUR, stages=(0,), known=values(slices, {}), tolerate=("w", "local")).parameters()
    assert (alike["w"].own, alike["local"].own) == (False, False)


def test_without_a_strategy_file_a_parameter_is_whole_where_a_rank_list_names_the_whole_stage():
    """Of a world of one rank the slice is all there is."""
    slices = everyone()
    every = {rank: range(4) for rank in range(4)}
    found = wholes(slices, stages=(), known=values(slices, {(rank, "w"): "w" for rank in range(4)}), lists=every)
    assert given(found.parameters()["w"]) == {UPPER: (0, 1, 2, 3)}
    pairs = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}
    some = wholes(slices, stages=(), lists=pairs).parameters()["local"]
    assert (some.regions, some.missing[0].reason) == ((), "no strategy file states how parameters are cut")
    alone = wholes([file_of(0, SHAPES)], stages=(), world=1).parameters()["local"]
    assert given(alone) == {((0, 5),): (0,)}


def test_a_parameter_without_layout_that_one_stage_shows_whole_is_whole_in_another():
    """Of the second stage one rank alone has it."""
    slices = [*everyone(3)]
    found = wholes(slices, known=values(slices, {})).parameters()["local"]
    assert given(found) == {((0, 5),): (0, 1, 2)}


def test_what_an_encrypted_or_a_lost_slice_listed_alone_is_not_known():
    """Of four ranks that hold nothing alike, one slice is encrypted or lost, and nothing states its list."""
    sealed = file_of(2, {}, encryption="AES-GCM")
    gone = wholes([*everyone(2, 3), sealed]).parameters()["bias"]
    assert {whole.name for whole in wholes([*everyone(2, 3), sealed]).parameters().values()} >= set(SHAPES)
    assert gone.stages == {0}
    more = Layout("head", (2,), ((0,),))
    layouts = {0: (CUT, WHOLE), 1: (more,)}
    found = wholes([*everyone(2, 3), sealed], layouts).parameters()["head"]
    assert [one.reason for one in found.missing] == [
        "the slice of rank 2 is encrypted, and such slices are not cut anew"
    ]
    found = wholes([*everyone(2, 3), sealed], layouts, lost=frozenset({2})).parameters()["head"]
    assert [one.reason for one in found.missing] == ["nothing states what the lost slice of rank 2 held"]


def test_no_stage_is_lost_where_stages_are_not_known_but_lists_may_be():
    assert wholes(everyone(), stages=()).lost_stages() == []
    (gone,) = wholes([], stages=(), lists={0: [0, 1]}).lost_stages()
    assert (gone.parameter, gone.reason) == (
        "every parameter of stage 0",
        "nothing states what the lost slice of rank 0 held",
    )


def test_what_was_dealt_to_a_lost_slice_alone_is_lost_and_the_rest_is_not():
    """Both ranks hold the same of ``bias`` and ``head``; the first listed one of them, the second is lost."""
    layouts = [WHOLE, replace(WHOLE, parameter="head")]
    supply = supply_of_slices([file_of(0, {"bias": (3,)})], layouts, stages=(0,), world=2)
    structure = replace(supply.judgement.structure, deduplicated={STEP: "dealt out"})
    dealt = WholeParameters(replace(supply, judgement=replace(supply.judgement, structure=structure))).parameters()
    assert set(dealt) == {"bias", "head"}
    assert dealt["head"].missing[0].reason.startswith("ckpt_dir0/strategy.ckpt names it and no slice lists it")
    assert given(dealt["bias"]) == {((0, 3),): (0,)}
    full = WholeParameters(supply).parameters()
    assert set(full) == {"bias"}


@settings(max_examples=100, deadline=None)
@given_(strategies.lists(strategies.booleans(), min_size=17, max_size=17))
def test_every_parameter_that_a_sound_slice_lists_is_given_or_said_to_be_lost(drawn):
    """Which of four parameters a stage lists, which its layouts name, and of which stages the file survived."""
    names, choices = ("w1", "w2", "w3", "global_step"), iter(drawn)
    listed = {stage: [name for name in names[:3] if next(choices)] + ["global_step"] for stage in (0, 1)}
    named = {stage: [name for name in names[:3] if next(choices)] for stage in (0, 1)}
    survived = [stage for stage in (0, 1) if next(choices) and named[stage]]
    gone = [rank for rank in range(3) if next(choices)]
    slices = [file_of(rank, dict.fromkeys(listed[rank // 2], (2, 3))) for rank in range(4) if rank not in gone]
    layouts = {stage: [replace(CUT, parameter=name) for name in named[stage]] for stage in survived}
    found = wholes(slices, layouts, stages=survived)
    parameters = found.parameters()
    for rank in found.index.slices:
        for name in listed[rank // 2]:
            assert given(parameters[name]) or parameters[name].missing


def test_a_parameter_that_the_layouts_of_another_stage_alone_name_is_said_to_be_lost():
    """Strategy files may name the parameters of all stages; that of the second one is lost."""
    head = replace(CUT, parameter="head")
    slices = [*everyone(2, 3), *(file_of(rank, {**SHAPES, "head": (2, 3)}) for rank in (2, 3))]
    found = wholes(slices, (CUT, WHOLE, head), stages=(0,)).parameters()["head"]
    assert (found.regions, found.known, found.stages) == ((), False, {1})
    assert [gone.reason for gone in found.missing] == ["no strategy file of its stage (ranks 2 to 3) survived"]


def test_a_stage_that_has_no_file_of_this_part_is_not_lost():
    supply = supply_of_slices(everyone(2, 3), stages=(0,))
    lists = {rank: slice_.listed for rank, slice_ in supply.index.slices.items()}
    inventory = supply.facts.inventory
    for expected, gone in ((lists, []), ({**lists, 2: lists[0]}, ["every parameter of stage 1"])):
        part = replace(inventory.part, expected={STEP: expected})
        facts = replace(supply.facts, inventory=replace(inventory, part=part))
        stages = WholeParameters(replace(supply, facts=facts)).lost_stages()
        assert [one.parameter for one in stages] == gone


def test_a_lost_parameter_whose_layout_fits_no_list_has_the_part_that_was_listed():
    head = Layout("head", (2,), ((0,), ()))
    found = wholes(everyone(2, 3), {0: (CUT, WHOLE), 1: (head,)}, orphans=[left_by(2, {"head": (3,)})])
    whole = found.parameters()["head"]
    assert (whole.shape, whole.known, lost(whole)) == ((3,), False, [(((0, 3),), 3)])


def test_nothing_large_is_whole_where_the_strategy_file_is_refuted_or_of_another_network():
    few = wholes(everyone(), FOUR[1:], stages=(0,))
    refuted = wholes(everyone(), FOUR, stages=(0,))
    path = "ckpt_dir0/strategy.ckpt"
    judgement = replace(refuted.supply.judgement, refuted={path: "it is wrong"})
    refuted = WholeParameters(replace(refuted.supply, judgement=judgement))
    few_reason = f"{path} names too few of the parameters of its slices to be of the same network"
    for found, reason, disputes in ((few, few_reason, []), (refuted, "it is wrong", ["it is wrong"])):
        parameters = found.parameters()
        for name in ("w", "bias", "local"):
            assert [gone.reason for gone in parameters[name].missing] == [reason]
            assert parameters[name].regions == ()
        assert not parameters["local"].cut
        assert given(parameters["rate"]) == {((0, 1),): (0, 1, 2, 3)}
        assert found.disputes == disputes


def test_a_rank_local_parameter_with_equal_values_is_no_rank_s_own():
    own = TrainingRecord(1, rank_local=("w",))
    slices = [*everyone(2), file_of(2, {**SHAPES, "w": (2, 2)})]
    pairs = {one.rank: (one.rank % 2, one.rank % 2 + 2) for one in slices}
    told = {one.rank: manifest(one, "abcde", world_size=4, group=pairs[one.rank], training=own) for one in slices}
    slices = [replace(one, manifest=told[one.rank]) for one in slices]
    sound = [(one.path, Judgement(status="sound", reason="")) for one in slices]
    found = wholes(slices, FOUR, stages=(0,), judgements=sound).parameters()["w"]
    assert (given(found), found.own) == ({UPPER: (0,), LOWER: (1, 3)}, False)


@pytest.mark.parametrize("lost", [(), (5, 7)], ids=["nothing lost", "a half lost"])
def test_regions_of_two_stages_overlap_where_they_share_something_and_differ(lost):
    """The first stage of four ranks cuts the rows into four, the second into two, of which one may be lost."""
    files = {0: [Layout("w", (4,), ((0,), ()))], 1: [Layout("w", (2, 2), ((0,), ()))]}
    slices = [file_of(rank, {"w": (1 if rank < 4 else 2, 3)}) for rank in range(8) if rank not in lost]
    found = wholes(slices, files, world=8, devices=4).parameters()["w"]
    rows = [(pair.one.box[0], pair.other.box[0]) for pair in found.overlaps]
    assert rows == [((0, 1), (0, 2)), ((1, 2), (0, 2)), ((2, 3), (2, 4)), ((3, 4), (2, 4))][: 2 if lost else 4]
