"""Hosts of ranks by manifests."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.cli.topology import TopologyOptions, find_topology
from ms_recover.errors import ContradictionError
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.options import ScanOptions
from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.hosts import check_hosts, hosts_in_manifests, name_hosts, topology_of_manifests
from tests.support.histories import RANKS, inventory, orphan, saved, value
from tests.support.iteration_trees import unpack


def of_run(run, step, host, started=None):
    """Return the slices of a step of a run all of whose ranks are on one host."""
    record = TrainingRecord(started, host=host)
    return [saved(rank, Step(1, step), value, run=run, training=record) for rank in range(RANKS)]


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_of_runs_that_state_no_start_that_with_the_newest_step_counts(first, second):
    """Names of runs are random: they say nothing about the order."""
    found = hosts_in_manifests(inventory([*of_run(first, 3, "before"), *of_run(second, 4, "after")]))
    assert set(found.values()) == {"after"}


def test_a_run_that_states_a_start_counts_before_one_that_states_none():
    found = hosts_in_manifests(inventory([*of_run("a", 3, "started", 1000), *of_run("b", 4, "by itself")]))
    assert set(found.values()) == {"started"}


def test_a_tree_of_mindformers_whose_manifests_name_hosts_needs_no_option(tmp_path):
    tree = unpack("dp2_mp4", tmp_path / "tree")
    api.seal(api.scan(tree))
    scanned = api.scan(tree, ScanOptions(headers=False))

    def on_host(file):
        record = TrainingRecord(None, host=f"node{file.rank // 4}", machine=f"machine{file.rank // 4}")
        return replace(file, manifest=replace(file.manifest, training=record))

    found = find_topology(replace(scanned, slices=tuple(map(on_host, scanned.slices))), TopologyOptions())
    assert found is not None
    assert found.hosts == ("node0",) * 4 + ("node1",) * 4


def on(*hosts):
    return Topology(("host",), (hosts,), "the hostfile", lines=())


@pytest.mark.parametrize(
    ("given", "named", "words"),
    [
        ("aabb", "aabb", None),
        ("aabb", "aa", None),
        ("aabb", "aabbcc", None),
        ("aabb", "abbb", "rank 1 is on a, and on b by its manifest"),
        ("aabb", "xxyy", None),
        ("aabb", "xxxy", "rank 2 is on b and rank 0 on a, and both are on x by their manifests"),
        ("aabb", "xzyy", "ranks 0 and 1 are on a, and on x and z by their manifests"),
    ],
    ids=["the same", "some ranks", "more ranks", "another host", "other names", "shared by name", "apart by name"],
)
def test_a_topology_must_fit_the_hosts_in_manifests(given, named, words):
    """Names may be of two kinds: then ranks that share a host must be the same in both."""
    if words is None:
        check_hosts(on(*given), dict(enumerate(named)))
    else:
        with pytest.raises(ContradictionError, match=words):
            check_hosts(on(*given), dict(enumerate(named)))


def test_a_host_is_the_same_with_its_domain_or_without():
    check_hosts(on("a.example", "b.example"), {0: "a", 1: "b"})
    with pytest.raises(ContradictionError, match="is it the file of another launch"):
        check_hosts(on("a.example", "b.example"), {0: "b", 1: "a"})


@pytest.mark.parametrize(
    ("stated", "hosts"),
    [
        ({0: ("a", None), 1: ("b", None)}, {0: "a", 1: "b"}),
        ({0: ("pod0", "m1"), 1: ("pod1", "m1")}, {0: "pod0", 1: "pod0"}),
        (
            {0: ("node", "machine-number-1"), 1: ("node", "machine-number-2")},
            {0: "node (machine-numbe)", 1: "node (machine-numbe)"},
        ),
        ({0: ("node", "m1"), 1: ("node", None)}, {0: "node (m1)", 1: "node"}),
    ],
)
def test_a_machine_is_a_host_whatever_its_containers_are_called(stated, hosts):
    assert name_hosts(stated) == hosts


def test_older_runs_say_where_other_ranks_are_as_long_as_they_agree():
    def of(run, step, started, hosts):
        return [
            saved(rank, Step(1, step), value, run=run, training=TrainingRecord(started, host=host))
            for rank, host in hosts.items()
        ]

    newest, older = of("c", 5, 30, {0: "x", 1: "x"}), of("b", 4, 20, {1: "x", 2: "y"})
    assert hosts_in_manifests(inventory([*newest, *older])) == {0: "x", 1: "x", 2: "y"}
    oldest = of("a", 3, 10, {2: "z", 3: "w"})
    assert hosts_in_manifests(inventory([*oldest, *newest, *older])) == {0: "x", 1: "x", 2: "y"}
    bare = [replace(file, manifest=None) for file in of("d", 6, 40, {0: "v"})]
    assert hosts_in_manifests(inventory([*bare, *of("d", 6, 40, {1: ""}), *newest])) == {0: "x", 1: "x"}


def test_a_rank_is_where_it_was_at_its_newest_step_also_when_that_slice_is_gone():
    slices = [saved(0, Step(1, step), value, training=TrainingRecord(10, host=f"host{step}")) for step in (3, 1, 2)]
    assert hosts_in_manifests(inventory(slices)) == {0: "host3"}
    assert hosts_in_manifests(inventory(slices[1:], orphans=[orphan(slices[0])])) == {0: "host3"}
    assert hosts_in_manifests(inventory(slices[:1], orphans=[orphan(slices[1])])) == {0: "host3"}


def test_a_topology_by_manifests_leaves_open_where_other_ranks_are():
    found = topology_of_manifests({1: "a", 2: "b"}, 3)
    assert (found.levels, found.hosts[1:]) == (("host",), ("a", "b"))
    assert not found.hosts[0]
    assert topology_of_manifests({}, 3) is None
