"""Slurm's lists of nodes: ``node[1-3,07-09],gpu-a[01-02]x[0-1]``, and of tasks on them: ``8(x3),4``."""

from __future__ import annotations

import re
from itertools import product
from typing import Final

from ms_recover.errors import ContradictionError, FormatError
from ms_recover.model.topology import Host

_MOST: Final = 1 << 20
_PIECE: Final = re.compile(r"\[([^\[\]]*)\]|([A-Za-z0-9._+-]+)")
_RANGE: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?\Z", re.ASCII)
_TASKS: Final = re.compile(r"(\d{1,7})(?:\(x(\d{1,7})\))?\Z", re.ASCII)


def decode_nodelist(text: str, where: str) -> tuple[str, ...]:
    """Return the nodes of a list as Slurm writes it, in its order; `where` in messages.

    The grammar of ``SLURM_JOB_NODELIST`` (https://slurm.schedmd.com/scontrol.html, ``show hostnames``): names joined by
    commas, with any number of bracketed lists of numbers and ranges; a number has as many digits as the first one of
    its range, the last bracket changes first.

    Raises
    ------
    FormatError
        When it is no such list, or longer than a million nodes; it names the character.
    ContradictionError
        When a node is named twice.
    """
    names: list[str] = []
    for item, start in _items(text, where):
        parts: list[list[str]] = []
        at, count = 0, 1
        while at < len(item):
            found = _PIECE.match(item, at)
            if found is None:
                raise FormatError(
                    f"{where}, character {start + at + 1}: {item[at : at + 20]!r} is no part of a list of nodes"
                )
            part = [found[2]] if found[1] is None else _numbers(found[1], where, start + at + 1)
            count *= len(part)
            if len(names) + count > _MOST:
                raise FormatError(f"{where}, character {start + at + 1}: more than {_MOST} nodes; correct the range")
            parts.append(part)
            at = found.end()
        names += ["".join(pieces) for pieces in product(*parts)]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ContradictionError(f"{where}: node {name} is named twice; a node is there once")
        seen.add(name)
    return tuple(names)


def decode_tasks(text: str, where: str) -> tuple[int, ...]:
    """Return the number of tasks of each node, as Slurm writes it in ``SLURM_TASKS_PER_NODE``: ``8(x3),4``.

    A FormatError says that it is none.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _TASKS.match(part.strip())
        if found is None:
            raise FormatError(f"{where}: {part[:40]!r} is no number of tasks; write for example 8(x3),4")
        times = int(found[2] or 1)
        if len(counts) + times > _MOST:
            raise FormatError(f"{where}: more than {_MOST} nodes; correct it")
        counts += [int(found[1])] * times
    return tuple(counts)


def nodes_with_tasks(nodes: tuple[str, ...], tasks: tuple[int, ...] | None, where: str) -> tuple[Host, ...]:
    """Return nodes as hosts, each with its number of tasks where they are known.

    A ContradictionError says that there are not as many numbers as nodes.
    """
    if tasks is None:
        return tuple([Host(name) for name in nodes])
    if len(tasks) != len(nodes):
        raise ContradictionError(f"{where}: {len(nodes)} nodes, and tasks for {len(tasks)}; give --ranks-per-host")
    return tuple([Host(name, count) for name, count in zip(nodes, tasks, strict=True)])


def _items(text: str, where: str) -> list[tuple[str, int]]:
    """Split at the commas outside brackets; each item with its offset."""
    items, depth, start = [], 0, 0
    for at, character in enumerate(text + ","):
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise FormatError(f"{where}, character {at + 1}: brackets do not match")
        if character == "," and not depth:
            items.append((text[start:at].strip(), start))
            start = at + 1
    if depth:
        raise FormatError(f"{where}, character {len(text)}: a bracket is not closed; was it cut off?")
    empty = next((start for item, start in items if not item), None)
    if empty is not None:
        raise FormatError(f"{where}, character {empty + 1}: a node was expected")
    return items


def _numbers(text: str, where: str, at: int) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.match(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if match is None or last < first:
            raise FormatError(f"{where}, character {at}: {part[:40]!r} is neither a number nor a range")
        if len(found) + last - first >= _MOST:
            raise FormatError(f"{where}, character {at}: more than {_MOST} nodes; correct the range")
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found
