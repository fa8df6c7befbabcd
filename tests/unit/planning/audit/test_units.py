"""Ranks that move together, and the search for hosts that keep holders apart."""

from itertools import permutations
from random import Random

import pytest

from ms_recover.model.topology import Topology
from ms_recover.planning.audit.units import Arrangement, exists, make_units


def random_arrangement(seed):
    """Return units of one to three ranks on four hosts in two racks, and sets of units that hold the same."""
    source = Random(seed)
    units, first = [], 0
    for size in (source.randint(1, 3) for _ in range(source.randint(2, 9))):
        units.append(tuple(range(first, first + size)))
        first += size
    hosts = [source.randrange(4) for _ in units]
    numbers = range(len(units))
    sets = sorted({tuple(sorted(source.sample(numbers, source.randint(2, min(4, len(units)))))) for _ in range(6)})
    levels = [[0, 1, 2, 3], [0, 0, 1, 1]][: source.randint(1, 2)]
    return units, hosts, levels, sets


def together(hosts, levels, sets):
    """Return for each set that lies in one domain of a level at how many levels it does."""
    counts = {
        at: sum(len({level[hosts[unit]] for unit in set_}) == 1 for level in levels) for at, set_ in enumerate(sets)
    }
    return {at: count for at, count in counts.items() if count}


def places(units, hosts):
    """Return the hosts that units of each size take."""
    return sorted((len(unit), host) for unit, host in zip(units, hosts, strict=True))


@pytest.mark.parametrize("seed", range(80))
def test_exchanges_leave_fewer_sets_together_and_every_host_as_full(seed):
    units, hosts, levels, sets = random_arrangement(seed)
    made = Arrangement(units, hosts, levels, sets)
    before = together(hosts, levels, sets)
    assert made.fatal == before
    apart = made.improve()
    after = together(made.hosts, levels, sets)
    assert (made.fatal, apart) == (after, not after)
    assert sum(after.values()) <= sum(before.values())
    assert made.hosts == hosts or sum(after.values()) < sum(before.values())
    assert places(units, made.hosts) == places(units, hosts)


@pytest.mark.parametrize("seed", range(80))
def test_no_exchange_of_two_units_is_left_that_would_help(seed):
    units, hosts, levels, sets = random_arrangement(seed)
    levels = levels[:1]
    made = Arrangement(units, hosts, levels, sets)
    made.improve()
    least = sum(together(made.hosts, levels, sets).values())
    for at, unit in enumerate(units):
        for other in range(at):
            if len(units[other]) == len(unit):
                hosts = list(made.hosts)
                hosts[at], hosts[other] = hosts[other], hosts[at]
                assert sum(together(hosts, levels, sets).values()) >= least


def test_units_whose_sets_both_lie_together_are_exchanged_first():
    """One exchange mends both sets; one with the unit 2, which holds nothing in common, mends one of them."""
    made = Arrangement([(rank,) for rank in range(6)], [0, 0, 1, 1, 1, 0], [[0, 1]], [(0, 1), (3, 4)])
    assert made.improve()
    assert sum(host != before for host, before in zip(made.hosts, [0, 0, 1, 1, 1, 0], strict=True)) == 2


def test_units_of_which_all_lie_with_their_set_are_exchanged():
    made = Arrangement([(rank,) for rank in range(4)], [0, 0, 1, 1], [[0, 1]], [(0, 1), (2, 3)])
    assert made.improve()


@pytest.mark.parametrize("seed", range(40))
def test_dealing_anew_leaves_every_host_as_full(seed):
    units, hosts, levels, sets = random_arrangement(seed)
    made = Arrangement(units, hosts, levels, sets)
    made.deal()
    assert made.fatal == together(made.hosts, levels, sets)
    assert places(units, made.hosts) == places(units, hosts)


def test_those_that_hold_the_same_are_dealt_to_different_racks():
    """Eight units on four hosts of two racks, of which neighbours hold the same."""
    levels = [[0, 1, 2, 3], [0, 0, 1, 1]]
    sets = [(unit, unit + 1) for unit in range(0, 8, 2)]
    made = Arrangement([(unit,) for unit in range(8)], [unit // 2 for unit in range(8)], levels, sets)
    assert made.fatal == {0: 2, 1: 2, 2: 2, 3: 2}
    made.deal()
    assert made.fatal == {}


def test_units_that_hold_nothing_in_common_are_dealt_last():
    made = Arrangement([(rank,) for rank in range(4)], [0, 0, 1, 1], [[0, 1]], [(1, 3)])
    made.deal()
    assert made.hosts == [0, 0, 1, 1]
    assert made.fatal == {}


@pytest.mark.parametrize("seed", range(200))
def test_hosts_for_few_units_are_found_where_there_are_any(seed):
    """Against each order of the units that have one rank."""
    source = Random(seed)
    units = [(rank,) for rank in range(source.randint(2, 6))]
    hosts = sorted(source.randrange(3) for _ in units)
    numbers = range(len(units))
    sizes = [source.randint(2, min(3, len(units))) for _ in range(source.randint(1, 8))]
    sets = sorted({tuple(sorted(source.sample(numbers, size))) for size in sizes})
    levels = [[0, 1, 2], [0, 1, 1]][: source.randint(1, 2)]
    found = exists(units, [hosts.count(host) for host in range(3)], levels, sets)
    if any(not together(order, levels, sets) for order in set(permutations(hosts))):
        assert sorted(found) == hosts
        assert together(found, levels, sets) == {}
    else:
        assert found is None


def test_units_of_several_ranks_take_as_many_places():
    units = [(0, 1), (2, 3), (4,), (5,)]
    found = exists(units, [3, 3], [[0, 1]], [(0, 2), (1, 3)])
    assert sorted([found[0], found[1]]) == [0, 1]
    assert found[0] != found[2]
    assert found[1] != found[3]
    assert exists(units, [4, 2], [[0, 1]], [(0, 2), (1, 3)]) is not None
    assert exists([(0, 1), (2, 3)], [3, 1], [[0, 1]], []) is None


def test_trying_all_hosts_of_many_units_is_given_up():
    """Three units cannot be apart on two hosts; they come last, after all ways to place the others."""
    units = [(rank,) for rank in range(20)]
    assert exists(units, [10, 10], [[0, 1]], [(17, 18), (18, 19), (17, 19)]) is False
    assert exists(units[:6], [3, 3], [[0, 1]], [(3, 4), (4, 5), (3, 5)]) is None


def on(*hosts):
    return Topology(("host",), (hosts,), "the test")


@pytest.mark.parametrize(
    ("hosts", "size", "keep", "units"),
    [
        ("aabb", 1, [], [(0,), (1,), (2,), (3,)]),
        ("aabb", 2, [], [(0, 1), (2, 3)]),
        ("abba", 2, [], [(0,), (1,), (2,), (3,)]),
        ("aaaabb", 2, [{0, 2}], [(0, 1, 2, 3), (4, 5)]),
        ("aabb", 1, [{0, 1}, {1, 2}], [(0, 1), (2,), (3,)]),
        ("aaab", 1, [{1, 2}, {0, 1}], [(0, 1, 2), (3,)]),
    ],
    ids=["alone", "neighbours", "of two hosts", "joined by a group", "not by one of two hosts", "by groups in common"],
)
def test_what_lies_on_one_host_moves_together(hosts, size, keep, units):
    assert sorted(make_units(on(*hosts), size, [frozenset(group) for group in keep])) == units
