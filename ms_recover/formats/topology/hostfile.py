"""Hostfiles: lists of hosts that ranks fill in their order, and rankfiles, which name the host of each rank."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from ipaddress import ip_address
from itertools import groupby
from typing import Final

from ms_recover.errors import FormatError
from ms_recover.formats.topology.located import decode_text
from ms_recover.formats.topology.placing import Place
from ms_recover.model.topology import Host, Topology, short_name

_SLOTS: Final = re.compile(r"(?:slots|cpus?|count)=(\d{1,7})\Z", re.ASCII)
_MORE: Final = re.compile(r"(?:max[-_]slots=\d{1,7}|port=\d{1,5})\Z", re.ASCII)
_COLON: Final = re.compile(r"([^:]+):(\d{1,7})\Z", re.ASCII)
_RANK: Final = re.compile(r"rank\s+(\d{1,7})\s*=\s*(\S+)(?:\s+slots?\s*=\s*\S+)?\Z", re.ASCII)
_NAME: Final = re.compile(r"[^\s=,;'\"<>|&$`\\{}\[\]()]{1,255}\Z")


def decode_hostfile(data: bytes, where: str) -> tuple[Host, ...] | tuple[Place, ...]:
    """Decode a hostfile, `where` in messages; a rankfile gives places, any other list hosts in their order.

    A line is ``HOST``, ``HOST slots=N`` (Open MPI, ``mpirun(1)``; DeepSpeed, https://www.deepspeed.ai/getting-started),
    also with ``max_slots=``, or ``HOST:N`` (MPICH and Intel MPI, ``mpiexec -f``). ``USER@`` before a host is dropped,
    ``#`` begins a comment. In a list of bare names a name takes one rank for each of its lines, where one is repeated.
    A line of a rankfile is ``rank N=HOST slot=S`` (Open MPI, ``mpirun --rankfile``).

    Raises
    ------
    FormatError
        When a line is none of these, or no host is there; it names the line.
    """
    lines = list(_lines(data, where))
    if not lines:
        raise FormatError(f"{where}, line 1: no host is named; write one a line, such as: node1 slots=8")
    if lines[0][1].startswith("rank "):
        return tuple([_place(text, line, where) for line, text in lines])
    hosts = [_host(text, line, where) for line, text in lines]
    _check_names(hosts, where)
    names = [host.name for host in hosts]
    bare = all(host.slots is None for host in hosts)
    if bare and len(set(names)) < len(names):
        return tuple([Host(host.name, 1, host.line) for host in hosts])
    first = dict(zip(reversed(names), [host.line for host in reversed(hosts)], strict=True))
    again = next((host for host in hosts if first[host.name] != host.line), None)
    if again is not None:
        raise FormatError(
            f"{where}, line {again.line}: {again.name} is listed again, line {first[again.name]} has it; keep one"
        )
    return tuple(hosts)


def _check_names(hosts: Iterable[Host], where: str) -> None:
    """Refuse a name in two spellings, in other letters or with and without its domain: they would be two hosts."""
    seen: dict[str, list[Host]] = defaultdict(list)
    for host in hosts:
        short, full = short_name(host.name), host.name.lower()
        for other in seen[short]:
            theirs = other.name.lower()
            if other.name != host.name and (full == theirs or short in (full, theirs)):
                raise FormatError(
                    f"{where}, line {host.line}: {host.name} is {other.name} of line {other.line} in another spelling; "
                    f"write one of them"
                )
        if all(other.name != host.name for other in seen[short]):
            seen[short].append(host)


def _lines(data: bytes, where: str) -> Iterator[tuple[int, str]]:
    for number, row in enumerate(decode_text(data, where).split("\n"), 1):
        content = row.partition("#")[0].strip()
        if content:
            yield number, content


def _host(text: str, line: int, where: str) -> Host:
    name, *words = text.split()
    slots: int | None = None
    name = name.rpartition("@")[2]
    counted = _COLON.match(name)
    if counted is not None:
        name, slots = counted[1], int(counted[2])
    for word in words:
        match = _SLOTS.match(word)
        if match is not None and slots is None:
            slots = int(match[1])
        elif not _MORE.match(word):
            raise FormatError(f"{where}, line {line}: {word[:80]!r} is not understood; write HOST slots=N")
    if not _NAME.match(name) or (":" in name and not _is_address(name)):
        raise FormatError(f"{where}, line {line}: {name[:80]!r} is no name of a host; write HOST slots=N")
    if slots == 0:
        raise FormatError(f"{where}, line {line}: {name} takes no rank; leave the line out")
    return Host(name, slots, line)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _place(text: str, line: int, where: str) -> Place:
    match = _RANK.match(text)
    if match is None or not _NAME.match(match[2]):
        raise FormatError(f"{where}, line {line}: {text[:80]!r} places no rank; write: rank 0=HOST slot=0")
    return Place(int(match[1]), match[2], line)


def encode_hosts(topology: Topology) -> bytes:
    """Return a hostfile that places ranks so, for ``mpirun --hostfile``; a rankfile where one cannot say it.

    A hostfile has ``HOST slots=N`` for each host in the order of ranks; in a rankfile a rank's slot is its place among
    the ranks of its host.
    """
    hosts = topology.hosts
    runs = [(host, len(list(ranks))) for host, ranks in groupby(hosts)]
    if len(runs) == len(set(hosts)):
        return "".join(f"{host} slots={count}\n" for host, count in runs).encode()
    taken: Counter[str] = Counter()
    lines = []
    for rank, host in enumerate(hosts):
        lines.append(f"rank {rank}={host} slot={taken[host]}\n")
        taken[host] += 1
    return "".join(lines).encode()
