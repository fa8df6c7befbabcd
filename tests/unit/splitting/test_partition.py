import math
import time
from fractions import Fraction
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover.errors import UsageError
from ms_recover.splitting.partition import assign, cut_before, partition
from tests.support.examples import examples

numbers = st.one_of(
    st.integers(0, 4),
    st.floats(0, 10, allow_nan=False),
    st.sampled_from([0.1, 0.2, 0.3, 1e300, 5e-324, 1e16, 1.0]),
)


def brute_force(costs, parts):
    """The best cut of all, by the words of the function: worst part, evenness of costs, of lengths, shortest first."""
    exact = [Fraction(cost) for cost in costs]
    cuts = ((0, *inner, len(costs)) for inner in combinations(range(1, len(costs)), parts - 1))

    def key(cut):
        sums = [sum(exact[start:stop], Fraction()) for start, stop in pairwise(cut)]
        return max(sums), sum(each**2 for each in sums), sum((b - a) ** 2 for a, b in pairwise(cut)), cut

    return tuple(range(start, stop) for start, stop in pairwise(min(cuts, key=key)))


@settings(max_examples=examples(400))
@given(st.lists(numbers, min_size=1, max_size=9), st.data())
def test_no_other_cut_is_better(costs, data):
    parts = data.draw(st.integers(1, len(costs)))
    assert partition(costs, parts) == brute_force(costs, parts)


@given(st.lists(numbers, min_size=1, max_size=60), st.data())
def test_parts_are_contiguous_whole_and_not_empty(costs, data):
    parts = data.draw(st.integers(1, len(costs)))
    found = partition(costs, parts)
    assert [stage for part in found for stage in part] == list(range(len(costs)))
    assert len(found) == parts
    assert all(found)


@pytest.mark.parametrize(
    ("costs", "parts", "lengths"),
    [
        ([1] * 8, 4, [2, 2, 2, 2]),
        ([1] * 10, 4, [2, 2, 3, 3]),
        ([0] * 5, 2, [2, 3]),
        ([9, 1, 1, 1, 1, 1], 3, [1, 2, 3]),
        ([1, 1, 1, 9], 2, [3, 1]),
        ([0.1, 0.2, 0.3, 0.6], 2, [3, 1]),
    ],
)
def test_ties_go_to_even_parts_that_are_short_at_the_front(costs, parts, lengths):
    assert [len(part) for part in partition(costs, parts)] == lengths


@pytest.mark.parametrize(
    "costs", [[1.0] * 500, [0.0] * 499 + [1.0], [1e300, *[1e-300] * 499], [math.sin(i) ** 2 for i in range(500)]]
)
def test_hundreds_of_stages_take_no_time(costs):
    began = time.process_time()
    partition(costs, 8)
    assert time.process_time() - began < 1  # milliseconds where nothing else runs


@pytest.mark.parametrize("bad", [-1, -1e-300, math.nan, math.inf, -math.inf])
def test_invalid_costs_are_refused(bad):
    for call in (lambda: partition([1, bad], 1), lambda: assign([1, bad], [range(2)], 1)):
        with pytest.raises(UsageError, match="stage 1 costs"):
            call()


@pytest.mark.parametrize(("costs", "parts"), [([], 1), ([1], 0), ([1], 2), ([1, 2], -1)])
def test_invalid_numbers_of_parts_are_refused(costs, parts):
    with pytest.raises(UsageError):
        partition(costs, parts)


def test_one_device_for_each_part():
    assert assign([1, 5, 1], [range(1), range(1, 3)], 2) == ((0,), (1,))
    with pytest.raises(UsageError, match="0 devices cannot hold 2 parts"):
        assign([1, 1], [range(1), range(1, 2)], 0)


def test_fewer_devices_than_parts_hold_neighbours():
    parts = [range(1), range(1, 3), range(3, 4)]
    assert assign([4, 1, 1, 2], parts, 2) == ((0,), (1, 2))
    assert assign([4, 1, 1, 2], parts, 1) == ((0, 1, 2),)


def test_further_devices_hold_the_costliest_parts_once_more():
    costs, parts = [6, 2, 3], [range(1), range(1, 2), range(2, 3)]
    assert assign(costs, parts, 8) == ((0,), (1,), (2,), (0,), (2,), (0,), (1,), (0,))


@given(st.lists(numbers, min_size=1, max_size=6), st.integers(0, 8))
def test_no_assignment_does_better(costs, more):
    parts = [range(index, index + 1) for index in range(len(costs))]
    held = [part for (part,) in assign(costs, parts, len(costs) + more)]
    assert set(held) == set(range(len(costs)))

    def worst(counts):
        return max(Fraction(cost) / count for cost, count in zip(costs, counts, strict=True))

    counts = [held.count(part) for part in range(len(costs))]
    best = worst(counts)
    for giver in range(len(costs)):
        for taker in range(len(costs)):
            if counts[giver] > 1 and giver != taker:
                changed = list(counts)
                changed[giver] -= 1
                changed[taker] += 1
                assert worst(changed) >= best


NAMES = ["embed", "hidden.0", "hidden.1", "relu(_)", "head", "relu(_)"]


@pytest.mark.parametrize(
    ("cuts", "parts"),
    [
        (["head"], [range(4), range(4, 6)]),
        ("head", [range(4), range(4, 6)]),
        (["hidden", 4], [range(1), range(1, 4), range(4, 6)]),
        ([4, "hidden.1"], [range(2), range(2, 4), range(4, 6)]),
        (5, [range(5), range(5, 6)]),
        ((1, 2, 3, 4, 5), [range(number, number + 1) for number in range(6)]),
    ],
)
def test_parts_begin_at_stages_given_by_name_or_number(cuts, parts):
    assert list(cut_before(NAMES, cuts)) == parts


@pytest.mark.parametrize(
    ("cuts", "words"),
    [
        (["tail"], "'tail' is no stage; the stages are embed, hidden.0"),
        (["relu(_)"], "belongs to 2 stages: give a number"),
        (["embed"], "cannot begin at 0"),
        ([0], "cannot begin at 0"),
        ([6], "cannot begin at 6"),
        ([-1], "cannot begin at -1"),
        ([True], "cannot begin at True"),
        ([2.0], r"cannot begin at 2\.0"),
        (["head", 4], "a stage is there twice"),
        ([], "expected a list"),
        (None, "expected a list"),
        ({"head"}, "expected a list"),
    ],
)
def test_a_cut_at_no_stage_is_refused(cuts, words):
    with pytest.raises(UsageError, match=words):
        cut_before(NAMES, cuts)
