"""Topologies as YAML or JSON: hosts, and the rack, the power domain or any other domain that each is in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from ms_recover.errors import ContradictionError, FormatError
from ms_recover.formats.topology.located import Located, decode_json, decode_text, decode_yaml
from ms_recover.formats.topology.placing import MOST_RANKS, Place, fill_hosts, place_ranks
from ms_recover.model.texts import name_some
from ms_recover.model.topology import UNKNOWN, Host, Topology, short_name

_RANKS: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7}))?\Z", re.ASCII)
_SLOTS: Final = re.compile(r"\d{1,7}\Z", re.ASCII)
_LEVEL: Final = re.compile(r"[A-Za-z][A-Za-z0-9_ -]{0,63}\Z")
_NO_LEVELS: Final = ("host", "name", "ranks", "slots", "rank")
_SUFFIXES: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class HostDomains:
    """A host of a topology file."""

    host: Host
    domains: tuple[str, ...]
    """Its domain at each level above hosts."""
    ranks: tuple[int, ...] | None
    """The ranks that run there, None where the file does not say it."""


@dataclass(frozen=True, slots=True)
class TopologyFile:
    """What a topology file says."""

    levels: tuple[str, ...]
    """Levels above hosts, the finest first."""
    hosts: tuple[HostDomains, ...]
    source: str

    @property
    def places_ranks(self) -> bool:
        """Whether it says on which host each rank runs."""
        return any(one.ranks is not None for one in self.hosts)


def decode_topology(data: bytes, where: str) -> TopologyFile:
    """Decode a topology file, `where` in messages: its path, of which the ending says whether it is YAML.

    An object ``{"levels": ["host", "rack", "power"], "hosts": {"node1": {"ranks": "0-7", "rack": "r1", "power": "p1"},
    ...}}``. ``hosts`` may also be a list of objects with a ``host``. ``levels`` may be left out: then they are the
    members of the hosts, in their order. ``ranks`` is ``"0-3,8"`` or a list; ``slots`` is a number of ranks. Without
    both, hosts of another source are meant, or hosts that ranks fill in their order.

    Raises
    ------
    FormatError
        When it is none, or a host lacks a level; it names the line.
    ContradictionError
        When a host is in two domains of a level.
    UsageError
        When it is YAML, and PyYAML is not installed.
    """
    text = decode_text(data, where)
    is_yaml = where.lower().endswith(_SUFFIXES) or not text.lstrip().startswith(("{", "["))
    root = decode_yaml(text, where) if is_yaml else decode_json(text, where)
    if not isinstance(root, Located) or "hosts" not in root:
        raise FormatError(f"{where}, line 1: an object with hosts was expected; see docs/topology.md")
    listed = list(_listed(root["hosts"], root.line, where))
    if not listed:
        raise FormatError(f"{where}, line {root.line}: no host is there")
    stated = _texts(root.get("levels"), f"{where}, line {root.line}: levels")
    if stated and stated[0] != "host":
        raise FormatError(f"{where}, line {root.line}: levels begin with {stated[0]!r}; the first one is host")
    seen = dict.fromkeys(key for _, facts in listed for key in facts if key not in _NO_LEVELS)
    levels = stated[1:] if stated else tuple(seen)
    wrong = next((level for level in levels if level in _NO_LEVELS or not _LEVEL.match(level)), None)
    if wrong is not None or len(set(levels)) < len(levels):
        raise FormatError(f"{where}, line {root.line}: {wrong or levels!r} cannot be a level")
    hosts: dict[str, HostDomains] = {}
    for name, facts in listed:
        found, first = _host(name, facts, levels, where), hosts.get(name)
        hosts[name] = found if first is None else _joined(first, found, levels, where)
    return TopologyFile(levels, tuple(hosts.values()), where)


def place_by(file: TopologyFile, world_size: int | None, per_host: int | None = None, tree: str = "") -> Topology:
    """Return the topology of a file alone: by its ranks, else by hosts that ranks fill in their order.

    Parameters and errors are those of `ms_recover.formats.topology.placing.fill_hosts` and `place_ranks`.
    """
    if not file.places_ranks:
        hosts = [one.host for one in file.hosts]
        return with_domains(fill_hosts(hosts, world_size, file.source, per_host=per_host, tree=tree), file)
    places = [Place(rank, one.host.name, one.host.line) for one in file.hosts for rank in one.ranks or ()]
    return with_domains(place_ranks(places, world_size, file.source, tree), file)


def with_domains(topology: Topology, file: TopologyFile) -> Topology:
    """Return a topology with the levels that a file has above hosts.

    Raises
    ------
    ContradictionError
        When the file lacks a host, or places a rank on another one.
    """
    by_name: Mapping[str, HostDomains] = {one.host.name: one for one in file.hosts}
    by_short = {short_name(one.host.name): one for one in file.hosts}
    found = [by_name.get(host) or by_short.get(short_name(host)) for host in topology.hosts]
    for rank, (host, one) in enumerate(zip(topology.hosts, found, strict=True)):
        if one is None and host != UNKNOWN:
            raise ContradictionError(
                f"{file.source}: host {host} of rank {rank} is not there, {topology.place(rank)} names it; add it, or "
                f"give the topology of this cluster"
            )
        if one is not None and file.places_ranks and rank not in (one.ranks or ()):
            raise ContradictionError(
                f"{file.source}, line {one.host.line}: rank {rank} is not on {one.host.name}, but is there by "
                f"{topology.place(rank)}; correct one of them"
            )
    if topology.source == file.source:
        topology = replace(topology, levels=("host",), domains=topology.domains[:1])
    again = [level for level in file.levels if level in topology.levels]
    if again:
        raise ContradictionError(f"{file.source}: {again[0]} is a level of {topology.source}, too; leave one out")
    above = [
        tuple([one.domains[at] if one is not None else UNKNOWN for one in found]) for at in range(len(file.levels))
    ]
    source = topology.source if topology.source == file.source else f"{topology.source} and {file.source}"
    return replace(
        topology,
        levels=topology.levels + file.levels,
        domains=(*topology.domains, *above),
        source=source,
        lines=topology.lines if topology.source == file.source else (),
    )


def _listed(value: Any, line: int, where: str) -> Iterable[tuple[str, Located]]:
    if isinstance(value, Located):
        for name, facts in value.items():
            yield name, facts if isinstance(facts, Located) else _bare(facts, value.line, where, name)
    elif isinstance(value, list):
        for facts in value:
            if isinstance(facts, str):
                yield facts, _bare(None, line, where, facts)
                continue
            if not isinstance(facts, Located):
                raise FormatError(f"{where}, line {line}: a host must be an object")
            yield str(facts.get("host", facts.get("name", ""))), facts
    else:
        raise FormatError(f"{where}, line {line}: hosts must be an object or a list")


def _bare(value: Any, line: int, where: str, name: str) -> Located:
    """Return the facts about a host of which only the name is there."""
    if value not in (None, "", "~", "null"):
        raise FormatError(f"{where}, line {line} and behind: host {name[:80]} must be an object")
    found = Located()
    found.line = line
    return found


def _host(name: str, facts: Located, levels: tuple[str, ...], where: str) -> HostDomains:
    at = f"{where}, line {facts.line}"
    if not 0 < len(name) <= 255 or not name.isprintable():
        raise FormatError(f"{at}: {name[:80]!r} is no name of a host")
    strange = [key for key in facts if key not in levels and key not in _NO_LEVELS]
    if strange:
        raise FormatError(f"{at}: host {name} has {name_some(strange)}, which is no level; add it to levels")
    missing = [level for level in levels if facts.get(level) in (None, "")]
    if missing:
        raise FormatError(f"{at}: host {name} has no {missing[0]}, others have; add it")
    domains = _texts([facts[level] for level in levels], f"{at}: host {name}: a domain")
    slots = facts.get("slots")
    if slots is not None and not _SLOTS.match(str(slots)):
        raise FormatError(f"{at}: host {name}: slots must be a number")
    ranks = None if "ranks" not in facts else tuple(_ranks(facts["ranks"], f"{at}: host {name}"))
    return HostDomains(Host(name, None if slots is None else int(slots), facts.line), domains, ranks)


def _joined(first: HostDomains, again: HostDomains, levels: tuple[str, ...], where: str) -> HostDomains:
    """Return a host that is listed twice, with the ranks of both."""
    for level, one, other in zip(levels, first.domains, again.domains, strict=True):
        if one != other:
            raise ContradictionError(
                f"{where}, line {again.host.line}: host {again.host.name} is in {level} {other}, and in {one} by line "
                f"{first.host.line}; correct one"
            )
    if first.ranks is None or again.ranks is None:
        raise ContradictionError(
            f"{where}, line {again.host.line}: host {again.host.name} is listed again, line {first.host.line} has it; "
            f"keep one"
        )
    return replace(first, ranks=first.ranks + again.ranks)


def _ranks(value: Any, at: str) -> Iterable[int]:
    parts = value if isinstance(value, list) else str(value).split(",")
    for part in parts:
        match = _RANKS.match(str(part).strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if last < first or last >= MOST_RANKS or isinstance(part, bool):
            raise FormatError(f"{at}: {str(part)[:40]!r} is neither a rank nor a range; write for example 0-7")
        yield from range(first, last + 1)


def _texts(value: Any, at: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise FormatError(f"{at}: a list was expected")
    texts = [str(one) for one in value if isinstance(one, (str, int)) and not isinstance(one, bool)]
    if len(texts) < len(value) or not all(text.isprintable() and 0 < len(text) <= 255 for text in texts):
        raise FormatError(f"{at} must be a text")
    return tuple(texts)
