"""Into how many shards the optimizer's states are cut, and how many would leave copies on several hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ms_recover.model.axes import Axes
from ms_recover.model.strategy import Layout
from ms_recover.planning.audit.losses import Level
from ms_recover.planning.claims.axes import kinds_by_axes
from ms_recover.planning.claims.layouts import NOT_SHARDED, cells_of
from ms_recover.planning.tree.facts import Facts

Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Sharding:
    """The optimizer's shards of the parameters with the most of them.

    Parameters
    ----------
    now : int
        Shards of each part.
    replicas : int
        Ranks that would hold a part without them.
    facts : Facts
    """

    now: int
    replicas: int
    facts: Facts

    def choose(self, level: Level) -> int | None:
        """Return the most shards with which each has copies on two domains of a level; None where none has."""
        for shards in range(min(self.now, self.replicas) - 1, 0, -1):
            if self.replicas % shards == 0 and all(len(level.places(holders)) > 1 for holders in self._holders(shards)):
                return shards
        return None

    def _holders(self, shards: int) -> Iterable[Group]:
        facts = self.facts
        if (axes := _axes_alone(facts)) is not None:
            for groups in kinds_by_axes(axes, facts.options.order, shards, facts.world.ranks).values():
                yield from groups
            return
        for stage, layout in _sharded(facts):
            ranks = facts.stages.ranks(stage)
            by_cell: dict[Group, list[int]] = defaultdict(list)
            for rank, cell in zip(ranks, cells_of(replace(layout, opt_shard_size=shards), ranks), strict=True):
                by_cell[cell.index].append(rank)
            yield from map(tuple, by_cell.values())


def find_sharding(facts: Facts) -> Sharding | None:
    """Return how the optimizer's states are cut, by layouts or by the axes; None where they are not, or not known."""
    options, devices = facts.options, facts.stages.devices
    if (axes := _axes_alone(facts)) is not None:
        if options.optimizer_shards in (0, 1):
            return None
        weights = kinds_by_axes(axes, options.order, 0, facts.world.ranks)["weights"]
        return _sharding(facts, options.optimizer_shards, max(map(len, weights)))
    shardings = []
    for _, layout in _sharded(facts):
        parts = {cell.index for cell in cells_of(replace(layout, opt_shard_size=0), range(devices))}
        shardings.append(_sharding(facts, layout.opt_shard_size, devices // len(parts)))
    return min(shardings, key=lambda sharding: sharding.replicas // sharding.now, default=None)


def _axes_alone(facts: Facts) -> Axes | None:
    """Return the axes of the job where no strategy file states layouts, which say more."""
    return facts.options.axes if not facts.stages.layouts else None


def _sharding(facts: Facts, shards: int, replicas: int) -> Sharding:
    """Return the sharding into so many shards; of -1 into as many as there are replicas."""
    return Sharding(now=replicas if shards == -1 else shards, replicas=replicas, facts=facts)


def _sharded(facts: Facts) -> Iterator[tuple[int, Layout]]:
    """Yield the layouts with shards of the optimizer, one of each way of cutting, with the stage."""
    for stage, cuts in facts.stages.cuts.items():
        for cut in cuts:
            layout = cut.layout
            if layout.opt_shard_size and layout.tensor_map and not layout.parameter.startswith(NOT_SHARDED):
                yield stage, layout
