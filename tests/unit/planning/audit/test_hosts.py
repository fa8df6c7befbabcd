"""Hosts of ranks by manifests."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.cli.topology import TopologyOptions, find_topology
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.options import ScanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.audit.hosts import hosts_in_manifests
from tests.support.histories import RANKS, inventory, saved, value
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
