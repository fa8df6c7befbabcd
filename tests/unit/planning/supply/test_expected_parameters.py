"""The parameters that a slice which is gone must have had."""

from dataclasses import replace

import pytest
from hypothesis import given, strategies

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import OrphanManifest
from ms_recover.model.manifest import Digests
from ms_recover.model.slices import ParameterList
from ms_recover.planning.supply.expected_parameters import (
    LostNames,
    NotComposableError,
    expected_parameters,
    find_own_manifest,
    lost_lists,
    merge_orders,
    other_contents,
    stated_contents,
    stated_parameters,
)
from tests.support.inventories import OLDER, STEP, slice_file
from tests.unit.planning.judging.test_votes import manifest
from tests.unit.planning.supply.test_parameters import CUT, SHAPES, WHOLE, everyone, file_of, index_of, of, salvaged


def orphan(rank, /, **changes):
    """Return the manifest of a slice that is gone."""
    gone = file_of(rank, SHAPES)
    told = manifest(gone, "abcde", **changes)
    return OrphanManifest(rank=rank, step=gone.step, place=gone.place, prefix=gone.prefix, manifest=told)


def test_the_manifest_that_a_slice_left_states_its_parameters():
    index = index_of(everyone(0, 1), orphans=[orphan(0)])
    assert [one.name for one in expected_parameters(index, 0)] == list(SHAPES)
    with pytest.raises(NotComposableError, match="no rank of its stage has a sound slice"):
        expected_parameters(index, 1)


@pytest.mark.parametrize("changes", [{"rank": 1}, {"step": type(STEP)(9, 9)}])
def test_a_manifest_of_another_rank_or_step_states_nothing(changes):
    with pytest.raises(NotComposableError):
        expected_parameters(index_of(everyone(0, 1), orphans=[orphan(0, **changes)]), 0)


@pytest.mark.parametrize(("short", "listed"), [((3,), True), ((1, 3), True), ((1, 2, 3), False)])
def test_a_parameter_without_a_layout_is_not_dealt_out(short, listed):
    """Two damaged slices that lack a batch statistic must not take it from the lost one."""
    less = {name: shape for name, shape in SHAPES.items() if name != "local"}
    layouts = [
        replace(layout, device_matrix=(5,), tensor_map=((),) * len(SHAPES[layout.parameter])) for layout in (CUT, WHOLE)
    ]
    slices = [file_of(rank, less if rank in short else SHAPES) for rank in range(1, 5)]
    index = index_of(slices, layouts, stages=(0,), world=5)
    assert ("local" in [one.name for one in expected_parameters(index, 0)]) == listed


DEALT = {"w": (2, 3), "global_step": ()}
REST = {"bias": (3,), "global_step": ()}


def whole_layouts():
    """Return layouts by which both ranks of a stage hold all of "w" and "bias"."""
    return [replace(one, tensor_map=((),) * len(SHAPES[one.parameter])) for one in (CUT, WHOLE)]


def short_list(rank, shapes=SHAPES, problem="the file ends too early"):
    """Return a damaged slice with its first parameter alone, or those that are given."""
    return replace(file_of(rank, shapes), problem=problem)


def test_one_sound_slice_states_the_lists_of_its_stage():
    lost = lost_lists(index_of(everyone(0)))
    assert (dict(lost.listed), dict(lost.unknown)) == ({}, {})


def test_a_stage_without_a_slice_is_known_by_the_manifest_that_one_left():
    lost = lost_lists(index_of(everyone(0, 1), orphans=[orphan(0)]))
    assert [one.name for one in lost.listed[0]] == list(SHAPES)
    assert dict(lost.unknown) == {0: 1}


def test_of_a_damaged_slice_the_list_is_a_part_of_it():
    """It names what it shows, and more may have been there."""
    lost = lost_lists(index_of([short_list(0, {"w": (2, 3)}), *everyone(0, 1)]))
    assert [one.name for one in lost.listed[0]] == ["w"]
    assert dict(lost.unknown) == {0: 0}


def test_of_a_rank_that_is_declared_lost_nothing_is_known():
    index = index_of([short_list(0), *everyone(0, 1)])
    assert 0 in lost_lists(index).listed
    facts = replace(index.facts, options=replace(index.facts.options, lost=frozenset({0})))
    index.facts = facts
    assert 0 not in lost_lists(index).listed


def test_where_parameters_were_dealt_out_each_lost_list_counts():
    index = index_of([file_of(0, DEALT), short_list(1, {"global_step": ()}), *everyone(0, 1)], whole_layouts())
    structure = replace(index.judgement.structure, deduplicated={STEP: "dealt out"})
    index.judgement = replace(index.judgement, structure=structure)
    lost = lost_lists(index)
    assert {rank: [one.name for one in listed] for rank, listed in lost.listed.items()} == {1: ["global_step"]}
    assert dict(lost.unknown) == {0: 1}


@pytest.mark.parametrize(
    ("changes", "run", "stated"),
    [
        ({}, None, True),
        ({}, "run", True),
        ({}, "old", False),
        ({"problem": "cut"}, None, False),
        ({"prefix": "other"}, None, False),
        ({"encryption": "AES-GCM"}, None, False),
    ],
)
def test_its_own_sound_slice_of_another_step_of_the_run_states_its_parameters(changes, run, stated):
    own = replace(file_of(0, SHAPES), step=OLDER, place=slice_file(0, OLDER).place, **changes)
    if run is not None:
        own = replace(own, manifest=manifest(own, "abcde", world_size=4, run_id=run, group=(0,)))
    others = [replace(one, manifest=manifest(one, "abcde", world_size=4)) for one in everyone(0, 1)]
    index = index_of([own, *(others if run is not None else everyone(0, 1))])
    found = stated_parameters(index, 0)
    assert found == (own.parameters if stated else None)


def test_a_complete_slice_has_what_documents_state_of_any_rank_of_its_stage():
    index = index_of(everyone(), whole_layouts())
    lists = {0: ParameterList((of("w"), of("rate"))), 1: ParameterList((of("bias"), of("rate")))}
    part = replace(index.facts.inventory.part, expected={STEP: lists})
    index.facts = replace(index.facts, inventory=replace(index.facts.inventory, part=part))
    assert [one.name for one in expected_parameters(index, 0)] == ["w", "rate"]
    assert {one.name for one in expected_parameters(index, 0, complete=True)} == {"w", "bias", "rate"}


def test_a_slice_that_gives_some_parameters_states_the_list_of_its_stage():
    index = index_of(everyone(1), judgements=salvaged("w"))
    assert dict(lost_lists(index).unknown) == {}


def test_the_slice_of_another_step_of_a_rank_that_is_declared_lost_states_nothing():
    index = index_of([*everyone(0), replace(everyone()[0], step=OLDER, place=slice_file(0, OLDER).place)])
    assert [one.name for one in stated_parameters(index, 0)] == list(SHAPES)
    index.facts = replace(index.facts, options=replace(index.facts.options, lost=frozenset({0})))
    assert stated_parameters(index, 0) is None


@pytest.mark.parametrize(
    ("left", "lost", "whole", "dealt"),
    [
        ((), ["w2"], ["w2"], True),
        (("w2",), [], ["w2"], True),
        (("w1",), ["w2"], ["w2"], True),
        (("w2",), [], [], False),
    ],
    ids=["nothing left", "another left a list with it", "another left a list without it", "nothing was dealt out"],
)
def test_what_no_slice_lists_was_dealt_to_a_lost_one_of_which_nothing_states_another_list(left, lost, whole, dealt):
    """Of one stage of four ranks that all hold the same ``w1`` and ``w2``; the ranks 0 and 1 are lost."""
    layouts = [replace(WHOLE, parameter=name, device_matrix=(4,)) for name in ("w1", "w2")]
    shape = SHAPES[WHOLE.parameter]
    there = [file_of(2, {"w1": shape}), file_of(3, {"global_step": ()})]
    gone = file_of(1, dict.fromkeys(left, shape))
    stated = OrphanManifest(rank=1, step=STEP, place=gone.place, prefix=gone.prefix, manifest=manifest(gone))
    index = index_of(there, layouts, stages=(0,), orphans=[stated] if left else [])
    structure = replace(index.judgement.structure, deduplicated={STEP: "dealt out"} if dealt else {})
    index.judgement = replace(index.judgement, structure=structure)
    found = LostNames(index)
    assert [(one.parameter, one.bytes) for one in found.of(0)] == [(name, 0) for name in lost]
    assert [one.parameter for one in found.of(0, complete=True)] == whole
    assert found.is_guessed(0) is dealt
    assert not found.is_guessed(1) or not left


def test_the_manifest_that_a_slice_left_is_that_of_the_rank_unless_it_is_declared_lost():
    index = index_of(everyone(0), orphans=[orphan(0)])
    assert find_own_manifest(index.facts, index.judgement, 0) == orphan(0).manifest
    assert find_own_manifest(index.facts, index.judgement, 1) is None
    facts = replace(index.facts, options=replace(index.facts.options, lost=frozenset({0})))
    assert find_own_manifest(facts, index.judgement, 0) is None


@given(strategies.permutations(range(6)), strategies.lists(strategies.sets(strategies.integers(0, 5)), max_size=4))
def test_lists_that_are_parts_of_one_order_are_merged_into_it(order, chosen):
    parts = [[f"p{place}" for place in order if place in part] for part in chosen]
    merged = merge_orders(parts)
    assert sorted(merged) == sorted({name for part in parts for name in part})
    for part in parts:
        assert [name for name in merged if name in part] == part
    every = [f"p{place}" for place in order]
    assert merge_orders([*parts, every]) == every


def test_what_the_first_list_leaves_open_goes_as_it_says():
    assert merge_orders([["a", "c"], ["b", "c"]]) == ["a", "b", "c"]
    assert merge_orders([["a", "b"], ["b", "a"]]) == ["a", "b"]
    assert merge_orders([]) == []


@pytest.mark.parametrize(("run", "stated"), [("run", True), ("old", False)])
def test_the_manifest_of_a_lost_slice_of_another_run_states_nothing(run, stated):
    others = [replace(one, manifest=manifest(one, "abcde", world_size=4)) for one in everyone(0, 1)]
    index = index_of(others, orphans=[orphan(0, run_id=run)])
    assert (stated_parameters(index, 0) is not None) == stated


def test_a_rank_that_has_no_shard_lost_nothing():
    index = index_of(everyone(0, 1))
    lists = dict.fromkeys((0, 2, 3), index.slices[2].listed)
    part = replace(index.facts.inventory.part, expected={STEP: lists})
    index.facts = replace(index.facts, inventory=replace(index.facts.inventory, part=part))
    lost = lost_lists(index)
    assert (set(lost.listed), dict(lost.unknown)) == ({0}, {})


def test_the_manifest_of_a_damaged_slice_states_what_it_held_and_that_of_a_sound_one_nothing():
    slices = [replace(one, manifest=manifest(one, "abcde", world_size=4)) for one in everyone()]
    odd = {slices[0].path: Digests("other", ("x",) * 5), slices[1].path: slices[1].manifest.digests}
    index = index_of(slices, known=Contents(odd))
    found = find_own_manifest(index.facts, index.judgement, 0)
    assert found == slices[0].manifest
    assert find_own_manifest(index.facts, index.judgement, 1) is None
    assert stated_contents(found)["w"] == "p:a"
    assert stated_contents(replace(found, digests=Digests("file", ()))) == {}
    assert stated_contents(None) == {}
    source = index.slices[1]
    other = replace(found, digests=Digests("f", ("x", "p:b", "x", "p:d", "p:e")))
    assert other_contents(other, source, ()) == ("w", "local")
    assert other_contents(other, source, ("w",)) == ("local",)
    assert other_contents(found, source, ()) == ()
    assert other_contents(None, source, ()) == ()


def test_what_another_stage_lists_was_dealt_to_no_lost_slice():
    """The layouts of each stage name the parameters of both; rank 1 is lost."""
    layouts = [replace(WHOLE, parameter=name) for name in ("here", "there", "nowhere")]
    shape = SHAPES[WHOLE.parameter]
    slices = [file_of(0, {"here": shape}), *(file_of(rank, {"there": shape}) for rank in (2, 3))]
    index = index_of(slices, layouts)
    structure = replace(index.judgement.structure, deduplicated={STEP: "dealt out"})
    index.judgement = replace(index.judgement, structure=structure)
    assert [one.parameter for one in LostNames(index).of(1)] == ["nowhere"]
