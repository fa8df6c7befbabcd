"""A placement that survives the loss of any one host."""

import itertools
from collections import Counter
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover.model.axes import Axes
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.findings import find_tensor_groups
from ms_recover.planning.audit.placement import propose_placement
from ms_recover.planning.claims.stages import Stages
from tests.support.examples import examples


def on_hosts(ranks, per_host, per_rack=None):
    hosts = tuple([f"host{rank // per_host}" for rank in range(ranks)])
    if per_rack is None:
        return Topology(("host",), (hosts,), "x")
    racks = tuple([f"rack{rank // per_host // per_rack}" for rank in range(ranks)])
    return Topology(("host", "rack"), (hosts, racks), "x")


def lost_with_one(topology, fatal, level=0):
    """Return the domains of a level of which none may be lost, by looking at each."""
    placed = topology.domains[level]
    homes = [{placed[rank] for rank in members} for members in fatal]
    return sorted({domain for held in homes if len(held) == 1 for domain in held})


def check(found, before, fatal):
    assert lost_with_one(found.topology, fatal) == []
    assert Counter(found.topology.hosts) == Counter(before.hosts)
    levels = range(len(before.levels))
    belongs = [dict(zip(before.hosts, before.domains[level], strict=True)) for level in levels]
    for level in levels:
        assert found.topology.domains[level] == tuple(belongs[level][host] for host in found.topology.hosts)
        assert (before.levels[level] in found.survives) == (lost_with_one(found.topology, fatal, level) == [])


def together(topology, ranks):
    return len({topology.hosts[rank] for rank in ranks}) == 1


@pytest.mark.parametrize("hosts", [2, 3, 4, 7])
def test_the_classic_trap(hosts):
    """8 cards a host; replicas r and r + 4 are on one host: dp 2, tp 4, a pipeline stage a host."""
    before = on_hosts(8 * hosts, 8)
    fatal = {frozenset({8 * host + rank, 8 * host + rank + 4}) for host in range(hosts) for rank in range(4)}
    assert len(lost_with_one(before, fatal)) == hosts
    found = propose_placement(fatal, before)
    check(found, before, fatal)
    assert found.together == 4
    assert all(together(found.topology, range(first, first + 4)) for first in range(0, 8 * hosts, 4))
    assert found.moved <= 8 * hosts // 2 + 4
    assert found.reason.startswith("survives any 1 host, with")
    assert propose_placement(fatal, before, [frozenset(range(4))]).topology is not None


@pytest.mark.parametrize(("ranks", "words"), [(4, ""), (8, "; 2 neighbouring ranks each stay together")])
def test_how_many_neighbours_stay_together_is_said_where_there_are_any(ranks, words):
    """Pairs of hosts of which each holds its slices alone."""
    size = ranks // 4
    fatal = {frozenset({at, at + size}) for first in range(0, ranks, 2 * size) for at in range(first, first + size)}
    found = propose_placement(fatal, on_hosts(ranks, ranks // 2))
    assert found.reason == f"survives any 1 host, with {ranks // 2} of {ranks} ranks on another host{words}"


def test_few_ranks_are_tried_in_every_place():
    """Changing two at a time finds no placement of these."""
    before = on_hosts(6, 2)
    fatal = {frozenset(members) for members in ((0, 2, 4), (0, 4), (1, 4), (3, 4), (3, 5), (4, 5))}
    check(propose_placement(fatal, before), before, fatal)


def test_neighbours_are_dealt_out_anew_where_changing_them_mends_nothing():
    before = on_hosts(12, 4)
    fatal = {frozenset(members) for members in ((0, 9), (1, 11), (6, 10), (7, 9), (9, 11))}
    found = propose_placement(fatal, before)
    check(found, before, fatal)
    assert found.together == 2


def test_racks_where_they_can_be_survived():
    before = on_hosts(64, 8, per_rack=2)
    fatal = {frozenset({8 * host + rank, 8 * host + rank + 4}) for host in range(8) for rank in range(4)}
    found = propose_placement(fatal, before)
    check(found, before, fatal)
    assert found.survives == ("host", "rack")
    one_rack = on_hosts(64, 8, per_rack=8)
    found = propose_placement(fatal, one_rack)
    check(found, one_rack, fatal)
    assert found.survives == ("host",)


def test_whole_hosts_move_where_only_racks_are_at_stake():
    """Replicas on neighbouring hosts of one rack."""
    before = on_hosts(64, 8, per_rack=2)
    fatal = {frozenset({16 * pair + rank, 16 * pair + rank + 8}) for pair in range(4) for rank in range(8)}
    assert lost_with_one(before, fatal) == []
    found = propose_placement(fatal, before)
    check(found, before, fatal)
    assert (found.survives, found.together) == (("host", "rack"), 8)


def test_a_placement_that_survives_already_stays():
    before = on_hosts(16, 8)
    fatal = {frozenset({rank, rank + 8}) for rank in range(8)}
    found = propose_placement(fatal, before)
    assert (found.topology, found.moved) == (before, 0)


def test_hosts_that_are_survived_and_racks_that_cannot_be():
    fatal = {frozenset({rank, rank + 8}) for rank in range(8)}
    found = propose_placement(fatal, on_hosts(16, 8, per_rack=2))
    assert (found.topology, found.survives) == (None, ("host",))
    assert found.reason == "all ranks are in one rack, so that only another rack mends it"
    racks = Topology(("host", "rack"), (("a",) * 2 + ("b",) * 2 + ("c",) * 2, ("r1",) * 4 + ("r2",) * 2), "x")
    pairs = {frozenset({0, 2}), frozenset({1, 3}), frozenset({4, 0})}
    found = propose_placement(pairs | {frozenset({0, 1}) | frozenset({2})}, racks)
    assert found.topology is None or lost_with_one(found.topology, pairs, 1) == []


def test_whole_slices_that_every_rank_holds():
    before = on_hosts(16, 8)
    assert propose_placement([frozenset(range(16))], before).topology == before


@pytest.mark.parametrize(
    ("fatal", "topology", "keep", "words"),
    [
        ([{3}, {0, 1}], on_hosts(16, 8), [], "rank 3 has the single copy of a block"),
        ([{3}, {4}], on_hosts(16, 8), [], "ranks 3, 4 each have the single copy"),
        ([set()], on_hosts(16, 8), [], "no step can be recovered even now"),
        ([{0, 4}], on_hosts(8, 8), [], "all ranks are on one host, host0"),
        ([{0, 1}], on_hosts(16, 8), [{0, 1, 2, 3}], "ranks 0, 1 hold all copies of a block and stay on one host"),
        (
            [{0, 1}, {2, 3}, {4, 5}],
            Topology(("host",), (("a",) * 6 + ("b",) * 2,), "x"),
            [],
            "a has 6 of 8 ranks, and 3 blocks each need a copy elsewhere",
        ),
        (
            [{0, 1}, {1, 2}, {0, 2}],
            Topology(("host",), (("a", "a", "a", "b"),), "x"),
            [],
            "no placement on these 2 hosts keeps all holders apart",
        ),
        (
            [{0, 1}, {1, 2}, {0, 2}],
            on_hosts(18, 9),
            [],
            "none was found on these 2 hosts: more hosts or more copies are needed",
        ),
        (
            [{0, 2}],
            on_hosts(8, 4),
            [{0, 1}, {1, 2}],
            "none was found on these 2 hosts: more hosts or more copies are needed",
        ),
    ],
)
def test_why_there_is_none(fatal, topology, keep, words):
    found = propose_placement([frozenset(one) for one in fatal], topology, [frozenset(one) for one in keep])
    assert found.topology is None
    assert words in found.reason


def test_groups_that_are_not_neighbours_stay_together():
    """Tensor-parallel ranks 0 and 2, 1 and 3, ...; replicas beside them."""
    before = on_hosts(16, 8)
    keep = [frozenset({4 * at + one, 4 * at + one + 2}) for at in range(4) for one in range(2)]
    fatal = {frozenset({rank, rank + 4}) for rank in (0, 1, 2, 3, 8, 9, 10, 11)}
    found = propose_placement(fatal, before, keep)
    check(found, before, fatal)
    assert all(together(found.topology, group) for group in keep)


def possible(fatal, topology):
    """Whether any assignment at all survives, by trying each."""
    for hosts in set(itertools.permutations(topology.hosts)):
        if not lost_with_one(Topology(("host",), (hosts,), "x"), fatal):
            return True
    return False


@settings(max_examples=examples(60))
@given(
    st.integers(2, 6).flatmap(
        lambda ranks: st.tuples(
            st.lists(st.sampled_from("abc"), min_size=ranks, max_size=ranks),
            st.sets(st.frozensets(st.integers(0, ranks - 1), min_size=1, max_size=4), min_size=1, max_size=6),
        )
    )
)
def test_one_is_found_where_one_exists(made):
    hosts, fatal = made
    before = Topology(("host",), (tuple(hosts),), "x")
    found = propose_placement(fatal, before)
    assert (found.topology is not None) == possible(fatal, before)
    if found.topology is not None:
        check(found, before, fatal)
    else:
        assert "none was found" not in found.reason


def test_ten_thousand_ranks():
    before = on_hosts(10240, 8, per_rack=16)
    fatal = {frozenset({8 * host + rank, 8 * host + rank + 4}) for host in range(1280) for rank in range(4)}
    found = propose_placement(fatal, before)
    check(found, before, fatal)
    assert found.survives == ("host", "rack")


@pytest.mark.parametrize(
    ("matrix", "tensor_map", "groups"),
    [
        ((2, 4), ((0,), ()), [{0, 1, 2, 3}, {4, 5, 6, 7}]),
        ((4, 2), ((), (1,)), [{0, 2, 4, 6}, {1, 3, 5, 7}]),
        ((2, 2, 2), ((2, 0), ()), [{0, 1, 4, 5}, {2, 3, 6, 7}]),
    ],
)
def test_tensor_parallel_groups_by_layouts(matrix, tensor_map, groups):
    weight = Layout("w", matrix, tensor_map)
    norm, bias = (Layout(name, matrix, ((),)) for name in ("norm", "bias"))
    state = Layout("moment.norm", matrix, ((),), opt_shard_size=-1)
    layouts = {one.parameter: one for one in (weight, norm, bias, state)}
    facts = SimpleNamespace(options=PlanOptions(), stages=Stages(devices=8, layouts={0: layouts, 1: layouts}))
    found = find_tensor_groups(facts)
    both = groups + [{rank + 8 for rank in group} for group in groups]
    assert sorted(map(sorted, found)) == sorted(map(sorted, both))


def test_tensor_parallel_groups_by_axes():
    options, world = PlanOptions(axes=Axes.parse("dp=2,tp=2,pp=2")), SimpleNamespace(ranks=8)
    facts = SimpleNamespace(options=options, stages=Stages(), world=world)
    assert set(find_tensor_groups(facts)) == {frozenset({first, first + 1}) for first in (0, 2, 4, 6)}


def test_no_tensor_parallel_groups():
    facts = SimpleNamespace(options=PlanOptions(), stages=Stages())
    assert find_tensor_groups(facts) == ()
