"""Layouts of strategy files as metadata states them."""

import pytest

from ms_recover.model.strategy import Layout
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
