"""Ascend's rank tables: which rank runs on which device of which server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from ms_recover.errors import ContradictionError, FormatError
from ms_recover.formats.topology.located import Located, decode_json, decode_text
from ms_recover.formats.topology.placing import Place, place_ranks
from ms_recover.model.topology import Topology

SUPER_POD: Final = "super_pod"
"""The level above hosts in tables of version 1.2."""

_VERSIONS: Final = ("1.0", "1.2")


@dataclass(frozen=True, slots=True)
class _Server:
    """A server of a table: its id, and the address of the machine where the table has one."""

    name: str
    address: str
    line: int


def decode_rank_table(data: bytes, where: str, world_size: int | None = None, tree: str = "") -> Topology:
    """Decode a rank table (``hccl.json``, ``RANK_TABLE_FILE``), `where` in messages.

    Versions 1.0 and 1.2 with ``server_list`` (https://www.hiascend.com, HCCL, "rank table"; MindCluster, "hccl.json
    File Description"); of version 1.2 ``super_pod_list`` gives the level `SUPER_POD`. The older form with
    ``group_list`` and ``instance_list`` (the same, "template 2"; ModelArts, where ranks are numbered in the order of
    devices), and MindCluster's global table with ``server_group_list``. A host is a ``server_id``; servers with the
    same ``host_ip``, several pods of one machine, are one host with that name. Other parameters are those of
    `ms_recover.formats.topology.placing.place_ranks`.

    Raises
    ------
    FormatError
        When it is no such table, or not complete yet; it names the line.
    ContradictionError
        As `place_ranks`; when a server is listed twice or is in two super pods, or `server_count` is another number.
    """
    table = _object(decode_json(decode_text(data, where), where), f"{where}, line 1")
    at = f"{where}, line {table.line}"
    version, status = str(table.get("version", "1.0")), table.get("status", "completed")
    if version not in _VERSIONS:
        raise FormatError(f"{at}: a rank table of version {version[:20]!r}; {' and '.join(_VERSIONS)} are read")
    if status != "completed":
        raise FormatError(f"{at}: its status is {str(status)[:40]!r}: wait until it is completed")
    places, servers, pods = list[Place](), dict[str, _Server](), dict[str, str]()
    if "server_list" in table:
        places = list(_of_servers(table, where, servers))
        pods = _super_pods(table, where, servers)
    elif "server_group_list" in table:
        for group in _objects(table, "server_group_list", where):
            places += _of_servers(group, where, servers)
            pods |= _super_pods(group, where, servers)
    elif "group_list" in table:
        places = list(_of_instances(table, where, servers))
    else:
        raise FormatError(f"{at}: neither server_list nor group_list is there; is it a rank table?")
    if not places:
        raise FormatError(f"{at}: no rank is placed; is it the table of this job?")
    machines = Counter(server.address for server in servers.values() if server.address)
    names = {one.name: one.address if machines[one.address] > 1 else one.name for one in servers.values()}
    found = place_ranks([replace(place, host=names[place.host]) for place in places], world_size, where, tree)
    if not pods:
        return found
    above: dict[str, str] = {}
    for server, pod in pods.items():
        if above.setdefault(names[server], pod) != pod:
            raise ContradictionError(
                f"{where}, line {servers[server].line}: host {names[server]} is in super pod {pod}, and in "
                f"{above[names[server]]} by another server; correct one"
            )
    return replace(
        found, levels=("host", SUPER_POD), domains=(found.hosts, tuple([above[host] for host in found.hosts]))
    )


def encode_rank_table(topology: Topology) -> bytes:
    """Return a rank table of version 1.0 that places ranks so.

    A rank's device is its place among the ranks of its host. Hosts are ``server_id``, and ``pod_ip`` too, which
    MindSpore's scheduler compares with the addresses of workers; addresses of devices are not known, and not there.
    """
    ranks: dict[str, list[int]] = {}
    for rank, host in enumerate(topology.hosts):
        ranks.setdefault(host, []).append(rank)
    servers = [
        {
            "server_id": host,
            "pod_ip": host,
            "device": [{"device_id": str(at), "rank_id": str(rank)} for at, rank in enumerate(held)],
        }
        for host, held in ranks.items()
    ]
    table = {"version": "1.0", "server_count": str(len(servers)), "server_list": servers, "status": "completed"}
    return json.dumps(table, indent=1).encode() + b"\n"


def rewrite_rank_table(data: bytes, where: str, topology: Topology) -> bytes:
    """Return a rank table, `data`, with the ranks that a topology places on its hosts; devices stay as they are.

    A rank that stays on its host keeps its device.

    Raises
    ------
    FormatError, ContradictionError
        As `decode_rank_table`; also where the table numbers no ranks itself.
    """
    now = decode_rank_table(data, where, topology.world_size)
    if Counter(now.hosts) != Counter(topology.hosts):
        raise ContradictionError(
            f"{where}: its hosts do not take the ranks of the placement; give the table of this job"
        )
    coming: dict[str, list[int]] = {}
    for rank, (host, before) in enumerate(zip(topology.hosts, now.hosts, strict=True)):
        if host != before:
            coming.setdefault(host, []).append(rank)
    given = {}
    for rank, (host, before) in enumerate(zip(topology.hosts, now.hosts, strict=True)):
        given[rank] = rank if host == before else coming[before].pop(0)
    table = json.loads(decode_text(data, where))
    devices = [device for server in _servers_of(table) for device in server.get("device", ())]
    devices += [one for group in table.get("group_list", ()) for one in group["instance_list"]]
    for device in devices:
        if "rank_id" not in device:
            raise FormatError(f"{where}: it numbers no ranks; write the placement to a new file")
        device["rank_id"] = str(given[int(device["rank_id"])])
    return json.dumps(table, indent=1).encode() + b"\n"


def _servers_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [table, *table.get("server_group_list", ())]
    return [server for group in groups for server in group.get("server_list", ())]


def _of_servers(table: Located, where: str, servers: dict[str, _Server]) -> Iterator[Place]:
    listed = _objects(table, "server_list", where)
    count = table.get("server_count")
    if count is not None and str(count) != str(len(listed)):
        raise ContradictionError(
            f"{where}, line {table.line}: server_count is {str(count)[:20]}, and {len(listed)} servers are listed; "
            f"correct the file"
        )
    for server in listed:
        name = _name(server, "server_id", where)
        if name in servers:
            raise ContradictionError(
                f"{where}, line {server.line}: server {name} is listed again, line {servers[name].line} has it; "
                f"keep one"
            )
        servers[name] = _Server(name, str(server.get("host_ip") or ""), server.line)
        for device in _objects(server, "device", where):
            yield Place(_rank(device, where), name, device.line)


def _of_instances(table: Located, where: str, servers: dict[str, _Server]) -> Iterator[Place]:
    number = 0
    for group in _objects(table, "group_list", where):
        for instance in _objects(group, "instance_list", where):
            name = _name(instance, "server_id", where)
            servers.setdefault(name, _Server(name, "", instance.line))
            if "rank_id" in instance:
                yield Place(_rank(instance, where), name, instance.line)
                continue
            for device in _objects(instance, "devices", where):
                yield Place(number, name, device.line)
                number += 1


def _super_pods(table: Located, where: str, servers: dict[str, _Server]) -> dict[str, str]:
    """Return the super pod of each server; empty without a list of them."""
    if "super_pod_list" not in table:
        return {}
    found: dict[str, str] = {}
    for pod in _objects(table, "super_pod_list", where):
        name = _name(pod, "super_pod_id", where)
        for server in _objects(pod, "server_list", where):
            member = _name(server, "server_id", where)
            at = f"{where}, line {server.line}"
            if member not in servers:
                raise ContradictionError(f"{at}: super pod {name} has server {member}, which is not in server_list")
            if found.setdefault(member, name) != name:
                raise ContradictionError(f"{at}: server {member} is in super pod {name}, and in {found[member]} before")
    alone = next((server for server in servers.values() if server.name not in found), None)
    if alone is not None:
        raise ContradictionError(
            f"{where}, line {alone.line}: server {alone.name} is in no super pod; correct the file"
        )
    return found


def _object(value: Any, at: str) -> Located:
    if not isinstance(value, Located):
        raise FormatError(f"{at}: an object was expected; is it a rank table?")
    return value


def _objects(table: Located, key: str, where: str) -> list[Located]:
    listed = table.get(key)
    at = f"{where}, line {table.line}"
    if not isinstance(listed, list):
        raise FormatError(f"{at}: a list {key} was expected; is it a rank table?")
    return [_object(one, f"{at}: {key}") for one in listed]


def _name(table: Located, key: str, where: str) -> str:
    name = table.get(key)
    if isinstance(name, str) and 0 < len(name) <= 255 and name.isprintable():
        return name
    raise FormatError(f"{where}, line {table.line}: {key} must be a text; is it a rank table?")


def _rank(table: Located, where: str) -> int:
    text = str(table.get("rank_id", ""))
    if text.isascii() and text.isdigit() and len(text) <= 7:
        return int(text)
    raise FormatError(f"{where}, line {table.line}: rank_id must be a number, it is {text[:20]!r}; correct the file")
