"""The cost of one loss: the step that is recoverable then, the bytes that move, from where, and how long that takes."""

from __future__ import annotations

from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from ms_recover.model.audit import Giver, Loss
from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.after import Losable
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
    Where the tree is one in which a loss may change the worth of slices, the plan after a loss is asked, as far as
    losses are few; others are judged by the holders of blocks.
    """

    def __init__(
        self,
        steps: Sequence[StepHolders],
        level: Level,
        finest: Level,
        bandwidth: float | None,
        tree: Losable | None = None,
    ) -> None:
        self.steps, self.level, self._finest, self._bandwidth = steps, level, finest, bandwidth
        self._tree = tree
        assumed = any(holders.assumed for holders in steps)
        self.most_asked = tree.most_lost(len(level.domains), assumed=assumed) if tree is not None else 0
        """Domains that are lost at once, up to which each loss is asked about."""
        self._why: list[dict[Places, Ranks]] = []
        self.families: list[Family] = []
        for holders in steps:
            why: dict[Places, Ranks] = {}
            for ranks in holders.family:
                why.setdefault(level.places(ranks), ranks)
            self._why.append(why)
            self.families.append(minimal(why))
        self._indexes = [FamilyIndex(family) for family in self.families]

    @cached_property
    def fatal(self) -> Family | None:
        """The smallest losses that leave no step; None when there are too many to list."""
        try:
            found = fatal_in_all(self.families)
        except TooManyError:
            return None
        return self._as_asked(found, lambda step: step is None)

    @cached_property
    def costly(self) -> Family:
        """The smallest losses that leave no step as new as the newest that can be recovered as things are."""
        newest = self.steps[0].step
        return self._as_asked(self.families[0], lambda step: step is None or step < newest)

    def _as_asked(self, family: Family, is_lost: Callable[[Step | None], bool]) -> Family:
        """Return the smallest losses by the holders of blocks, but by the plan as far as it is asked."""
        if not self.most_asked:
            return family
        sizes, places = range(1, self.most_asked + 1), range(len(self.level.domains))
        losses = (frozenset(chosen) for lost in sizes for chosen in combinations(places, lost))
        asked = [loss for loss in losses if is_lost(self.step_after(loss))]
        return minimal([*asked, *(loss for loss in family if len(loss) > self.most_asked)])

    def loss(self, places: Places, *, sources: bool = True) -> Loss:
        """Return what a loss costs; without `sources` not from where the bytes come, nor how long they take."""
        level = self.level
        lost = self._ranks(places)
        ranks = tuple(sorted(lost))
        domains = tuple(level.domains[place] for place in sorted(places))
        holders, reason = self._judge(places)
        if holders is None:
            return Loss(level=level.name, domains=domains, ranks=ranks, step=None, reason=reason)
        if not sources:
            needed = sum(holders.sizes.get(rank, 0) for rank in lost | holders.missing)
            return Loss(level=level.name, domains=domains, ranks=ranks, step=holders.step, reason=reason, bytes=needed)
        moves = Moves(holders, self._finest, lost)
        return Loss(
            level=level.name,
            domains=domains,
            ranks=ranks,
            step=holders.step,
            reason=reason,
            bytes=moves.bytes,
            sources=moves.sources,
            seconds=moves.busiest / self._bandwidth if self._bandwidth else None,
        )

    def step_after(self, places: Places) -> Step | None:
        """Return the step that is recoverable after a loss, None when there is none."""
        holders, _ = self._judge(places)
        return holders.step if holders is not None else None

    def _ranks(self, places: Places) -> Ranks:
        return frozenset(rank for place in places for rank in self.level.ranks[place])

    def _judge(self, places: Places) -> tuple[StepHolders | None, str]:
        """Return who holds what at the step that is recoverable after a loss, and why it is no newer one, or none."""
        holders, reason = None, ""
        for number, index in enumerate(self._indexes):
            members = index.find(places)
            if members is None:
                holders = self.steps[number]
                break
            reason = reason or self.steps[number].why[self._why[number][members]]
        if self._tree is None or not 0 < len(places) <= self.most_asked:
            return holders, reason
        holders, why = self._tree.after(self._ranks(places), self.steps)
        return holders, "" if holders is not None and holders.step >= self.steps[0].step else reason or why


class Moves:
    """The bytes that a recovery moves at one step; ranks without a slice before the loss need theirs as well.

    Sources are spread evenly: after a rank that gave comes the next one that holds the same.
    """

    def __init__(self, holders: StepHolders, finest: Level, lost: Ranks) -> None:
        self._held, self._finest, self._lost = holders, finest, lost
        self.bytes = 0
        self._sent: Counter[int] = Counter()
        self._received: Counter[int] = Counter()
        for rank in sorted(lost | holders.missing):
            self._give(rank)

    @property
    def sources(self) -> tuple[Giver, ...]:
        """Domains that give bytes, the largest share first."""
        names = self._finest.domains
        largest = sorted(self._sent.items(), key=lambda one: (-one[1], one[0]))
        return tuple(Giver(names[place], count) for place, count in largest if count)

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
            able = next((giver for giver in chosen if giver in block.members), None)
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
