"""Where ranks live, by options and by manifests."""

import json
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ms_recover.cli.topology import TopologyOptions, find_topology, topology_options, write_placement
from ms_recover.errors import ContradictionError, FormatError, InputError, MissingInputError, UsageError
from ms_recover.formats.topology.rank_table import encode_rank_table
from ms_recover.model.manifest import Digests, Manifest, TrainingRecord
from ms_recover.model.topology import Topology
from tests.support.inventories import OLDER, STEP, slice_file, tree

TWO_HOSTS = ("node1",) * 4 + ("node2",) * 4
DIGEST = "xxh3_128:" + "0" * 32


def saved(rank, host, step=STEP, *, started=1, world_size=8, machine=None):
    file = slice_file(rank, step)
    training = TrainingRecord(started, host=host, machine=machine)
    group = (rank,)
    digests = Digests(DIGEST, (DIGEST,) * len(file.parameters))
    run_id = f"run{started}"
    manifest = Manifest(
        run_id, rank, world_size, step, None, "x.ckpt", file.size, digests, file.parameters, group, training=training
    )
    return replace(file, manifest=manifest)


def on_hosts(hosts=TWO_HOSTS, **facts):
    return tree([saved(rank, host, **facts) for rank, host in enumerate(hosts)], {})


def write(path, text):
    path.write_text(text)
    return str(path)


def test_manifests_say_where_ranks_live():
    assert find_topology(on_hosts(), TopologyOptions()) == Topology(("host",), (TWO_HOSTS,), "the hosts in manifests")


def test_nothing_is_said_unless_every_host_is_known():
    assert find_topology(on_hosts([*TWO_HOSTS[:-1], None]), TopologyOptions()) is None
    assert find_topology(tree([saved(rank, "node1") for rank in range(7)], {}), TopologyOptions()) is None
    assert find_topology(tree([slice_file(rank) for rank in range(8)], {}), TopologyOptions()) is None
    assert find_topology(None, TopologyOptions(), 8) is None


def test_the_run_that_began_last_counts_and_older_ones_as_far_as_they_agree():
    before = [saved(rank, "old", OLDER, started=1) for rank in range(8)]
    now = [saved(rank, host, STEP, started=2) for rank, host in enumerate(TWO_HOSTS)]
    assert find_topology(tree(before + now, {}), TopologyOptions()).hosts == TWO_HOSTS
    assert find_topology(tree(before + now[:-1], {}), TopologyOptions()) is None
    same = [saved(rank, host, OLDER, started=1) for rank, host in enumerate(TWO_HOSTS)]
    assert find_topology(tree(same + now[:-1], {}), TopologyOptions()).hosts == TWO_HOSTS


def test_containers_of_one_machine_are_one_host():
    slices = [saved(rank, f"pod{rank // 2}", machine=f"machine{rank // 4}") for rank in range(8)]
    assert find_topology(tree(slices, {}), TopologyOptions()).hosts == ("pod0",) * 4 + ("pod2",) * 4


def test_one_name_on_two_machines_is_two_hosts():
    slices = [saved(rank, "localhost", machine=f"{rank // 4}" * 36) for rank in range(8)]
    found = find_topology(tree(slices, {}), TopologyOptions()).hosts
    assert found == ("localhost (0000000000000)",) * 4 + ("localhost (1111111111111)",) * 4


def test_neighbours_share_a_host():
    bare = tree([slice_file(rank) for rank in range(8)], {})
    found = find_topology(bare, TopologyOptions(ranks_per_host=4))
    assert found.domains == (("host0",) * 4 + ("host1",) * 4,)
    assert found.source == "--ranks-per-host 4"
    with pytest.raises(UsageError, match="--world-size"):
        find_topology(None, TopologyOptions(ranks_per_host=4))


@pytest.mark.parametrize(
    "text",
    [
        "node1 slots=4\nnode2 slots=4\n",
        "# our nodes\n\nnode1 slots=4 max_slots=8 # the first\nroot@node2 slots=4",
        "node1:4\nnode2:4\n",
        "node1\nnode2\n",
        "node1\n" * 4 + "node2\n" * 4,
        "".join(f"rank {rank}=node{1 + rank // 4} slot={rank % 4}\n" for rank in (7, 0, 1, 2, 3, 6, 5, 4)),
    ],
)
def test_hostfiles(tmp_path, text):
    path = write(tmp_path / "hosts", text)
    found = find_topology(on_hosts(), TopologyOptions(hostfile=path))
    assert (found.hosts, found.source) == (TWO_HOSTS, path)
    assert len(found.lines) == 8


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("node1 slots=4\nnode2 slots=5\n", 2, "take 9 ranks, but there are 8"),
        ("node1 slots=4\nnode2 slots=3\n", 2, "no host is left for rank 7"),
        ("node1\nnode2\nnode3\n", 1, "8 ranks by the manifests of step 2_8 do not fill all evenly"),
        ("node1 slots=4\nnode2\n", 2, "node2 has no number of ranks"),
        ("node1 slots=4\nnode1 slots=4\n", 2, "node1 is listed again, line 1 has it"),
        ("node1 slots=4\nNode1 slots=4\n", 2, "Node1 is node1 of line 1 in another spelling"),
        ("node1.a slots=4\nnode1 slots=4\n", 2, "node1 is node1.a of line 1 in another spelling"),
        ("node1:4:8\nnode2:4:8\n", 1, "'node1:4:8' is no name of a host"),
        ("node1 slots=4\nnode2 slot=4\n", 2, "'slot=4' is not understood"),
        ("node1 slots=4\nnode2 slots=-4\n", 2, "'slots=-4' is not understood"),
        ("node1 slots=0\n", 1, "takes no rank"),
        ("\n# nothing\n", 1, "no host is named"),
        ("node1 slots=4\n{}\n", 2, "no name of a host"),
        ("node1 slots=9999999\n", 1, "more than 1048576 ranks"),
        ("rank 0=node1 slot=0\nrank 0=node2 slot=0\n", 2, "rank 0 is on node2, and on node1 by line 1"),
        ("rank 0=node1 slot=0\nrank 9=node2 slot=0\n", 2, "rank 9 is on node2, but there are 8 ranks"),
        ("rank 0=node1 slot=0\nrank 2=node2 slot=0\n", 2, "no host for rank 1, 3, 4"),
        ("rank 0=node1 slot=0\nnode2\n", 2, "places no rank"),
    ],
)
def test_a_hostfile_that_cannot_be_right_ends_with_3_and_the_line(tmp_path, text, line, words):
    path = write(tmp_path / "hosts", text)
    with pytest.raises(InputError) as caught:
        find_topology(on_hosts(), TopologyOptions(hostfile=path))
    assert str(caught.value).startswith(f"{path}, line {line}")
    assert words in str(caught.value)
    assert caught.value.exit_code == 3


def test_a_hostfile_in_another_encoding(tmp_path):
    (tmp_path / "hosts").write_bytes(b"node1\nn\xe9e\n")
    with pytest.raises(FormatError, match="line 2: no text"):
        find_topology(on_hosts(), TopologyOptions(hostfile=str(tmp_path / "hosts")))
    with pytest.raises(MissingInputError):
        find_topology(on_hosts(), TopologyOptions(hostfile=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("node2 slots=4\nnode1 slots=4\n", "line 1: rank 0 is on node2, and on node1 by its manifest"),
        ("10.0.0.1 slots=8\n", "line 1: ranks 0 and 4 are on 10.0.0.1, and on node1 and node2 by their manifests"),
        ("a slots=2\nb slots=6\n", "line 2: rank 2 is on b and rank 0 on a, and both are on node1 by their manifests"),
    ],
)
def test_hosts_that_contradict_the_manifests(tmp_path, text, words):
    path = write(tmp_path / "hosts", text)
    with pytest.raises(ContradictionError, match=words):
        find_topology(on_hosts(), TopologyOptions(hostfile=path))
    assert find_topology(on_hosts(), TopologyOptions(hostfile=path, ignore_hosts=True)).world_size == 8


@pytest.mark.parametrize("text", ["10.0.0.1 slots=4\n10.0.0.2 slots=4\n", "node1.example:4\nNODE2.example:4\n"])
def test_other_names_for_the_same_hosts(tmp_path, text):
    path = write(tmp_path / "hosts", text)
    assert find_topology(on_hosts(), TopologyOptions(hostfile=path)).world_size == 8


def test_ranks_per_host_that_contradict_the_manifests():
    with pytest.raises(ContradictionError, match="rank 2 is on host1 and rank 0 on host0, and both are on node1"):
        find_topology(on_hosts(), TopologyOptions(ranks_per_host=2))


def test_other_sources(tmp_path, monkeypatch):
    data = Path(__file__).parents[2] / "data" / "topology"
    table = TopologyOptions(rank_table=str(data / "rank-table.json"))
    assert find_topology(None, table).hosts == ("10.77.0.1", "10.77.0.2", "10.77.0.1", "10.77.0.2")
    log = TopologyOptions(scheduler_log=str(data / "rank-table.log"))
    assert find_topology(on_hosts(["host-A", "host-B"] * 2, world_size=4), log).source == log.scheduler_log
    with pytest.raises(
        ContradictionError, match=r"rank-table.log, line \d+: rank 0 is on host-A, and on host-B by its"
    ):
        find_topology(on_hosts(["host-B", "host-A"] * 2, world_size=4), log)
    with pytest.raises(ContradictionError, match="no host for rank 4, 5, 6, 7 of 8 ranks by the manifests"):
        find_topology(on_hosts(), log)
    racks = write(tmp_path / "racks.yaml", "hosts: {host-a: {rack: r1}, host-b: {rack: r2}}")
    found = find_topology(None, replace(log, topology=racks))
    assert found.domains[1] == ("r1", "r2", "r1", "r2")
    racks = write(tmp_path / "racks.yaml", "hosts: {node1: {rack: r1}, node2: {rack: r2}}")
    assert find_topology(on_hosts(), TopologyOptions(topology=racks)).domains[1] == ("r1",) * 4 + ("r2",) * 4
    with pytest.raises(UsageError, match="--rank-table and --hostfile"):
        find_topology(None, replace(table, hostfile="x"))
    with pytest.raises(UsageError, match="--rank-table and --ranks-per-host"):
        find_topology(None, replace(table, ranks_per_host=8))


def test_slurm(monkeypatch):
    monkeypatch.delenv("SLURM_JOB_NODELIST", raising=False)
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "6,2")
    assert find_topology(on_hosts(), TopologyOptions(nodelist="node[1-2]")).hosts == TWO_HOSTS
    with pytest.raises(UsageError, match="is not set here"):
        find_topology(on_hosts(), TopologyOptions(nodelist="SLURM_JOB_NODELIST"))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-2]")
    assert find_topology(None, TopologyOptions(nodelist="SLURM_JOB_NODELIST")).hosts == ("node1",) * 6 + ("node2",) * 2
    assert find_topology(None, TopologyOptions(nodelist="node[1-2]")).world_size == 8
    assert find_topology(None, TopologyOptions(nodelist="node[1-2]", ranks_per_host=4)).hosts == TWO_HOSTS
    with pytest.raises(
        ContradictionError, match="SLURM_JOB_NODELIST: rank 0 is on node2, and on node1 by its manifest"
    ):
        monkeypatch.setenv("SLURM_JOB_NODELIST", "node[2,1]")
        monkeypatch.setenv("SLURM_TASKS_PER_NODE", "4(x2)")
        find_topology(on_hosts(), TopologyOptions(nodelist="SLURM_JOB_NODELIST"))


def test_a_placement_is_written_and_read_again(tmp_path):
    table = tmp_path / "hccl.json"
    table.write_bytes(encode_rank_table(Topology(("host",), (("10.0.0.1",) * 4 + ("10.0.0.2",) * 4,), "x")))
    chosen = TopologyOptions(rank_table=str(table))
    moved = Topology(
        ("host",), (("10.0.0.1", "10.0.0.2", "10.0.0.1", "10.0.0.1") + ("10.0.0.2",) * 3 + ("10.0.0.1",),), "x"
    )
    assert write_placement(str(tmp_path / "new.json"), moved, chosen) == "rank table"
    assert find_topology(None, TopologyOptions(rank_table=str(tmp_path / "new.json"))).hosts == moved.hosts
    new = json.loads((tmp_path / "new.json").read_text())
    devices = {one["rank_id"]: one["device_id"] for server in new["server_list"] for one in server["device"]}
    assert devices == {"0": "0", "7": "1", "2": "2", "3": "3", "4": "0", "5": "1", "6": "2", "1": "3"}
    assert write_placement(str(tmp_path / "other.json"), moved, TopologyOptions()) == "rank table"
    assert find_topology(None, TopologyOptions(rank_table=str(tmp_path / "other.json"))).hosts == moved.hosts
    assert write_placement(str(tmp_path / "ranks"), moved, chosen) == "rankfile"
    assert find_topology(None, TopologyOptions(hostfile=str(tmp_path / "ranks"))).hosts == moved.hosts
    plain = Topology(("host",), (TWO_HOSTS,), "x")
    assert write_placement(str(tmp_path / "hosts"), plain, chosen) == "hostfile"
    assert (tmp_path / "hosts").read_text() == "node1 slots=4\nnode2 slots=4\n"
    with pytest.raises(UsageError, match="hosts is there already"):
        write_placement(str(tmp_path / "hosts"), plain, chosen)
    with pytest.raises(ContradictionError, match="give the table of this job"):
        write_placement(str(tmp_path / "third.json"), plain, chosen)
    assert not (tmp_path / "third.json").exists()


def test_the_options_reach_a_command():
    seen = []

    @click.command()
    @topology_options
    def command(topology):
        seen.append(topology)

    done = CliRunner().invoke(command, ["--hostfile", "hosts", "--ranks-per-host", "8", "--ignore-hosts"])
    assert (done.exit_code, done.output) == (0, "")
    assert seen == [TopologyOptions(hostfile="hosts", ranks_per_host=8, ignore_hosts=True)]
    assert CliRunner().invoke(command, ["--ranks-per-host", "0"]).exit_code == 2
