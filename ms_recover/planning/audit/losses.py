"""The cost of one loss: the step that is recoverable then, the bytes that move, from where, and how long that takes."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ms_recover.model.audit import Loss
from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.blocks import Ranks, StepHolders
from ms_recover.planning.audit.families import Family, FamilyIndex, Places, TooManyError, fatal_in_all, minimal


@dataclass(frozen=True, kw_only=True, eq=False)
class Level:
    """One level of a topology: its domains by number, and the number of each rank's domain."""

    name: str
    domains: tuple[str, ...]
    of: tuple[int, ...]

    @classmethod
    def of_topology(cls, topology: Topology, number: int) -> Level:
        """Return a level; domains are numbered in the order of their first ranks."""
        numbers: dict[str, int] = {}
        of = tuple(numbers.setdefault(domain, len(numbers)) for domain in topology.domains[number])
        return cls(name=topology.levels[number], domains=tuple(numbers), of=of)

    @cached_property
    def ranks(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each domain, ascending."""
        found: list[list[int]] = [[] for _ in self.domains]
        for rank, domain in enumerate(self.of):
            found[domain].append(rank)
        return tuple(map(tuple, found))

    def places(self, ranks: Iterable[int]) -> Places:
        """Return the domains that some ranks live in."""
        return frozenset(map(self.of.__getitem__, ranks))


class Losses:
    """Answers what losses of domains of one level cost.

    `steps` are those that can be recovered as things are, newest first; the first level of the topology moves bytes.
    """

    def __init__(self, steps: Sequence[StepHolders], level: Level, finest: Level, bandwidth: float | None) -> None:
        self.steps, self.level, self._finest, self._bandwidth = steps, level, finest, bandwidth
        self._why: list[dict[Places, Ranks]] = []
        self.families: list[Family] = []
        for held in steps:
            why: dict[Places, Ranks] = {}
            for ranks in held.family:
                why.setdefault(level.places(ranks), ranks)
            self._why.append(why)
            self.families.append(minimal(why))
        self._indexes = [FamilyIndex(family) for family in self.families]
        self._missing_bytes = [sum(held.sizes.get(rank, 0) for rank in held.missing) for held in self.steps]

    @cached_property
    def fatal(self) -> Family | None:
        """The smallest losses that leave no step; None when there are too many to list."""
        try:
            return fatal_in_all(self.families)
        except TooManyError:
            return None

    def loss(self, places: Places, *, sources: bool = True) -> Loss:
        """Return what a loss costs; without `sources` not from where the bytes come, nor how long they take."""
        level = self.level
        ranks = tuple(sorted(rank for place in places for rank in level.ranks[place]))
        domains = tuple(level.domains[place] for place in sorted(places))
        reason, held = "", None
        for number, index in enumerate(self._indexes):
            found = index.find(places)
            if found is None:
                held = self.steps[number]
                break
            lost = self._why[number][found]
            reason = reason or f"{self.steps[number].why[lost]}"
        if held is None:
            return Loss(level=level.name, domains=domains, ranks=ranks, step=None, reason=reason)
        if not sources:
            more = sum(held.sizes.get(rank, 0) for rank in ranks if rank not in held.missing)
            needed = self._missing_bytes[number] + more
            return Loss(level=level.name, domains=domains, ranks=ranks, step=held.step, reason=reason, bytes=needed)
        moves = Moves(held, self._finest, frozenset(ranks))
        return Loss(
            level=level.name,
            domains=domains,
            ranks=ranks,
            step=held.step,
            reason=reason,
            bytes=moves.bytes,
            sources=moves.sources,
            seconds=moves.busiest / self._bandwidth if self._bandwidth else None,
        )

    def step_after(self, places: Places) -> Step | None:
        """Return the step that is recoverable after a loss, None when there is none."""
        for held, index in zip(self.steps, self._indexes, strict=True):
            if index.find(places) is None:
                return held.step
        return None


class Moves:
    """The bytes that a recovery moves at one step; ranks without a slice before the loss need theirs as well.

    Sources are spread evenly: after a rank that gave comes the next one that holds the same.
    """

    def __init__(self, held: StepHolders, finest: Level, lost: Ranks) -> None:
        self._held, self._finest, self._lost = held, finest, lost
        self.bytes = 0
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        for rank in sorted(lost | held.missing):
            self._give(rank)

    @property
    def sources(self) -> tuple[tuple[str, int], ...]:
        """Domains that give bytes, the largest share first."""
        names = self._finest.domains
        largest = sorted(self._sent.items(), key=lambda one: (-one[1], one[0]))
        return tuple((names[place], count) for place, count in largest if count)

    @property
    def busiest(self) -> int:
        """The most bytes that one domain sends or receives."""
        return max((*self._sent.values(), *self._received.values()), default=0)

    def _give(self, rank: int) -> None:
        self.bytes += self._held.sizes.get(rank, 0)
        group = self._held.groups.get(rank, ())
        giver = self._next(rank, group)
        if giver is not None:
            self._move(giver, rank, self._held.sizes.get(rank, 0))
            return
        chosen: list[int] = []
        for block in sorted(self._held.parts.get(rank, ()), key=lambda block: len(block.holders)):
            able = next((one for one in chosen if one in block.members), None)
            giver = able if able is not None else self._next(rank, block.holders)
            if giver is not None:
                chosen.append(giver)
                self._move(giver, rank, block.bytes or 0)

    def _next(self, rank: int, holders: Sequence[int]) -> int | None:
        """Return the next holder after a rank that is not lost, None when there is none."""
        start, count = bisect(holders, rank), len(holders)
        after = (holders[(start + number) % count] for number in range(count))
        return next((one for one in after if one not in self._lost and one != rank), None)

    def _move(self, giver: int, rank: int, count: int) -> None:
        here, there = self._finest.of[giver], self._finest.of[rank]
        if here != there:
            self._received[there] += count
        self._sent[here] += count
