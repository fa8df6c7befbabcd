"""The parameters that a slice which is gone must have had."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import OrphanManifest
from ms_recover.planning.sourcing.expected_parameters import (
    NotComposableError,
    expected_parameters,
    stated_parameters,
)
from tests.support.inventories import OLDER, STEP, slice_file
from tests.unit.planning.judging.test_votes import manifest
from tests.unit.planning.sourcing.test_parameters import CUT, SHAPES, WHOLE, everyone, file_of, index_of


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


@pytest.mark.parametrize(
    ("changes", "run", "stated"),
    [
        ({}, None, True),
        ({}, "run", True),
        ({}, "old", False),
        ({"problem": "cut"}, None, False),
        ({"prefix": "other"}, None, False),
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
