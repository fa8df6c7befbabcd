"""The bytes that a loss moves, and from where."""

import pytest

from ms_recover.model.audit import Giver
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.blocks import BlockKind, HeldBlock
from ms_recover.planning.audit.losses import Level, Moves
from tests.unit.planning.audit.test_blocks import part

KIND = BlockKind(stage=0, names=("w",), cut="", source="the test")


def moves(hosts, lost, **held):
    level = Level.of_topology(Topology(("host",), (tuple(hosts),), "the test"), 0)
    return Moves(part(ranks=len(hosts), **held), level, frozenset(lost))


def given(made):
    return made.bytes, [(one.host, one.bytes) for one in made.sources], made.busiest


def test_a_level_numbers_its_domains_as_they_come():
    level = Level.of_topology(Topology(("host", "rack"), (("b", "a", "b"), ("r", "s", "r")), "the test"), 0)
    assert (level.name, level.domains, level.of, level.ranks) == ("host", ("b", "a"), (0, 1, 0), ((0, 2), (1,)))
    assert level.places([2, 0]) == {0}


def test_ranks_that_are_lost_take_the_slice_of_the_next_one_that_is_left():
    groups = {rank: (rank % 2, rank % 2 + 2, rank % 2 + 4) for rank in range(6)}
    sizes = dict.fromkeys(range(6), 10)
    assert given(moves("aabbcc", [0, 1], groups=groups, sizes=sizes)) == (20, [("b", 20)], 20)
    assert given(moves("aabbcc", [4, 5], groups=groups, sizes=sizes)) == (20, [("a", 20)], 20)
    assert given(moves("aabbcc", [0, 1, 2], groups=groups, sizes=sizes)) == (30, [("c", 20), ("b", 10)], 20)


def test_bytes_within_a_host_are_sent_and_not_received():
    """The ranks 1 and 3 have no slice: one has a copy on its host, which gives to another host as well."""
    held = {"groups": {0: (2,), 1: (3,)}, "sizes": {0: 20, 1: 20}, "missing": frozenset({0, 1})}
    assert given(moves("aabc", [], **held)) == (40, [("b", 20), ("c", 20)], 40)
    held = {"groups": {1: (0,), 3: (0,)}, "sizes": {1: 30, 3: 30}, "missing": frozenset({1, 3})}
    assert given(moves("aabb", [], **held)) == (60, [("a", 60)], 60)
    held = {"groups": {1: (0,), 3: (4,), 5: (4,)}, "sizes": {1: 30, 3: 20, 5: 25}, "missing": frozenset({1, 3, 5})}
    assert given(moves("aaaabb", [], **held)) == (75, [("b", 45), ("a", 30)], 45)


def test_a_rank_that_lacks_one_of_its_files_takes_nothing_of_itself():
    blocks = [HeldBlock(kind=KIND, holders=holders, bytes=5) for holders in ((0, 1), (1, 2))]
    held = {"parts": {0: blocks}, "sizes": {0: 10}, "missing": frozenset({0})}
    assert given(moves("abc", [], **held)) == (10, [("b", 10)], 10)


def test_what_nobody_is_left_to_give_or_nobody_needs_moves_nothing():
    blocks = [HeldBlock(kind=KIND, holders=(0, 1), bytes=5), HeldBlock(kind=KIND, holders=(2,), bytes=None)]
    assert given(moves("abc", [0, 1], parts={0: blocks}, sizes={0: 7})) == (7, [], 0)
    assert given(moves("abc", [], sizes={0: 7})) == (0, [], 0)


@pytest.mark.parametrize("lost", [(0,), (0, 1)])
def test_the_largest_share_comes_first(lost):
    groups = {0: (0, 2), 1: (1, 3)}
    made = moves("aacb", lost, groups=groups, sizes={0: 5, 1: 9})
    assert made.sources == tuple(
        Giver(host=host, bytes=size) for host, size in (("b", 9), ("c", 5)) if size == 5 or len(lost) == 2
    )
