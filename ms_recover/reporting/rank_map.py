"""A picture of all ranks for a terminal: one cell a rank, folded by host, with a legend (pure).

Worlds that do not fit are folded further: a cell is then a host, several hosts, or several ranks, and shows the worst
of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from ms_recover.model.inventory import Inventory
from ms_recover.model.plan import Plan
from ms_recover.model.texts import many, name_ranks
from ms_recover.model.topology import Topology
from ms_recover.reporting.tables import one_line
from ms_recover.reporting.wrapping import cell_width


class Sign(NamedTuple):
    """How a state is drawn, also where there is nothing but ASCII, and its colour on a terminal."""

    sign: str
    ascii: str
    colour: str


SIGNS: dict[str, Sign] = {
    "sound": Sign("■", "#", "green"),
    "keep": Sign("■", "#", "green"),
    "may be lost": Sign("■", "#", "green"),
    "copy": Sign("◆", "+", "yellow"),
    "compose": Sign("◇", "*", "yellow"),
    "costs steps": Sign("▲", "!", "yellow"),
    "missing": Sign("□", "-", "red"),
    "lost": Sign("□", "-", "red"),
    "damaged": Sign("▲", "!", "red"),
    "unreadable": Sign("?", "?", "red"),
    "fatal": Sign("X", "X", "red"),
    "unrecoverable": Sign("X", "X", "red"),
}
"""The states that can be drawn, the worst last: a cell of several ranks shows the worst."""

if TYPE_CHECKING:
    from ms_recover.model.audit import Audit

UNKNOWN_HOST = "unknown"
LEAST_WIDTH = 40
WIDTH = 80
MOST_ROWS = 22
_MOST_NAMED = 4
_NAME = 20
_RUN = 8
"""Cells between two gaps."""
_GRAVITY = {state: place for place, state in enumerate(SIGNS)}


@dataclass(frozen=True, slots=True)
class _Unit:
    """What one cell, or one run of cells of a host, stands for: a name, and the states of its ranks by rank."""

    name: str
    states: tuple[str, ...]


def rank_map(
    states: Mapping[int, str],
    topology: Topology | None = None,
    width: int | None = None,
    *,
    title: str = "Ranks",
    ascii_only: bool = False,
) -> str:
    """Return the picture as lines: a title, rows of cells, the legend with counts, and which hosts are not well.

    Parameters
    ----------
    states : mapping
        A state of `SIGNS` for each rank.
    topology : Topology, optional
        Where ranks live; without it, or for ranks it does not place, cells stand in the order of ranks.
    width : int, optional
        Columns of the terminal; None for a pipe, where it is `WIDTH`.
    title : str
        What the states are about.
    ascii_only : bool
        Draw with ASCII, for streams whose encoding lacks the signs.
    """
    if not states:
        return f"{title}: none"
    room = max(width or WIDTH, LEAST_WIDTH)
    draw = _Pen(ascii_only)
    hosts = _by_host(states, topology)
    unit = ""
    if hosts is None:
        rows, per_cell = _rows_of_ranks(states, room, draw)
        if per_cell > 1:
            unit = f"a cell is {per_cell} ranks and shows the worst"
    else:
        by = f", by host ({one_line(_source(states, topology))})" if topology is not None else ""
        title += by
        rows = _rows_of_hosts(hosts, room, draw)
        if len(rows) > MOST_ROWS:
            rows, per_cell = _rows_of_folded_hosts(hosts, room, draw)
            unit = f"a cell is {'a host' if per_cell == 1 else f'{per_cell} hosts'} and shows its worst rank"
    lines = [f"{title}:", *rows, *_legend(states, draw, room, unit)]
    if unit:
        lines += _odd_hosts(states, topology, draw)
    return "\n".join(lines)


def states_of_plan(plan: Plan) -> dict[int, str]:
    """Return the verdict of a plan for each rank; of a plan without a step that at the newest one."""
    return {rank.rank: rank.verdict for rank in plan.ranks}


def states_of_inventory(inventory: Inventory) -> dict[int, str]:
    """Return what is there of the newest step, for each rank that a directory or a rank list names."""
    newest = next(iter(inventory.steps), None)
    if newest is None:
        return {}
    listed = (file.info.restore_ranks for file in inventory.group_files if file.info is not None)
    states = dict.fromkeys(sorted({*inventory.ranks, *(rank for ranks in listed for rank in ranks)}), "missing")
    for rank, _ in inventory.denied:
        states[rank] = "unreadable"
    found: dict[int, str] = {}
    for file in inventory.slices:
        if file.step == newest:
            state = "unreadable" if file.denied else "damaged" if file.problem else "sound"
            found[file.rank] = worst((state, found.get(file.rank, state)))
    return states | found


def states_of_audit(audit: Audit) -> dict[int, str]:
    """Return for each rank what the loss of its host alone would cost."""
    states: dict[int, str] = {}
    for loss in audit.levels[0].singles:
        state = "fatal" if loss.fatal else "may be lost" if loss.step == audit.step else "costs steps"
        states |= dict.fromkeys(loss.ranks, state)
    return states


def worst(states: Iterable[str]) -> str:
    """Return the worst of some states."""
    return max(states, key=_GRAVITY.__getitem__)


def coloured_signs() -> dict[str, str]:
    """Return the colour of each sign that has one colour for all its states; red where it has several."""
    found: dict[str, str] = {}
    for sign in SIGNS.values():
        for drawn in (sign.sign, sign.ascii):
            found[drawn] = sign.colour if found.get(drawn, sign.colour) == sign.colour else "red"
    return found


class _Pen:
    """Draws states."""

    def __init__(self, ascii_only: bool) -> None:
        self.bar = "|" if ascii_only else "│"
        self.cut = "~" if ascii_only else "…"
        self.signs = {state: sign.ascii if ascii_only else sign.sign for state, sign in SIGNS.items()}

    def cells(self, states: Iterable[str]) -> str:
        """Return one sign a state, with gaps."""
        drawn = [self.signs[state] for state in states]
        return " ".join("".join(drawn[at : at + _RUN]) for at in range(0, len(drawn), _RUN))

    def name(self, text: str, most: int = _NAME) -> str:
        """Return a name that is not wider than a row allows."""
        text = one_line(text)
        if cell_width(text) <= most:
            return text
        half = (most - 1) // 2
        return text[:half] + self.cut + text[-half:] if text.isascii() else text[:half] + self.cut


def _by_host(states: Mapping[int, str], topology: Topology | None) -> list[_Unit] | None:
    """Return the hosts in the order of their first ranks, with the states of their ranks; None without hosts."""
    if topology is None:
        return None
    found: dict[str, list[str]] = {}
    for rank in sorted(states):
        host = topology.host_of(rank) or UNKNOWN_HOST
        found.setdefault(host, []).append(states[rank])
    return [_Unit(host, tuple(held)) for host, held in found.items()]


def _source(states: Mapping[int, str], topology: Topology) -> str:
    """Return what names the hosts, and how many ranks have none."""
    lost = sum(not topology.host_of(rank) for rank in states)
    return f"{topology.source}; {many(lost, 'rank')} on hosts unknown" if lost else topology.source


def _rows_of_hosts(hosts: Sequence[_Unit], room: int, draw: _Pen) -> list[str]:
    """Return rows with several hosts each, one cell a rank; those of hosts that are wider than a row are broken."""
    names = [draw.name(host.name) for host in hosts]
    label = max(map(cell_width, names))
    most = max((room - label - 5) // (_RUN + 1) * _RUN, _RUN)
    entries = []
    for name, host in zip(names, hosts, strict=True):
        for at in range(0, len(host.states), most):
            entries.append((name if at == 0 else "", draw.cells(host.states[at : at + most])))
    wide = max(len(cells) for _, cells in entries)
    beside = max((room + 1) // (label + wide + 6), 1) if len(hosts) > 1 else 1
    drawn = [_entry(name, label, cells, wide, draw) for name, cells in entries]
    return [" ".join(drawn[at : at + beside]).rstrip() for at in range(0, len(drawn), beside)]


def _entry(name: str, label: int, cells: str, wide: int, draw: _Pen) -> str:
    return f"  {' ' * (label - cell_width(name))}{name} {draw.bar}{cells}{draw.bar}{' ' * (wide - len(cells))}"


def _rows_of_folded_hosts(hosts: Sequence[_Unit], room: int, draw: _Pen) -> tuple[list[str], int]:
    """Return rows with one cell a host or several, and how many hosts a cell is."""
    label = max(cell_width(draw.name(host.name)) for host in hosts)
    across = max((room - label - 5) // (_RUN + 1) * _RUN, _RUN)
    per_cell = ceil(len(hosts) / (across * MOST_ROWS))
    cells = [
        _Unit(hosts[at].name, (worst(state for host in hosts[at : at + per_cell] for state in host.states),))
        for at in range(0, len(hosts), per_cell)
    ]
    return _rows(cells, [draw.name(cell.name) for cell in cells], across, draw), per_cell


def _rows_of_ranks(states: Mapping[int, str], room: int, draw: _Pen) -> tuple[list[str], int]:
    """Return rows with one cell a rank or several, and how many ranks a cell is."""
    ranks = sorted(states)
    across = max((room - len(str(ranks[-1])) - 10) // (_RUN + 1) * _RUN, _RUN)
    across = min(across, 64)
    per_cell = 1
    while ceil(len(ranks) / per_cell) > across * MOST_ROWS:
        per_cell *= 2
    cells = [
        _Unit(str(ranks[at]), (worst(states[rank] for rank in ranks[at : at + per_cell]),))
        for at in range(0, len(ranks), per_cell)
    ]
    return _rows(cells, [f"rank {cell.name}" for cell in cells], across, draw), per_cell


def _rows(cells: Sequence[_Unit], names: Sequence[str], across: int, draw: _Pen) -> list[str]:
    label = max(cell_width(name) for name in names[::across])
    rows = []
    for at in range(0, len(cells), across):
        shown = draw.cells(cell.states[0] for cell in cells[at : at + across])
        rows.append(_entry(names[at], label, shown, 0, draw))
    return rows


def _legend(states: Mapping[int, str], draw: _Pen, room: int, unit: str) -> list[str]:
    """Return the signs that are drawn, with the number of ranks of each, and what a cell is."""
    counts = Counter(states.values())
    known = [state for state in SIGNS if state in counts]
    entries = [f"{draw.signs[state]} {state} {counts[state]:,}" for state in known]
    line, lines = "  ", []
    for entry in [*entries, unit] if unit else entries:
        if line.strip() and len(line) + len(entry) + 3 > room:
            lines.append(line.rstrip())
            line = "  "
        line += entry + "   "
    return [*lines, line.rstrip()]


def _odd_hosts(states: Mapping[int, str], topology: Topology | None, draw: _Pen) -> list[str]:
    """Return the ranks that are worse than most, by host where it is known; a few lines."""
    usual = Counter(states.values()).most_common(1)[0][0]
    odd = [rank for rank in sorted(states) if _GRAVITY[states[rank]] > _GRAVITY[usual]]
    found: dict[tuple[str, str], list[int]] = {}
    for rank in odd:
        host = "" if topology is None else topology.host_of(rank) or UNKNOWN_HOST
        found.setdefault((host, states[rank]), []).append(rank)
    lines = [
        f"  {draw.signs[state]} {state}: {f'{draw.name(host, 40)}, ' if host else ''}{name_ranks(ranks, 64)}"
        for (host, state), ranks in found.items()
    ]
    if len(lines) > _MOST_NAMED:
        more = f"  and on {len(lines) - _MOST_NAMED + 1} more hosts" if topology is not None else "  and more"
        lines = [*lines[: _MOST_NAMED - 1], more]
    return lines
