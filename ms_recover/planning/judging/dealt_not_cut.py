"""Slices that look cut off, and are whole: ``remove_redundancy=True`` dealt what they lack to others.

Ranks that hold the same part of the large parameters may list the same of these, and one of them a small parameter
more behind them, which all ranks share. That is no damage; layouts show who else has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.structure import StructureFindings


def forgive_dealt(facts: Facts, structure: StructureFindings) -> StructureFindings:
    """Return the findings without damage to slices of which all that they lack lies with ranks that hold the same.

    Slices that listed something else at another step stay damaged, and so do those without layouts.
    """
    forgiven: set[str] = set()
    for step in structure.deduplicated:
        by_stage: dict[int, list[SliceFacts]] = defaultdict(list)
        for one in facts.counted_at(step):
            known = facts.stages.why_unknown(one.rank) is None and facts.stages.covers(one.file)
            if known and one.file.problem is None and one.file.encryption is None and one.manifest_problem is None:
                by_stage[facts.stages.of(one.rank)].append(one)
        for held in by_stage.values():
            whole = [one for one in held if one.path not in structure.damaged]
            cut = [one for one in held if one.path in structure.damaged and _is_usual(facts, one)]
            while cut and (less := [one for one in cut if _has_all(facts, one, [*whole, *cut])]) != cut:
                cut = less  # one that is damaged may be what another one needs
            forgiven.update(one.path for one in cut)
    if not forgiven:
        return structure
    return replace(structure, damaged={path: why for path, why in structure.damaged.items() if path not in forgiven})


def _has_all(facts: Facts, one: SliceFacts, held: Sequence[SliceFacts]) -> bool:
    """Whether another slice that lists it holds the same part of each parameter that a slice lacks."""
    stages = facts.stages
    cuts = {name: cut for cut in stages.cuts[stages.of(one.rank)] for name in cut.names}
    for name in dict.fromkeys(name for other in held for name in other.listed.index):
        if name in one.listed.index:
            continue
        cut = cuts.get(name)
        if cut is None:
            return False
        part = cut.parts[one.rank % stages.devices]
        if not any(cut.parts[other.rank % stages.devices] == part for other in held if name in other.listed.index):
            return False
    return any(other.listed != one.listed == other.listed[: len(one.listed)] for other in held)


def _is_usual(facts: Facts, one: SliceFacts) -> bool:
    """Whether a rank's slices of other steps list the same."""
    others = [other for step in facts.steps for other in facts.at(step, one.rank) if step != one.file.step]
    same_run = (other for other in others if other.file.prefix == one.file.prefix and other.file.problem is None)
    return all(other.listed == one.listed for other in same_run)
