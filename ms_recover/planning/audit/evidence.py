"""Where rank lists and strategy files lie: those in the directory of a rank are lost with it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ms_recover.model.groups import each_once
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.lost_files import owner_of, owners_of

Ranks = frozenset[int]
Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The ranks that have a list of each group, and a strategy file of each stage, among their own files.

    `kept` has the groups and stages that something else states, so that losing ranks does not lose it.
    """

    by_group: dict[Group, Ranks]
    kept_groups: frozenset[Group]
    by_stage: dict[int, Ranks]
    kept_stages: frozenset[int]

    def lists(self, group: Group) -> Ranks | None:
        """Return the ranks with a list of a group; None when it is not lost with them."""
        return None if group in self.kept_groups else self.by_group.get(group, frozenset())

    def strategies(self, stage: int) -> Ranks | None:
        """Return the ranks with a strategy file of a stage; None when it is not lost with them."""
        return None if stage in self.kept_stages else self.by_stage.get(stage, frozenset())


def find_evidence(facts: Facts) -> Evidence:
    """Find where the rank lists and strategy files lie that the claims of a tree rest on.

    A manifest states the group of its slice. What the operator says, and what lies in no directory of a single rank,
    stays.
    """
    inventory, groups = facts.inventory, facts.groups
    lists: dict[Group, set[int]] = defaultdict(set)
    kept_groups = {groups.of(rank) for rank in groups.claimed}
    stage_files: dict[int, set[int]] = defaultdict(set)
    kept_stages: set[int] = set()
    if inventory.part.kind is not None:  # documents of the iteration say it, for all ranks
        return Evidence(
            by_group={},
            kept_groups=frozenset(groups.members.values()),
            by_stage={},
            kept_stages=frozenset(facts.stages.layouts),
        )
    owners = owners_of(inventory, facts.world.ranks)
    for listing in inventory.group_files:
        if listing.info is None:
            continue
        ranks = listing.info.sorted_ranks
        owner = owner_of(listing.path, owners)
        if listing.rank is None or owner != listing.rank:
            kept_groups.add(ranks)
        else:
            lists[ranks].add(owner)
    for file in inventory.slices:
        if file.manifest is not None:
            lists[each_once(file.manifest.group)].add(file.rank)
    devices = facts.stages.devices
    for strategy in inventory.strategy_files:
        if not devices or strategy.devices_per_stage != devices:
            continue
        stage = strategy.rank // devices
        known = facts.stages.digests.get(stage)
        if known and strategy.digest and strategy.digest not in known:
            continue
        if owner_of(strategy.path, owners) == strategy.rank:
            stage_files[stage].add(strategy.rank)
        else:
            kept_stages.add(stage)
    return Evidence(
        by_group={group: frozenset(ranks) for group, ranks in lists.items()},
        kept_groups=frozenset(kept_groups),
        by_stage={stage: frozenset(ranks) for stage, ranks in stage_files.items()},
        kept_stages=frozenset(kept_stages),
    )
