"""The parameters that a slice which is gone must have had."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import OrphanManifest
from ms_recover.model.slices import ParameterList
from ms_recover.planning.supply.expected_parameters import (
    LostNames,
    NotComposableError,
    expected_parameters,
    find_own_manifest,
    lost_lists,
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
