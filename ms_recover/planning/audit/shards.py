"""Into how many shards the optimizer's states are cut, and how many would leave copies on several hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

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
            if self.replicas % shards == 0 and all(len(level.places(one)) > 1 for one in self._holders(shards)):
                return shards
        return None

    def _holders(self, shards: int) -> Iterable[Group]:
        facts = self.facts
        if facts.options.axes is not None:
            axes, order = facts.options.axes, facts.options.order
            for groups in kinds_by_axes(axes, order, shards, facts.world.ranks).values():
                yield from groups
            return
        for stage, cuts in facts.stages.cuts.items():
            ranks = facts.stages.ranks(stage)
            for cut in cuts:
                size = cut.layout.opt_shard_size
                if size and not cut.layout.parameter.startswith(NOT_SHARDED):
                    by_cell: dict[Group, list[int]] = defaultdict(list)
                    for rank, cell in zip(
                        ranks, cells_of(replace(cut.layout, opt_shard_size=shards), ranks), strict=True
                    ):
                        by_cell[cell.index].append(rank)
                    yield from map(tuple, by_cell.values())


def find_sharding(facts: Facts) -> Sharding | None:
    """Return how the optimizer's states are cut, by layouts or by the axes; None where they are not, or not known."""
    if facts.options.axes is not None and not facts.stages.layouts:
        shards = facts.options.optimizer_shards
        if shards in (0, 1):
            return None
        replicas = max(
            len(group)
            for group in kinds_by_axes(facts.options.axes, facts.options.order, 0, facts.world.ranks)["weights"]
        )
        return Sharding(now=replicas if shards < 0 else shards, replicas=replicas, facts=facts)
    best: Sharding | None = None
    for cuts in facts.stages.cuts.values():
        for cut in cuts:
            size = cut.layout.opt_shard_size
            if not size or cut.layout.parameter.startswith(NOT_SHARDED) or not cut.layout.tensor_map:
                continue
            parts = len(
                {cell.index for cell in cells_of(replace(cut.layout, opt_shard_size=0), range(facts.stages.devices))}
            )
            replicas = facts.stages.devices // parts
            now = replicas if size < 0 else size
            if best is None or replicas // now < best.replicas // best.now:
                best = Sharding(now=now, replicas=replicas, facts=facts)
    return best
