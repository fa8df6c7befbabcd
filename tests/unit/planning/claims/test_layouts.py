"""Layouts of the tensors that slices hold."""

from dataclasses import replace

import pytest

from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.layouts import Cell, fit, region_of, shape_at

NESTED = Layout("w", (2, 2), ((0,), (), (1,)), tensor_shape=(2, 3, 4))
"""Three dimensions, the first and the last of them cut in two."""


@pytest.mark.parametrize(
    ("layout", "shape", "tensor_map"),
    [
        (NESTED, (1, 3, 2), ((0,), (), (1,))),
        (NESTED, (3, 2), ((0,), (1,))),
        (NESTED, (1, 6), ((0,), (1,))),
        (NESTED, (6,), ((0, 1),)),
        (NESTED, (3,), None),
        (replace(NESTED, tensor_shape=()), (3, 2), None),
        (replace(NESTED, tensor_shape=()), (1, 3, 2), ((0,), (), (1,))),
    ],
)
def test_nested_dimensions_are_put_together_as_the_tensor_has_them(layout, shape, tensor_map):
    found = fit(layout, Parameter("w", "Int8", shape, 6))
    assert (None if found is None else found.tensor_map) == tensor_map


BY_HAND = Layout("words", (2,), ((0,), ()), split_shape=(5, 3))


@pytest.mark.parametrize(
    ("layout", "place", "shape", "region"),
    [
        (BY_HAND, 0, (5, 4), ((0, 5), (0, 4))),
        (BY_HAND, 1, (3, 4), ((5, 8), (0, 4))),
        (BY_HAND, 0, (3, 4), None),
        (BY_HAND, 1, (5, 4), None),
        (replace(BY_HAND, split_shape=(5, 3, 2)), 0, (5, 4), None),
        (replace(BY_HAND, split_shape=(5,)), 0, (5, 4), None),
        (replace(BY_HAND, field=1), 1, (4, 4), ((4, 8), (0, 4))),
        (replace(BY_HAND, split_shape=()), 1, (4, 4), ((4, 8), (0, 4))),
    ],
)
def test_an_embedding_that_is_cut_by_hand_has_the_rows_of_its_place(layout, place, shape, region):
    assert region_of(layout, Cell((place, 0), (2, 1)), shape) == region


@pytest.mark.parametrize(
    ("layout", "place", "rows"),
    [
        (BY_HAND, 0, 5),
        (BY_HAND, 1, 3),
        (replace(BY_HAND, field=1), 1, 5),
        (replace(BY_HAND, split_shape=()), 1, 5),
        (replace(BY_HAND, split_shape=(5, 3, 2)), 1, 5),
    ],
)
def test_the_slice_of_another_rank_lists_the_rows_of_its_part(layout, place, rows):
    like = Parameter("words", "Float16", (5, 4), 40)
    expected = Parameter("words", "Float16", (rows, 4), 8 * rows)
    assert shape_at(layout, Cell((place, 0), (2, 1)), like) == expected
    empty = replace(like, shape=(0, 4), nbytes=0)
    assert shape_at(layout, Cell((place, 0), (2, 1)), empty) == empty
