"""How many parts and copies a layout makes."""

import pytest

from ms_recover.model.strategy import Layout, Strategy


@pytest.mark.parametrize(
    ("layout", "counts", "parts", "copies"),
    [
        (Layout("w", (2, 4), ((0,), ())), (4, 1), 4, 2),
        (Layout("w", (2, 4), ((), (1,))), (1, 2), 2, 4),
        (Layout("w", (2, 4), ((1, 0), ())), (8, 1), 8, 1),
        (Layout("w", (2, 4), ((), ())), (1, 1), 1, 8),
        (Layout("w", (2, 4), ((0,), ()), 4, -1), (4, 1), 8, 1),
        (Layout("w", (4, 2), ((0,), ()), 2, 2), (2, 1), 4, 2),
        (Layout("w", (2, 4), ((1, 0), ()), 0, -1), (8, 1), 8, 1),
        (Layout("w", (2,), (), 0, 0), (), 1, 2),
    ],
)
def test_parts_and_copies(layout, counts, parts, copies):
    assert (layout.counts, layout.parts, layout.copies) == (counts, parts, copies)


def test_devices_per_stage():
    assert Strategy((), 1, ()).devices_per_stage == 0
    assert Strategy((0,), 1, (Layout("a", (1,), ()), Layout("b", (2, 4), ()))).devices_per_stage == 8
