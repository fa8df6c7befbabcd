"""What losing hosts would cost, by groups and hosts alone."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.planning.audit.first_step import RankPlace, judge_places


def places(hosts, groups):
    group_of = {rank: group for group in groups for rank in group}
    return [RankPlace(host, min(group_of[rank]), len(group_of[rank])) for rank, host in enumerate(hosts)]


def test_the_classic_trap():
    groups = [(8 * host + rank, 8 * host + rank + 4) for host in range(2) for rank in range(4)]
    found = judge_places(places(["node1"] * 8 + ["node2"] * 8, groups))
    assert found.text == (
        "survives no host; smallest fatal loss: 1 host (2 of 2): node1 has every copy of the slice of rank 0, 4"
    )


def test_replicas_on_two_hosts():
    groups = [(rank, rank + 8) for rank in range(8)]
    found = judge_places(places([f"n{rank // 4}" for rank in range(16)], groups))
    assert found.text == (
        "survives any 1 host; smallest fatal loss: 2 hosts (2 such pairs of 6): n0, n2 have every copy of the slice of "
        "rank 0, 8"
    )


def test_one_host():
    assert judge_places(places(["vm"] * 2, [(0, 1)])).text == (
        "survives no host; smallest fatal loss: 1 host (1 of 1): vm has every copy of the slice of rank 0, 1"
    )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ([RankPlace("a", 0, 2), RankPlace("", 0, 2)], "nothing names the host of rank 1"),
        ([RankPlace("a", -1, 0), RankPlace("b", -1, 0)], "same slice as rank 0 are not known"),
        ([RankPlace("a", 0, 2), RankPlace("b", 1, 1)], "same slice as rank 0 are not known"),
        ([RankPlace("a", 0, 1), RankPlace("b", 0, 2)], "same slice as rank 0 are not known"),
    ],
)
def test_what_is_not_known_is_not_survived(made, words):
    assert words in judge_places(made)


@given(
    st.integers(1, 8).flatmap(
        lambda ranks: st.tuples(
            st.lists(st.sampled_from("abcd"), min_size=ranks, max_size=ranks),
            st.lists(st.integers(0, 3), min_size=ranks, max_size=ranks),
        )
    )
)
def test_smallest_losses_are_those_of_trying_each(made):
    hosts, labels = made
    groups = [tuple(rank for rank, one in enumerate(labels) if one == label) for label in set(labels)]
    found = judge_places(places(hosts, groups))
    names = sorted(set(hosts))
    for count in range(1, len(names) + 1):
        fatal = [
            lost
            for lost in itertools.combinations(names, count)
            if any(all(hosts[rank] in lost for rank in group) for group in groups)
        ]
        if fatal:
            (level,) = found.audit.levels
            assert (level.smallest, level.smallest_count, len(level.domains)) == (count, len(fatal), len(names))
            assert found.audit.survived == count - 1
            return
    raise AssertionError("the loss of all hosts is fatal")
