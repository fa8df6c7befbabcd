"""Blocks and their holders at one step, and the losses that leave a block without any."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from ms_recover.model.steps import Step
from ms_recover.planning.audit.families import Family, minimal

Ranks = frozenset[int]
NOBODY: Ranks = frozenset()
NOTHING_TIED: Mapping[Ranks, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True, eq=False)
class HeldBlock:
    """Parameters that are cut alike, and the ranks whose sound slices hold the same region of them.

    Parameters
    ----------
    kind : BlockKind
        The parameters, and how they are cut.
    holders : tuple of int
        Ascending.
    bytes : int or None
        Of one copy; None where sizes are not known.
    """

    kind: BlockKind
    holders: tuple[int, ...]
    bytes: int | None

    @cached_property
    def members(self) -> Ranks:
        """The holders as a set."""
        return frozenset(self.holders)


@dataclass(frozen=True, kw_only=True)
class BlockKind:
    """Parameters of a stage that are cut alike; of no names where whole slices are meant."""

    stage: int
    names: tuple[str, ...]
    cut: str
    source: str

    @property
    def text(self) -> str:
        """The parameters in a few words."""
        if not self.names:
            return "the whole slice"
        more = f" and {len(self.names) - 1} more" if len(self.names) > 1 else ""
        return f"{self.names[0]}{more}"


@dataclass(frozen=True, kw_only=True, eq=False)
class StepHolders:
    """Who holds what at one step.

    Parameters
    ----------
    step : Step
        The step.
    ranks : int
        Number of ranks.
    blocks : tuple of HeldBlock
        Every block that some rank needs.
    groups : mapping of int to tuple of int
        By rank the ranks with a slice to copy whole, its own among them; without one that is only composed.
    sizes : mapping of int to int
        Bytes of a rank's whole slice.
    parts : mapping of int to tuple of HeldBlock
        By rank the blocks of which its slice is composed.
    missing : frozenset of int
        Ranks without a sound slice, which need one whatever is lost.
    family : tuple of frozenset of int
        Smallest sets of ranks whose loss is fatal, as far as holders show it.
    sure : tuple of frozenset of int
        The same without those after which a plan may find a way all the same.
    why : mapping of frozenset of int to str
        What is lost with such a set.
    ties : mapping of frozenset of int to str
        Those among all such sets whose loss leaves a vote undecided, so that no older step is tried.
    assumed : bool
        Whether a parameter without layout is called the same on all ranks though not all that hold it were read.
    """

    step: Step
    ranks: int
    blocks: tuple[HeldBlock, ...]
    groups: Mapping[int, tuple[int, ...]]
    sizes: Mapping[int, int]
    parts: Mapping[int, Sequence[HeldBlock]]
    missing: Ranks
    family: Family
    sure: Family
    why: Mapping[Ranks, str]
    ties: Mapping[Ranks, str] = field(default_factory=dict)
    assumed: bool = False


def join_parts(parts: Sequence[StepHolders]) -> StepHolders:
    """Return who holds what where the slice of a rank is several files: a loss is fatal when it is for one of them."""
    if len(parts) == 1:
        return parts[0]
    ranks = range(max(part.ranks for part in parts))
    why = {loss: text for part in reversed(parts) for loss, text in part.why.items()}
    return StepHolders(
        step=parts[0].step,
        ranks=len(ranks),
        blocks=tuple(block for part in parts for block in part.blocks),
        groups={},
        sizes={rank: sum(part.sizes.get(rank, 0) for part in parts) for rank in ranks},
        parts={rank: [block for part in parts for block in part_blocks(part, rank)] for rank in ranks},
        missing=NOBODY.union(*(part.missing for part in parts)),
        family=minimal(loss for part in parts for loss in part.family),
        sure=minimal(loss for part in parts for loss in part.sure),
        why=why,
        ties={loss: text for part in parts for loss, text in part.ties.items()},
        assumed=any(part.assumed for part in parts),
    )


def part_blocks(held: StepHolders, rank: int) -> Sequence[HeldBlock]:
    """Return what a rank's slice is put together from; its whole slice as one block where it can be copied."""
    group = held.groups.get(rank, ())
    if group in ((), (rank,)):
        return held.parts.get(rank, ())
    kind = BlockKind(stage=0, names=(), cut="", source="")
    return (HeldBlock(kind=kind, holders=group, bytes=held.sizes.get(rank)),)


def some_ranks(ranks: Sequence[int]) -> str:
    """Return a few ranks in words."""
    named = ", ".join(map(str, ranks[:4]))
    return named if len(ranks) < 5 else f"{named} and {len(ranks) - 4} more"


def block_text(block: HeldBlock) -> str:
    """Return what is lost with all holders of a block."""
    return f"{block.kind.text}, which rank(s) {some_ranks(block.holders)} alone hold"
