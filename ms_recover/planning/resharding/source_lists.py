"""The parameters that slices listed of which nothing sound is left: by manifests, damaged files and other steps."""

from __future__ import annotations

from ms_recover.model.slices import Parameter
from ms_recover.planning.sourcing.parameters import ParameterIndex


def stated_lists(index: ParameterIndex) -> dict[int, tuple[Parameter, ...]]:
    """Return for each rank without a sound slice what it must have listed; nothing where nothing states it.

    Metadata go first, then the manifest that a lost or damaged slice left, then its header, then the rank's own slice
    of the nearest other step. A rank that was declared lost states nothing. Ranks of a stage list the same unless
    redundancy was removed: one sound slice, or one list, is then enough for the stage, and its ranks are left out.
    """
    facts, step = index.facts, index.judgement.step
    dealt = step in index.judgement.structure.deduplicated or facts.inventory.part is not None
    found: dict[int, tuple[Parameter, ...]] = {}
    idle = facts.idle(step)
    for rank in range(facts.world.ranks):
        full = not dealt and any(index.is_sound(one) for one in index.by_stage.get(index.stages.of(rank), ()))
        if index.is_sound(rank) or full or rank in idle:
            continue
        found[rank] = _stated(index, rank)
    if not dealt:
        stages = {index.stages.of(rank) for rank, listed in found.items() if listed}
        found = {rank: listed for rank, listed in found.items() if listed or index.stages.of(rank) not in stages}
    return found


def _stated(index: ParameterIndex, rank: int) -> tuple[Parameter, ...]:
    facts, step = index.facts, index.judgement.step
    expected = facts.expected(step, rank)
    if expected is not None:
        return expected
    if rank in facts.lost:
        return ()
    own = [one.file for one in facts.at(step, rank)]
    for manifest in (*(file.manifest for file in own), *(one.manifest for one in facts.orphans.get((rank, step), ()))):
        if manifest is not None and (manifest.rank, manifest.step) == (rank, step):
            return manifest.parameters
    for file in own:
        if file.parameters and file.encryption is None:
            return file.parameters
    others = [
        one.file
        for other in facts.steps
        for one in facts.at(other, rank)
        if other != step and one.file.problem is None and one.file.encryption is None
    ]
    nearest = max(others, key=lambda file: (file.step < step, file.step), default=None)
    return nearest.parameters if nearest is not None else ()
