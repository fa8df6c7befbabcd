"""Layouts of the tensors that slices hold."""

from dataclasses import replace

import pytest

from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.layouts import fit

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
