"""Where ranks live, as other tools write it."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.errors import ContradictionError, FormatError, InputError, UsageError
from ms_recover.formats.topology.nodelist import decode_nodelist, decode_tasks, nodes_with_tasks
from ms_recover.formats.topology.placing import MOST_RANKS
from ms_recover.formats.topology.rank_table import decode_rank_table, encode_rank_table, rewrite_rank_table
from ms_recover.formats.topology.scheduler_log import decode_scheduler_log
from ms_recover.formats.topology.topology_file import decode_topology, place_by, with_domains
from ms_recover.model.topology import Host, Topology

DATA = Path(__file__).parents[2] / "data" / "topology"


def refused(call, *words, line=None):
    with pytest.raises(InputError) as caught:
        call()
    text = str(caught.value)
    assert caught.value.exit_code == 3
    assert line is None or f", line {line}" in text, text
    for word in words:
        assert word in text, text


# scheduler.log


def test_ranks_that_the_scheduler_numbered_itself():
    """Two hosts without --node_rank: the first numbers are not those of the ranks, and the last line comes too late."""
    found = decode_scheduler_log((DATA / "assigned-ranks.log").read_bytes(), "scheduler.log", 4)
    assert found.hosts == ("host-a", "host-b", "host-b", "host-a")  # as the four worker logs of that run say


def test_ranks_of_a_rank_table_in_a_log():
    log = decode_scheduler_log((DATA / "rank-table.log").read_bytes(), "scheduler.log")
    table = decode_rank_table((DATA / "rank-table.json").read_bytes(), "hccl.json")
    assert log.hosts == ("host-A", "host-B", "host-A", "host-B")
    assert table.hosts == ("10.77.0.1", "10.77.0.2", "10.77.0.1", "10.77.0.2")


def test_one_host():
    found = decode_scheduler_log((DATA / "numeric-ids.log").read_bytes(), "scheduler.log")
    assert found.hosts == ("vm", "vm")
    assert len(set(found.lines)) == 2


def log_line(node, rank, host, ip, expected=2):
    return (
        f"[WARNING] DISTRIBUTED(1,7f,python):2026-11-22-23:46:43.078.767 [x.cc:254] ProcessRegister] The new node: "
        f"{node}(role: MS_WORKER), rank id: {rank}, device id: 0, hostname: {host}, ip: {ip} is registered "
        f"successfully. Currently registered node number: 1, expected node number: {expected}\n"
    )


def test_one_name_at_two_addresses_is_two_hosts():
    log = log_line(0, 0, "localhost", "10.0.0.1") + log_line(1, 1, "localhost", "10.0.0.2")
    assert decode_scheduler_log(log.encode(), "x").hosts == ("localhost (10.0.0.1)", "localhost (10.0.0.2)")


def test_a_log_of_older_releases_and_of_other_roles():
    old = "The new node: 0(role: MS_WORKER), rank id: 0, ip: 10.0.0.1 is registered successfully.\n"
    server = log_line(7, 7, "h", "10.0.0.9").replace("MS_WORKER", "MS_PSERVER")
    assert decode_scheduler_log((old + server).encode(), "x").hosts == ("10.0.0.1",)


@pytest.mark.parametrize(
    ("log", "line", "words"),
    [
        ("", 1, ["no worker registers here"]),
        ("The new node: 0(role: MS_WORKER), rank id: 0, device", 1, ["no worker registers here"]),
        (log_line(0, 0, "a", "1"), 1, ["no host for rank 1 of 2 ranks by the scheduler"]),
        (log_line(0, 0, "a", "1") + log_line(1, 0, "b", "2"), 2, ["rank 0 is on b", "on a by line 1"]),
        (log_line(0, 0, "a", "1") + log_line(1, 4294967295, "b", "2"), 2, ["1 has no rank"]),
        (log_line(0, 0, "a", "1") + log_line(1, 5, "b", "2"), 2, ["rank 5 is on b, but there are 2 ranks"]),
    ],
)
def test_a_log_that_cannot_be_right(log, line, words):
    refused(lambda: decode_scheduler_log(log.encode(), "scheduler.log"), *words, line=line)


@given(st.binary(max_size=300))
def test_no_log_is_more_than_refused(data):
    with pytest.raises(InputError):
        decode_scheduler_log(data, "x")


# Rank tables


def table(*servers, **facts):
    """Each server: its id and its ranks."""
    listed = [
        {
            "server_id": name,
            "device": [{"device_id": str(at), "device_ip": f"192.0.2.{at}", "rank_id": str(rank)} for at, rank in made],
        }
        for name, made in ((name, list(enumerate(ranks))) for name, ranks in servers)
    ]
    whole = {"version": "1.0", "server_count": str(len(servers)), "server_list": listed, "status": "completed"}
    return json.dumps(whole | facts, indent=1)


GOOD = table(("node_0", [0, 1]), ("node_1", [2, 3]))
PODS = [
    {"super_pod_id": "0", "server_list": [{"server_id": "node_0"}]},
    {"super_pod_id": "1", "server_list": [{"server_id": "node_1"}]},
]
INSTANCES = [
    {"rank_id": str(rank), "server_id": f"10.0.0.{10 + rank // 2}", "devices": [{"device_id": "0"}]}
    for rank in range(4)
]
BARE = [{"pod_name": "job-0", "server_id": f"10.0.0.{at}", "devices": [{"device_id": "0"}] * 2} for at in (10, 11)]


def test_a_rank_table_of_version_1_0():
    found = decode_rank_table(GOOD.encode(), "hccl.json", 4)
    assert (found.levels, found.hosts) == (("host",), ("node_0", "node_0", "node_1", "node_1"))
    assert [GOOD.splitlines()[line - 1].strip() for line in found.lines] == ["{"] * 4


def test_a_rank_table_of_super_pods():
    text = table(("node_0", [0, 2]), ("node_1", [1, 3]), version="1.2", super_pod_list=PODS)
    found = decode_rank_table(text.encode(), "hccl.json", 4)
    assert found.levels == ("host", "super_pod")
    assert found.domains == (("node_0", "node_1", "node_0", "node_1"), ("0", "1", "0", "1"))


@pytest.mark.parametrize("listed", [INSTANCES, BARE])
def test_rank_tables_with_a_list_of_groups(listed):
    text = json.dumps({"status": "completed", "group_count": "1", "group_list": [{"instance_list": listed}]})
    assert decode_rank_table(text.encode(), "x", 4).hosts == ("10.0.0.10",) * 2 + ("10.0.0.11",) * 2


def test_a_global_rank_table():
    group = json.loads(GOOD)
    text = json.dumps({"version": "1.0", "status": "completed", "server_group_list": [group]})
    assert decode_rank_table(text.encode(), "x", 4).hosts == ("node_0", "node_0", "node_1", "node_1")


def test_pods_of_one_machine_are_one_host():
    whole = json.loads(table(("uid-a", [0, 1]), ("uid-b", [2, 3]), ("uid-c", [4, 5])))
    for server, address in zip(whole["server_list"], ("10.0.0.1", "10.0.0.1", "10.0.0.2"), strict=True):
        server["host_ip"] = address
    found = decode_rank_table(json.dumps(whole).encode(), "x", 6)
    assert found.hosts == ("10.0.0.1",) * 4 + ("uid-c",) * 2


def test_a_host_in_two_super_pods():
    whole = json.loads(table(("node_0", [0, 1]), ("node_1", [2, 3]), version="1.2", super_pod_list=PODS))
    for server in whole["server_list"]:
        server["host_ip"] = "10.0.0.1"
    refused(lambda: decode_rank_table(json.dumps(whole).encode(), "x"), "host 10.0.0.1 is in super pod 1, and in 0 by")


def test_a_rank_table_that_is_written():
    topology = Topology(("host",), (("a", "b", "a", "b"),), "x")
    assert decode_rank_table(encode_rank_table(topology), "x").hosts == topology.hosts


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (GOOD[:200], None, ["no JSON"]),
        ("[]", 1, ["an object was expected"]),
        ("{}", 1, ["neither server_list nor group_list"]),
        ("[" * 5000, 1, ["nested too deeply"]),
        (GOOD.replace('"1.0"', '"3.0"'), 1, ["version '3.0'"]),
        (GOOD.replace("completed", "initializing"), 1, ["'initializing'", "wait until"]),
        (GOOD.replace('"rank_id": "3"', '"rank_id": "2"'), 28, ["rank 2 is on node_1, and on node_1 by line 23"]),
        (GOOD.replace('"rank_id": "3"', '"rank_id": "0"'), 28, ["rank 0 is on node_1, and on node_0 by line 8"]),
        (GOOD.replace('"rank_id": "3"', '"rank_id": "4"'), 28, ["rank 4 is on node_1, but there are 4 ranks by M"]),
        (GOOD.replace('"rank_id": "3"', '"rank_id": "x"'), 28, ["rank_id must be a number, it is 'x'"]),
        (GOOD.replace('"rank_id": "3"', f'"rank_id": {"3" * 5000}'), 31, ["a number has too many digits"]),
        (GOOD.replace('"rank_id": "3"', '"rank_id": null'), 28, ["rank_id must be a number"]),
        (GOOD.replace('"server_count": "2"', '"server_count": "3"'), 1, ["server_count is 3, and 2 servers"]),
        (GOOD.replace("node_1", "node_0"), 20, ["server node_0 is listed again, line 5 has it"]),
        (GOOD.replace('"server_id": "node_1"', '"server_id": 7'), 20, ["server_id must be a text"]),
        (GOOD.replace('"device_id": "0"', '"rank_id": "9"', 1), 8, ["'rank_id' is there twice"]),
        (table(("node_0", [0, 1, 2])), None, ["no host for rank 3 of 4 ranks by M"]),
        (table(("node_0", []), server_list=[]), 1, ["server_count is 1, and 0 servers"]),
        (table(server_list=[]), 1, ["no rank is placed"]),
        (table(("node_0", [0, 1]), ("node_1", [2, 3]), super_pod_list=PODS[:1]), 20, ["node_1 is in no super pod"]),
        (table(("node_0", [0, 1]), super_pod_list=PODS), None, ["super pod 1 has server node_1, which is not in"]),
        (
            table(("node_0", [0, 1]), ("node_1", [2, 3]), super_pod_list=[*PODS, PODS[0] | {"super_pod_id": "1"}]),
            None,
            ["server node_0 is in super pod 1, and in 0 before"],
        ),
    ],
)
def test_a_rank_table_that_cannot_be_right(text, line, words):
    refused(lambda: decode_rank_table(text.encode(), "hccl.json", 4, "M"), "hccl.json, line ", *words, line=line)


PLACED = Topology(("host",), (("node_1", "node_0", "node_0", "node_1"),), "placement")


def placed(data):
    """Return the host and the device of each rank by a rank table."""
    devices = [
        (server["server_id"], device["device_id"], int(device["rank_id"]))
        for group in [data, *data.get("server_group_list", ())]
        for server in group.get("server_list", ())
        for device in server["device"]
    ]
    devices += [
        (one["server_id"], one["device_id"], int(one["rank_id"]))
        for group in data.get("group_list", ())
        for one in group["instance_list"]
    ]
    return {rank: (host, device) for host, device, rank in devices}


HOSTS = ("node_0", "node_0", "node_1", "node_1")
NUMBERED = [{"server_id": host, "device_id": f"{rank}", "rank_id": f"{rank}"} for rank, host in enumerate(HOSTS)]


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        json.dumps({"version": "1.0", "status": "completed", "server_group_list": [json.loads(GOOD)]}),
        json.dumps({"status": "completed", "group_list": [{"instance_list": NUMBERED}]}),
    ],
    ids=["servers", "groups of servers", "groups of instances"],
)
def test_a_rank_table_is_rewritten_and_ranks_that_stay_keep_their_devices(text):
    before, written = placed(json.loads(text)), rewrite_rank_table(text.encode(), "x", PLACED)
    after = placed(json.loads(written))
    assert decode_rank_table(written, "x").hosts == PLACED.hosts
    assert sorted(before.values()) == sorted(after.values())
    assert [rank for rank in range(4) if before[rank] == after[rank]] == [1, 3]
    assert rewrite_rank_table(written, "x", PLACED) == written


def test_a_rank_table_is_not_rewritten_for_other_hosts_or_without_numbers():
    other = replace(PLACED, domains=(("node_0", "node_0", "node_0", "node_1"),))
    refused(lambda: rewrite_rank_table(GOOD.encode(), "hccl.json", other), "hccl.json: its hosts do not take the ranks")
    text = json.dumps({"status": "completed", "group_count": "1", "group_list": [{"instance_list": BARE}]})
    hosts = (("10.0.0.11", "10.0.0.10", "10.0.0.10", "10.0.0.11"),)
    refused(lambda: rewrite_rank_table(text.encode(), "x", replace(PLACED, domains=hosts)), "x: it numbers no ranks")


# Lists of nodes


def expand(text):
    """Return the nodes of a list as scontrol show hostnames would print them."""
    names = []
    for item in re.findall(r"(?:\[[^\]]*\]|[^,\[\]])+", text):
        parts = []
        for bracket, plain in re.findall(r"\[([^\]]*)\]|([^\[\]]+)", item):
            if plain:
                parts.append([plain])
                continue
            part = []
            for one in bracket.split(","):
                low, _, high = one.partition("-")
                part += [f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
            parts.append(part)
        names += ["".join(pieces) for pieces in itertools.product(*parts)]
    return names


def test_a_list_of_nodes():
    text = "node[1-3,07-09],gpu-a[01-02]x[0-1],login"
    names = ["node1", "node2", "node3", "node07", "node08", "node09"]
    names += ["gpu-a01x0", "gpu-a01x1", "gpu-a02x0", "gpu-a02x1", "login"]
    assert list(decode_nodelist(text, "x")) == expand(text) == names


_number = st.integers(0, 120)
_range = st.tuples(_number, st.integers(0, 12), st.integers(1, 4)).map(
    lambda made: f"{made[0]:0{made[2]}d}-{made[0] + made[1]:0{made[2]}d}"
)
_bracket = st.lists(st.one_of(_number.map(str), _range), min_size=1, max_size=3).map(lambda made: f"[{','.join(made)}]")
_name = st.from_regex(r"\A[a-z][a-z0-9.-]{0,5}\Z")
_item = st.tuples(_name, st.lists(st.one_of(_bracket, _name), max_size=3)).map(lambda made: made[0] + "".join(made[1]))


@given(st.lists(_item, min_size=1, max_size=4).map(",".join))
def test_lists_of_nodes_are_those_of_scontrol(text):
    expected = expand(text)
    if len(set(expected)) < len(expected):
        refused(lambda: decode_nodelist(text, "x"), "is named twice")
    else:
        assert list(decode_nodelist(text, "x")) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["character 1: a node was expected"]),
        ("a,,b", ["character 3: a node was expected"]),
        ("a[1-3", ["a bracket is not closed"]),
        ("a1-3]", ["character 5: brackets do not match"]),
        ("a[1-[2]]", ["character 5: brackets do not match"]),
        ("a[3-1]", ["'3-1' is neither a number nor a range"]),
        ("a[]", ["'' is neither"]),
        ("a[0-6:2]", ["'0-6:2' is neither"]),
        ("a b", ["character 2", "is no part of a list of nodes"]),
        ("a[1-99999999]", ["more than 1048576 nodes"]),
        ("a[0-9999]x[0-9999]", ["more than 1048576 nodes"]),
        ("a[1-3],a2", ["node a2 is named twice"]),
    ],
)
def test_a_list_of_nodes_that_cannot_be_right(text, words):
    refused(lambda: decode_nodelist(text, "--nodelist"), "--nodelist", *words)


def test_tasks_of_nodes():
    assert decode_tasks("8(x3),4", "x") == (8, 8, 8, 4)
    assert nodes_with_tasks(("a", "b"), (8, 4), "x") == (Host("a", 8), Host("b", 4))
    assert nodes_with_tasks(("a", "b"), None, "x") == (Host("a"), Host("b"))
    refused(lambda: decode_tasks("8(x3", "x"), "no number of tasks")
    refused(lambda: decode_tasks("8(x9999999)", "x"), "more than")
    refused(lambda: nodes_with_tasks(("a", "b"), (8,), "x"), "2 nodes, and tasks for 1")


# Topologies

YAML = """\
levels: [host, rack, power]
hosts:
  node1: {ranks: 0-1, rack: r1, power: p1}
  node2:
    ranks: [2, 3]
    rack: r1
    power: p2
"""
JSON = json.dumps(
    {
        "hosts": [
            {"host": "node1", "ranks": "0,1", "rack": "r1", "power": "p1"},
            {"host": "node2", "ranks": [2, 3], "rack": "r1", "power": "p2"},
        ]
    },
    indent=1,
)
DOMAINS = (("node1", "node1", "node2", "node2"), ("r1",) * 4, ("p1", "p1", "p2", "p2"))


@pytest.mark.parametrize(("text", "where"), [(YAML, "t.yaml"), (YAML, "t"), (JSON, "t.json"), (JSON, "t.yml")])
def test_topologies(text, where):
    found = place_by(decode_topology(text.encode(), where), 4)
    assert (found.levels, found.domains) == (("host", "rack", "power"), DOMAINS)


def test_hosts_without_ranks_are_filled():
    text = "hosts:\n  a: {rack: r1}\n  b: {rack: r2}\n"
    file = decode_topology(text.encode(), "t.yaml")
    assert place_by(file, 4).domains == (("a", "a", "b", "b"), ("r1", "r1", "r2", "r2"))
    assert place_by(file, 4, 2).domains == place_by(file, 4).domains
    refused(lambda: place_by(file, 5), "do not fill all evenly")
    slots = decode_topology(b"hosts: [{host: a, slots: 1}, {host: b, slots: 3}]", "t.yaml")
    assert place_by(slots, 4).domains == (("a", "b", "b", "b"),)


def test_racks_for_hosts_of_another_source():
    file = decode_topology(b"hosts: {a: {rack: r1}, b.example: {rack: r2}}", "t.yaml")
    topology = Topology(("host",), (("a", "b", "a"),), "hccl.json", (3, 4, 5))
    found = with_domains(topology, file)
    assert found.domains == (("a", "b", "a"), ("r1", "r2", "r1"))
    assert found.source == "hccl.json and t.yaml"
    refused(lambda: with_domains(Topology(("host",), (("a", "c"),), "x"), file), "host c of rank 1 is not there")


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("hosts: {a: {rack: r1}}\nhosts: {}", 2, ["'hosts' is there twice"]),
        ("hosts:\n  a: {rack: r1}\n  b: {rack: r1}\n  a: {rack: r2}\n", 4, ["'a' is there twice"]),
        ("hosts:\n- {host: a, ranks: 0, rack: r1}\n- {host: a, ranks: 1, rack: r2}", 3, ["a is in rack r2, and in r1"]),
        ("hosts:\n- {host: a, rack: r1}\n- {host: a, rack: r1}", 3, ["a is listed again"]),
        ("hosts:\n  a: {rack: r1}\n  b: {}\n", 3, ["host b has no rack"]),
        ("levels: [host]\nhosts:\n  a: {rack: r1}\n", 3, ["host a has 'rack', which is no level"]),
        ("levels: [rack]\nhosts: {a: {rack: r1}}", 1, ["levels begin with 'rack'"]),
        ("levels: [host, rank]\nhosts: {a: {rank: r1}}", 1, ["'rank' cannot be a level"]),
        ("hosts:\n  a: {ranks: 3-1}\n", 2, ["'3-1' is neither a rank nor a range"]),
        ("hosts:\n  a: {ranks: 0-1}\n  b: {ranks: 1-3}\n", 3, ["rank 1 is on b, and on a by line 2"]),
        ("hosts:\n  a: {ranks: 0-1}\n  b: {ranks: 3}\n", 3, ["no host for rank 2 of 4"]),
        ("hosts:\n  a: {ranks: 0-4}\n", 2, ["rank 4 is on a, but there are 4 ranks"]),
        ("hosts: {a: {rack: [1]}}", 1, ["must be a text"]),
        ("hosts: {a: 3}", 1, ["host a must be an object"]),
        ("hosts: 3", 1, ["hosts must be an object or a list"]),
        ("hosts: {}", 1, ["no host is there"]),
        ("nodes: {}", 1, ["an object with hosts was expected"]),
        ("", 1, ["an object with hosts was expected"]),
        ("hosts:\n  a: {rack: r1\n", 3, ["no YAML"]),
        ("a: &x 1\nhosts: *x", 2, ["*x is an alias"]),
        ("hosts: !!python/object:os.system {a: b}", 1, ["host a must be an object"]),
        ("hosts: {a: {slots: many}}", 1, ["slots must be a number"]),
        ("hosts: {a: {slots: 0-7}}", 1, ["slots must be a number"]),
        ("[" * 3000, 1, ["nest"]),
        ("hosts: \x00", 1, ["no YAML"]),
        (f"hosts: {{a: {{ranks: {MOST_RANKS}}}}}", 1, ["neither a rank nor a range"]),
        (f"hosts: {{a: {{ranks: {MOST_RANKS - 1}}}}}", 1, ["but there are 4 ranks"]),
        ("levels: host\nhosts: {a: {}}", 1, ["levels: a list was expected"]),
        ("levels: [host, rack, rack]\nhosts: {a: {rack: 1}}", 1, ["cannot be a level"]),
        ("hosts:\n  a:\n\n    ranks: 0\n  b:\n    ranks: x\n", 6, ["'x' is neither a rank nor a range"]),
        ("hosts: [[3]]", 1, ["a host must be an object"]),
        ("hosts: {a: {slots: 1, ranks: 0, cable: x}, b: {cable: }}", 1, ["host b has no cable"]),
        ("hosts: {'': {}}", 1, ["'' is no name of a host"]),
        (f"hosts: {{{'a' * 256}: {{}}}}", 1, ["is no name of a host"]),
        ('hosts: {"a\\tb": {}}', 1, ["is no name of a host"]),
        ("hosts:\n- {host: a, ranks: 0}\n- {host: a}", 3, ["a is listed again, line 2 has it"]),
    ],
)
def test_a_topology_that_cannot_be_right(text, line, words):
    refused(lambda: place_by(decode_topology(text.encode(), "t.yaml"), 4), "t.yaml, line ", *words, line=line)


def test_racks_for_ranks_that_another_source_places_elsewhere():
    file = decode_topology(b"hosts:\n  a: {ranks: 0-1, rack: r1}\n  b: {ranks: 2, rack: r2}\n", "t.yaml")
    there = Topology(("host",), (("a", "a", "b"),), "hccl.json")
    assert with_domains(there, file).domains == (("a", "a", "b"), ("r1", "r1", "r2"))
    moved = replace(there, domains=(("a", "b", "b"),))
    refused(lambda: with_domains(moved, file), "rank 1 is not on b, but is there by", line=3)
    refused(lambda: with_domains(with_domains(there, file), file), "rack is a level of hccl.json and t.yaml, too")
    unknown = with_domains(replace(there, domains=(("a", "a", ""),)), file)
    assert unknown.domains == (("a", "a", ""), ("r1", "r1", ""))


def test_a_host_may_be_listed_twice_with_other_ranks_or_by_its_name_alone():
    file = decode_topology(
        b"hosts: [{host: a, ranks: 0, rack: r}, {host: b, ranks: 1, rack: r}, {name: a, ranks: 2, rack: r}]", "t"
    )
    assert place_by(file, 3).hosts == ("a", "b", "a")
    assert place_by(decode_topology(b"hosts: [a, b]", "t"), 2).hosts == ("a", "b")
    assert place_by(decode_topology(b"hosts: {a: , b: ~}", "t"), 2).hosts == ("a", "b")


def test_yaml_without_its_package(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    assert decode_topology(JSON.encode(), "t.json").places_ranks
    with pytest.raises(UsageError, match=r"pip install '\.\[topology\]'"):
        decode_topology(YAML.encode(), "t.yaml")


@given(st.text(max_size=60))
def test_no_text_is_more_than_refused(text):
    for where in ("t.yaml", "t.json"):
        with pytest.raises((FormatError, ContradictionError)):
            decode_topology(text.encode("utf-8", "replace"), where)
    with pytest.raises((FormatError, ContradictionError)):
        decode_rank_table(text.encode("utf-8", "replace"), "x")
