"""Boxes that are found by their place."""

from itertools import pairwise, product
from random import Random

import pytest

from ms_recover.planning.claims.regions import Grid, cover, intersect, runs_of, volume


@pytest.mark.parametrize("seed", range(60))
def test_every_box_that_shares_something_is_near(seed):
    source = Random(seed)
    shape = [source.randint(1, 9) for _ in range(source.randint(0, 3))]
    edges = [sorted({0, size, *(source.randrange(size + 1) for _ in range(2))}) for size in shape]
    boxes = [tuple(box) for box in product(*(pairwise(one) for one in edges))]
    source.shuffle(boxes)
    boxes = boxes[: source.randint(1, len(boxes))]
    if source.random() < 0.3:
        boxes.append(tuple((0, size) for size in shape))  # a whole tensor beside its parts
    grid = Grid(boxes)
    for _ in range(5):
        box = tuple(tuple(sorted(source.sample(range(size + 1), 2))) for size in shape)
        near = list(grid.near(box))
        assert near == sorted(near)
        assert {number for number, one in enumerate(boxes) if intersect(one, box)} <= set(near)


def test_of_a_grid_only_neighbours_are_near():
    boxes = [((row, row + 1), (column, column + 1)) for row in range(30) for column in range(30)]
    assert len(Grid(boxes).near(((3, 5), (7, 8)))) == 2


def test_boxes_of_different_tensors_share_nothing_that_could_be_named():
    assert intersect(((0, 2), (1, 3)), ((1, 4), (0, 2))) == ((1, 2), (1, 2))
    assert intersect(((0, 2), (1, 3)), ((2, 4), (0, 2))) is None
    with pytest.raises(ValueError, match="zip"):
        intersect(((0, 2),), ((0, 2), (1, 3)))


def test_without_boxes_nothing_is_near():
    assert list(Grid([]).near(((0, 1),))) == []


@pytest.mark.parametrize("seed", range(60))
def test_pieces_and_what_is_uncovered_are_each_element_of_a_box_once(seed):
    """Of a box without elements nothing is uncovered."""
    source = Random(seed)
    shape = [source.randint(0, 5) for _ in range(source.randint(0, 3))]

    def some_box():
        return tuple(tuple(sorted((source.randint(0, size), source.randint(0, size)))) for size in shape)

    def elements(box):
        return list(product(*(range(*side) for side in box)))

    target, boxes = some_box(), [some_box() for _ in range(source.randint(0, 4))]
    pieces, uncovered = cover(target, boxes)
    given = [(element, number) for number, part in pieces for element in elements(part)]
    expected = {
        element: number
        for element in elements(target)
        if (number := next((at for at, box in enumerate(boxes) if element in elements(box)), None)) is not None
    }
    assert sorted(given) == sorted(expected.items())
    rest = [element for box in uncovered for element in elements(box)]
    assert sorted(rest) == sorted(set(elements(target)) - expected.keys())
    assert all(volume(box) for box in (*uncovered, *(part for _, part in pieces)))


@pytest.mark.parametrize("seed", range(60))
def test_runs_move_a_part_and_nothing_else_in_as_few_runs_as_it_takes(seed):
    source = Random(seed)
    axes, size = source.randint(0, 4), source.choice((1, 2, 4))

    def around(part):
        return tuple((first - source.choice((0, 0, 1)), last + source.choice((0, 0, 2))) for first, last in part)

    part = tuple((start, start + source.randint(1, 3)) for start in (source.randint(2, 4) for _ in range(axes)))
    held, wanted = around(part), around(part)

    def places(box):
        """Return by element where its bytes begin, in C order."""
        return {at: number * size for number, at in enumerate(product(*(range(*side) for side in box)))}

    runs = runs_of(part, held, wanted, size)
    moved = {(start + byte, target + byte) for start, target in runs for byte in range(0, runs.length, size)}
    assert moved == {(places(held)[at], places(wanted)[at]) for at in places(part)}
    assert runs.bytes == volume(part) * size
    assert all(count > 1 for count, _, _ in runs.loops)


@pytest.mark.parametrize("seed", range(60))
def test_a_target_is_covered_by_the_first_boxes_and_what_none_gives_is_left(seed):
    source = Random(seed)
    shape = [source.randint(1, 5) for _ in range(source.randint(0, 3))]

    def box():
        return tuple(tuple(sorted(source.sample(range(size + 1), 2))) for size in shape)

    def elements(of):
        return set(product(*(range(*side) for side in of)))

    target, boxes = box(), [box() for _ in range(source.randint(0, 4))]
    pieces, uncovered = cover(target, boxes)
    giver = {at: number for number, of in reversed([*enumerate(boxes)]) for at in elements(of) & elements(target)}
    given = [(at, number) for number, piece in pieces for at in elements(piece)]
    assert sorted(given) == sorted(giver.items())
    left = [at for of in uncovered for at in elements(of)]
    assert sorted(left) == sorted(elements(target) - giver.keys())
    assert all(volume(of) for of in [*uncovered, *(piece for _, piece in pieces)])
