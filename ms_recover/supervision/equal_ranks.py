"""The ranks that hold the same slice, where the layouts say so and the contents show it. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.tree.facts import gather_facts


def missing_lists(inventory: Inventory, options: PlanOptions) -> dict[int, tuple[int, ...]]:
    """Return the ranks that have no rank list though other ranks hold the same slice, and these with them.

    Layouts alone may be those of another run, and equal contents alone may be chance: both must agree, at the newest
    step that is sealed on all ranks. Iterations of MindFormers need no lists: their metadata name the holders.

    Raises what `ms_recover.planning.tree.facts.gather_facts` raises.
    """
    listed = {file.rank for file in inventory.group_files}
    sealed = _newest_sealed(inventory)
    if not inventory.strategy_files or all(file.rank in listed for file in sealed):
        return {}
    facts = gather_facts(inventory, replace(options, step=None, ranks=None))
    found: dict[int, tuple[int, ...]] = {}
    for group in dict.fromkeys(facts.stages.families.values()):
        held = [file for file in sealed if file.rank in group]
        contents = {file.manifest.digests.parameters for file in held if file.manifest is not None}
        if len(group) > 1 and len(held) == len(group) and len(contents) == 1:
            found |= {rank: group for rank in group if rank not in listed}
    return found


def _newest_sealed(inventory: Inventory) -> list[SliceFile]:
    """Return the slices of the newest step of which every rank has one, each with a manifest."""
    by_step: dict[Step, list[SliceFile]] = defaultdict(list)
    for file in inventory.slices:
        by_step[file.step].append(file)
    for step in inventory.steps:
        files = by_step[step]
        if not step.is_iteration and [file.rank for file in files if file.manifest] == list(inventory.ranks):
            return files
    return []
