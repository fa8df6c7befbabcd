"""Hosts of a real job: in its manifests, in the log of its scheduler, and what rank 0 says about them."""

import json
import socket

import pytest

from ms_recover import api
from ms_recover.cli.topology import TopologyOptions, find_topology
from ms_recover.errors import ContradictionError
from tests.support.msrun import run_ranks

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a job of two ranks, and what each logged about hosts."""
    folder = tmp_path_factory.mktemp("hosts")
    code, text = run_ranks("host_losses.py", 2, folder, folder)
    written = [folder / f"said{rank}.json" for rank in range(2)]
    assert all(one.exists() for one in written), (code, text)
    return folder, [json.loads(one.read_text()) for one in written]


def test_rank_0_says_once_that_there_is_one_host(saved):
    _, said = saved
    ((level, text),) = said[0]["one"]
    assert level == "INFO"
    assert "1_1: " in text
    assert "survives no host; smallest fatal loss: 1 host (1 of 1): node1 has every copy" in text
    assert said[1] == {"one": [], "two": []}


def test_rank_0_says_once_that_a_host_may_be_lost(saved):
    _, said = saved
    ((level, text),) = said[0]["two"]
    assert level == "INFO"
    assert "survives any 1 host" in text


def test_the_tree_says_where_its_ranks_ran(saved):
    folder, _ = saved
    assert find_topology(api.scan(folder / "one"), TopologyOptions()).hosts == ("node1", "node1")
    assert find_topology(api.scan(folder / "two"), TopologyOptions()).hosts == ("node1", "node2")


def test_the_log_of_the_scheduler_says_it_too(saved):
    folder, _ = saved
    log = TopologyOptions(scheduler_log=str(folder / "logs" / "scheduler.log"))
    found = find_topology(api.scan(folder / "one"), log)
    assert found.hosts == (socket.gethostname(),) * 2
    with pytest.raises(ContradictionError, match=r"scheduler\.log, line \d+: ranks 0 and 1 are on "):
        find_topology(api.scan(folder / "two"), log)
