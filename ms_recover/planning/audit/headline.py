"""The answer of an audit in one sentence, and the gate of a launch script."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from math import comb

from ms_recover.errors import UsageError
from ms_recover.model.audit import RANK_LEVEL, Audit, LevelAudit
from ms_recover.model.texts import many, plural

_SURVIVE = re.compile(r"\s*(\d{1,6})?\s*([^\W\d][\w .-]*?)\s*\Z")
_LONG = 10**12
_SETS = {1: "", 2: "such pair"}


def headline_of(audit: Audit) -> Audit:
    """Return the audit with its headline."""
    return replace(audit, headline=_headline(audit))


def _headline(audit: Audit) -> str:
    if audit.step is None:
        return f"not recoverable as it is, so that every loss is fatal: {audit.why}"
    survived = ", ".join(_survived(level) for level in audit.levels)
    text = f"survives {survived}; {_smallest(audit.levels[0])}"
    return text if audit.hosts_known else f"{text}; nothing says which ranks share a host"


def _survived(level: LevelAudit) -> str:
    if not level.survived:
        return f"no {level.name}"
    return f"any {many(level.survived, level.name)}"


def _smallest(level: LevelAudit) -> str:
    if level.smallest is None:
        return f"the smallest fatal loss has more than {many(level.survived, level.name)}"
    possible = comb(len(level.domains), level.smallest)
    sets = _SETS.get(level.smallest, "such set")
    of = f" of {possible:,}" if possible < _LONG else f" of 10^{len(str(possible)) - 1}"
    count = "how many is not known"
    if level.smallest_count is not None:
        count = many(level.smallest_count, sets) if sets else f"{level.smallest_count:,}"
    return f"smallest fatal loss: {many(level.smallest, level.name)} ({count}{of})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Losses that must be survived: so many domains of a level, whichever they are."""

    count: int
    level: str

    @property
    def text(self) -> str:
        """The gate in words."""
        return many(self.count, self.level)


def parse_gate(text: str) -> Gate:
    """Parse ``host``, ``rack`` or ``2hosts``; a ValueError says what is wrong.

    A level is named in the singular or the plural; which there are is known when the topology is.
    """
    match = _SURVIVE.match(text)
    if match is None or (match[1] is not None and int(match[1]) < 1):
        raise ValueError(f"{text!r} is no loss to survive: write for example host, rack or 2hosts")
    return Gate(count=int(match[1] or 1), level=match[2])


def find_level(audit: Audit, gate: Gate) -> LevelAudit | None:
    """Return the level that a gate names; None for hosts where nothing says where ranks live.

    Raises
    ------
    UsageError
        When the topology has no such level.
    """
    for level in audit.levels:
        if gate.level.lower() in (level.name.lower(), plural(level.name).lower()):
            return level
    if not audit.hosts_known and gate.level.lower() in ("host", "hosts"):
        return None
    known = [level.name for level in audit.levels if level.name != RANK_LEVEL]
    where = f"the topology has {', '.join(known)}" if known else "nothing says where ranks live: give --topology"
    raise UsageError(f"--survive {gate.level}: there is no such level, {where}")


def named(audit: Audit, gate: Gate) -> Gate:
    """Return a gate with the level's own name; errors are those of `find_level`."""
    level = find_level(audit, gate)
    return replace(gate, level=level.name if level is not None else "host")


def passes(audit: Audit, gate: Gate) -> bool | None:
    """Return whether every such loss is survived; None where nothing says it.

    Errors are those of `find_level`. Where hosts are not known, a rank that may not be lost settles it: nor may its
    host.
    """
    level = find_level(audit, gate)
    if audit.step is None:
        return False
    if level is None:
        return False if audit.survived < gate.count else None
    return gate.count <= level.survived
