"""How many copies of each kind of block there are, and on how many hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from ms_recover.model.audit import BlockClass
from ms_recover.planning.audit.blocks import Block, StepHolders
from ms_recover.planning.audit.losses import Level

_MOST_NAMES = 8


def block_classes(held: StepHolders, finest: Level) -> tuple[BlockClass, ...]:
    """Return the kinds of blocks, those with the fewest copies first; stages that cut alike are one kind."""
    alike: dict[tuple[str, int, int, str], list[Block]] = defaultdict(list)
    by_kind: dict[int, list[Block]] = defaultdict(list)
    for block in held.blocks:
        by_kind[id(block.kind)].append(block)
    for blocks in by_kind.values():
        counts = [len(block.holders) for block in blocks]
        kind = blocks[0].kind
        source = kind.source if not kind.names else ""
        alike[kind.cut if kind.names else "", min(counts), max(counts), source if len(by_kind) < 2 else ""] += blocks
    found = [_class(blocks, finest) for blocks in alike.values()]
    return tuple(sorted(found, key=lambda one: (one.hosts, one.copies, one.names)))


def _class(blocks: Sequence[Block], finest: Level) -> BlockClass:
    kinds = {block.kind for block in blocks}
    stages = {kind.stage for kind in kinds}
    names = sorted({name for kind in kinds for name in kind.names})
    copies = [len(block.holders) for block in blocks]
    hosts = [len(finest.places(block.holders)) for block in blocks]
    return BlockClass(
        stage=min(stages) if names and len(stages) == 1 else None,
        names=tuple(names[:_MOST_NAMES]),
        parameters=len(names),
        blocks=len(blocks),
        bytes=_sum(blocks),
        copies=(min(copies), max(copies)),
        hosts=(min(hosts), max(hosts)),
        single_copy_bytes=single_copy_bytes(blocks),
        source=blocks[0].kind.source,
    )


def _sum(blocks: Iterable[Block]) -> int | None:
    sizes = [block.bytes for block in blocks]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def single_copy_bytes(blocks: Iterable[Block]) -> int | None:
    """Return the bytes of blocks that one rank alone holds; None where sizes are not known."""
    return _sum(block for block in blocks if len(block.holders) == 1)
