"""The audit: every loss of one and two domains, the smallest fatal ones, and their probabilities."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb

from ms_recover.errors import ContradictionError
from ms_recover.model.audit import RANK_LEVEL, Audit, BlockClass, Finding, LevelAudit, Loss
from ms_recover.model.audit import Losses as CountedLosses
from ms_recover.model.options import DEFAULT_AUDIT, AuditOptions
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.after import Losable
from ms_recover.planning.audit.blocks import HeldBlock, StepHolders
from ms_recover.planning.audit.families import Family, TooManyError, count_fatal, fatal_in_all
from ms_recover.planning.audit.headline import headline_of
from ms_recover.planning.audit.losses import Level, Losses

_MOST_NAMES = 8
MOST_EACH = 2016
"""Losses that are listed one by one: all pairs of 64 hosts."""
MOST_LISTED = 1000
"""Fatal losses that are listed where there are more losses than that."""
_LEAST_COUNTED = 3
_MOST_TRIED = 200_000
_MOST_MOVES = 200_000
"""Ranks that get a slice, over all losses of one domain, up to which each loss says where its bytes come from."""


@dataclass(frozen=True, kw_only=True)
class AuditedTree:
    """What is known of a tree before anything is lost.

    Parameters
    ----------
    root, ranks
        The tree, and its number of ranks.
    steps : sequence of StepHolders
        Steps that can be recovered now, newest first; none where none can.
    evidence : str
        What says who holds the same.
    why : str
        Why no step can be recovered.
    findings : sequence of Finding
        Of the tree, the gravest first.
    disputed : bool
        No step can be recovered because replicas differ, with nothing to settle who is right.
    losable : Losable or None
        The tree, to plan it after losses; None before the first checkpoint.
    """

    root: str
    ranks: int
    steps: Sequence[StepHolders]
    evidence: str
    why: str = ""
    findings: tuple[Finding, ...] = ()
    disputed: bool = False
    losable: Losable | None = None


def make_audit(tree: AuditedTree, topology: Topology | None, wanted: AuditOptions = DEFAULT_AUDIT) -> Audit:
    """Return what losses cost; without a topology, where nothing says it, each rank stands for a host.

    Raises
    ------
    ContradictionError
        When the topology places another number of ranks.
    """
    ranks, steps = tree.ranks, tree.steps
    places = topology or Topology((RANK_LEVEL,), (tuple(map(str, range(ranks))),), "nothing")
    if places.world_size != ranks:
        raise ContradictionError(
            f"{places.source} places {places.world_size} ranks, and the job has {ranks}: it is of another launch"
        )
    levels = [Level.of_topology(places, number) for number in range(len(places.levels))]
    books = [Losses(steps, level, levels[0], wanted.bandwidth, tree.losable) for level in levels]
    audited = tuple(_level(book, wanted) for book in books)
    newest = steps[0] if steps else None
    # For a placement; too many to list propose none.
    try:
        fatal_ranks = fatal_in_all([holders.family for holders in steps]) if steps else ()
    except TooManyError:
        fatal_ranks = ()
    audit = Audit(
        root=tree.root,
        step=newest.step if newest is not None else None,
        why=tree.why,
        disputed=tree.disputed,
        world_size=ranks,
        evidence=tree.evidence,
        topology=places,
        levels=audited,
        pairs=tuple(_listed(books[0], 2)) if steps else (),
        chosen=tuple(_listed(books[0], wanted.losses)) if steps and wanted.losses > 2 else (),
        blocks=block_classes(newest, levels[0]) if newest is not None else (),
        single_copy_bytes=single_copy_bytes(newest.blocks) if newest is not None else None,
        findings=tree.findings,
        fatal_ranks=fatal_ranks,
    )
    return headline_of(audit)


def _level(book: Losses, wanted: AuditOptions) -> LevelAudit:
    level = book.level
    count = len(level.domains)
    needing = 1 + (len(book.steps[0].missing) if book.steps else 0)
    sources = count * needing <= _MOST_MOVES
    singles = tuple(book.loss(frozenset((place,)), sources=sources) for place in range(count))
    most = min(max(wanted.losses, _LEAST_COUNTED), count)
    fatal = book.fatal
    # The smallest fatal loss is among those that are listed; where they are too many, among those that were counted.
    counted = tuple(_counted(book, lost) for lost in range(1, most + 1))
    if fatal is not None:
        smallest = len(fatal[0]) if fatal and book.steps else None
        smallest_count: int | None = sum(len(loss) == smallest for loss in fatal) if smallest else None
    else:
        first = next((size for size in counted if size.fatal != 0), None)
        smallest = first.count if first is not None and first.fatal else None
        smallest_count = first.fatal if first is not None else None
    listed = fatal[:MOST_LISTED] if fatal is not None and book.steps else ()
    return LevelAudit(
        name=level.name,
        domains=level.domains,
        singles=singles,
        losses=counted,
        smallest=smallest,
        smallest_count=smallest_count,
        minimal=tuple(tuple(level.domains[place] for place in sorted(loss)) for loss in listed),
        minimal_count=len(fatal) if fatal is not None and book.steps else None,
    )


def _counted(book: Losses, lost: int) -> CountedLosses:
    count = len(book.level.domains)
    if lost <= book.most_asked:
        steps = [book.step_after(frozenset(loss)) for loss in combinations(range(count), lost)]
        left = [step for step in steps if step is not None]
        newest = book.steps[0].step
        return CountedLosses(
            count=lost,
            possible=len(steps),
            fatal=len(steps) - len(left),
            newest=sum(step >= newest for step in left),
        )
    fatal = _count(count, book.fatal, lost)
    if fatal is None and comb(count, lost) <= _MOST_TRIED:
        losses = map(frozenset, combinations(range(count), lost))
        fatal = sum(book.step_after(loss) is None for loss in losses)
    costly = _count(count, book.costly, lost) if book.steps else None
    possible = comb(count, lost)
    kept = possible - costly if costly is not None else None
    return CountedLosses(count=lost, possible=possible, fatal=fatal, newest=kept)


def _count(places: int, family: Family | None, lost: int) -> int | None:
    try:
        return count_fatal(places, family, lost) if family is not None else None
    except TooManyError:
        return None


def _listed(book: Losses, lost: int) -> Iterator[Loss]:
    """Yield losses of so many domains: each where they are few, else smallest fatal ones of at most so many."""
    count = len(book.level.domains)
    if comb(count, lost) <= MOST_EACH:
        for places in combinations(range(count), lost):
            yield book.loss(frozenset(places))
        return
    fatal = [loss for loss in book.fatal or () if 1 < len(loss) <= lost]
    for loss in fatal[:MOST_LISTED]:
        yield book.loss(loss)


def block_classes(holders: StepHolders, finest: Level) -> tuple[BlockClass, ...]:
    """Return the kinds of blocks, those with the fewest copies first; stages that cut alike are one kind."""
    alike: dict[tuple[str, int, int, str], list[HeldBlock]] = defaultdict(list)
    by_kind: dict[int, list[HeldBlock]] = defaultdict(list)
    for block in holders.blocks:
        by_kind[id(block.kind)].append(block)
    for blocks in by_kind.values():
        counts = [len(block.holders) for block in blocks]
        kind = blocks[0].kind
        source = kind.source if not kind.names else ""
        alike[kind.cut if kind.names else "", min(counts), max(counts), source if len(by_kind) < 2 else ""] += blocks
    classes = [_class(blocks, finest) for blocks in alike.values()]
    return tuple(sorted(classes, key=lambda class_: (class_.hosts, class_.copies, class_.names)))


def _class(blocks: Sequence[HeldBlock], finest: Level) -> BlockClass:
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
        bytes=_bytes_of(blocks),
        copies=(min(copies), max(copies)),
        hosts=(min(hosts), max(hosts)),
        single_copy_bytes=single_copy_bytes(blocks),
        source=blocks[0].kind.source,
    )


def _bytes_of(blocks: Iterable[HeldBlock]) -> int | None:
    sizes = [block.bytes for block in blocks]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def single_copy_bytes(blocks: Iterable[HeldBlock]) -> int | None:
    """Return the bytes of blocks that one rank alone holds; None where sizes are not known."""
    return _bytes_of(block for block in blocks if len(block.holders) == 1)
