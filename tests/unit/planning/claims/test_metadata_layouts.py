"""Layouts of strategy files as metadata states them."""

from math import prod
from random import Random

import pytest

from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.layouts import cells_of
from ms_recover.planning.claims.rebuild import saved_layout


@pytest.mark.parametrize(
    ("matrix", "shards", "expected"),
    [
        ((4, 2), 0, ((4, 2), (0, -1))),
        ((4, 2), 2, ((2, 2, 2), ((0, 1), -1))),
        ((4, 2), 4, ((4, 2), ((0, 1), -1))),
        ((4, 2), -1, ((4, 2), ((0, 1), -1))),
        ((3, 2), 2, None),
        ((1, 2), 2, None),
    ],
)
def test_optimizer_shards_are_a_cut_of_the_first_dimension_where_they_fit(matrix, shards, expected):
    found = saved_layout(Layout("w", matrix, ((0,), ()), opt_shard_size=shards), 0)
    assert (found and (found.device_matrix, found.tensor_map)) == expected


@pytest.mark.parametrize("change", [{"split_shape": (1, 3)}, {"field": 2}, {"tensor_shape": (2, 2)}])
def test_what_is_cut_otherwise_has_no_such_form(change):
    assert saved_layout(Layout("w", (4, 2), ((0,), ()), **change), 0) is None


@pytest.mark.parametrize("seed", range(120))
def test_a_saved_layout_cuts_as_the_strategy_file_does_with_its_optimizer_shards(seed: int) -> None:
    source = Random(seed)
    matrix = tuple(source.choice((1, 2, 2, 3, 4)) for _ in range(source.randint(1, 3)))
    axes = source.sample(range(len(matrix)), len(matrix))
    first = source.randint(0, len(axes))
    tensor_map = (tuple(axes[:first]), tuple(axes[first : first + source.randint(0, 1)]))
    shards = source.choice((0, -1, 2, 4, 6))
    name = source.choice(("w", "w", "w", "accu_grads.w"))
    layout = Layout(name, matrix, tensor_map if source.random() < 0.9 else (), opt_shard_size=shards)
    found = saved_layout(layout, 0)
    if found is None:
        assert shards > 0
        return
    cells = cells_of(layout, range(prod(matrix)))
    assert found.counts == cells[0].count
    if not layout.tensor_map:
        assert set(found.fragments) == {0}
        return
    places = [cell.index for cell in cells]
    assert found.fragments == tuple(row * found.counts[1] + column for row, column in places)
    added = found.axes[0][len(tensor_map[0]) :]
    assert all(found.device_matrix[::-1][axis] > 1 for axis in added)
