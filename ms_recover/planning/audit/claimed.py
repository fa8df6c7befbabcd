"""Who will hold what, before the first checkpoint: by strategy files, by rank lists, or by the axes of the job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ms_recover.errors import MissingInputError
from ms_recover.model.audit import BEFORE
from ms_recover.planning.audit.blocks import NOBODY, BlockKind, HeldBlock, StepHolders, block_text
from ms_recover.planning.audit.families import minimal
from ms_recover.planning.claims.axes import kinds_by_axes
from ms_recover.planning.tree.facts import Facts


def claimed_holders(facts: Facts) -> StepHolders:
    """Return who will hold what, where every rank saves its slice.

    By layouts, where strategy files state them for every stage: they will be saved with the slices. Else by whole
    slices: by rank lists, or by the axes.

    Raises
    ------
    MissingInputError
        When nothing says who holds the same.
    """
    ranks = range(facts.world.ranks)
    if facts.stages.problem is None:
        missing = sorted({facts.stages.of(rank) for rank in ranks} - set(facts.stages.layouts))
        if not missing:
            return _holders(facts, _by_layouts(facts))
        if not facts.groups.members:
            raise MissingInputError(
                f"the strategy file of stage {missing[0]} is missing, and no rank list says who holds the same there"
            )
    if facts.options.axes is not None:
        return _holders(facts, _by_axes(facts))
    if not facts.groups.members:
        raise MissingInputError(
            f"{facts.stages.problem}; name strategy files with --strategy, rank lists with --group-info, or the axes "
            "of the job with --axes"
        )
    return _holders(facts, _by_lists(facts))


def _holders(facts: Facts, blocks: Iterable[HeldBlock]) -> StepHolders:
    claimed = tuple(blocks)
    why = {block.members: block_text(block) for block in reversed(claimed)}
    parts: dict[int, list[HeldBlock]] = defaultdict(list)
    for block in claimed:
        for rank in block.holders:
            parts[rank].append(block)
    return StepHolders(
        step=BEFORE,
        ranks=facts.world.ranks,
        blocks=claimed,
        groups={},
        sizes={},
        parts=parts,
        missing=NOBODY,
        family=(family := minimal(why)),
        sure=family,
        why=why,
    )


def _by_layouts(facts: Facts) -> Iterable[HeldBlock]:
    for stage, cuts in facts.stages.cuts.items():
        first = stage * facts.stages.devices
        for cut in cuts:
            names = tuple(sorted(cut.names))
            text = f"{list(cut.layout.device_matrix)} {cut.layout.tensor_map} {cut.layout.opt_shard_size}"
            kind = BlockKind(stage=stage, names=names, cut=text, source=facts.stages.paths[stage])
            cells: dict[tuple[int, ...], list[int]] = defaultdict(list)
            for place, cell in enumerate(cut.parts):
                cells[cell].append(first + place)
            for ranks in cells.values():
                yield HeldBlock(kind=kind, holders=tuple(ranks), bytes=None)


def _by_lists(facts: Facts) -> Iterable[HeldBlock]:
    for group in dict.fromkeys(map(facts.groups.of, range(facts.world.ranks))):
        source = facts.groups.sources.get(group[0], "no rank list names it")
        kind = BlockKind(stage=0, names=(), cut="", source=source)
        yield HeldBlock(kind=kind, holders=group, bytes=None)


def _by_axes(facts: Facts) -> Iterable[HeldBlock]:
    options = facts.options
    assert options.axes is not None
    kinds = kinds_by_axes(options.axes, options.order, options.optimizer_shards, facts.world.ranks)
    for name, groups in kinds.items():
        kind = BlockKind(stage=0, names=(name,), cut=name, source=f"--axes {options.axes}")
        for group in groups:
            yield HeldBlock(kind=kind, holders=group, bytes=None)
