"""Families of fatal sets against brute force."""

from itertools import combinations
from math import comb
from random import Random

import pytest

from ms_recover.planning.audit.families import (
    ALWAYS,
    NEVER,
    FamilyIndex,
    TooManyError,
    count_fatal,
    fatal_in_all,
    minimal,
)


def random_family(source, places, sets, most=4):
    return [frozenset(source.sample(range(places), source.randint(1, most))) for _ in range(sets)]


def is_fatal(family, loss):
    return any(one <= loss for one in family)


@pytest.mark.parametrize("seed", range(60))
def test_fatal_losses_are_counted_as_one_by_one(seed):
    source = Random(seed)
    places = source.randint(4, 10)
    family = random_family(source, places, source.randint(0, 9))
    small = minimal(family)
    index = FamilyIndex(small)
    for lost in range(places + 1):
        losses = [frozenset(one) for one in combinations(range(places), lost)]
        fatal = [loss for loss in losses if is_fatal(family, loss)]
        assert count_fatal(places, small, lost) == len(fatal)
        assert [loss for loss in losses if index.find(loss) is not None] == fatal
    assert all(not is_fatal(family, one - {place}) for one in small for place in one)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_fatal_in_several_families_is_fatal_in_each(seed):
    source = Random(seed)
    families = [minimal(random_family(source, 7, source.randint(0, 4))) for _ in range(source.randint(1, 3))]
    together = fatal_in_all(families)
    assert minimal(together) == together
    for lost in range(8):
        for loss in map(frozenset, combinations(range(7), lost)):
            assert is_fatal(together, loss) == all(is_fatal(family, loss) for family in families)


def test_disjoint_groups_are_counted_in_closed_form():
    groups = minimal(frozenset({host, host + 640}) for host in range(640))
    assert count_fatal(1280, groups, 1) == 0
    assert count_fatal(1280, groups, 2) == 640
    assert count_fatal(1280, groups, 3) == 640 * 1278
    safe = comb(640, 40) * 2**40
    assert count_fatal(1280, groups, 40) == comb(1280, 40) - safe


def test_what_is_fatal_without_a_loss_is_always_fatal():
    assert minimal([frozenset({1}), frozenset()]) == ALWAYS
    assert FamilyIndex(ALWAYS).find(frozenset({3})) == FamilyIndex(ALWAYS).find(frozenset()) == frozenset()
    assert FamilyIndex(NEVER).find(frozenset({3})) is None
    assert count_fatal(5, ALWAYS, 2) == 10
    assert count_fatal(5, NEVER, 2) == 0
    assert fatal_in_all([ALWAYS, minimal([frozenset({1})])]) == (frozenset({1}),)


def test_a_count_beyond_bounds_is_refused_and_not_guessed():
    source = Random(1)
    family = minimal(frozenset(source.sample(range(80), 5)) for _ in range(600))
    with pytest.raises(TooManyError):
        count_fatal(80, family, 30)
