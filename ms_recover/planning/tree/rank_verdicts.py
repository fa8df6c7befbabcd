"""The verdict on a rank whose slice lies in several files: that of the worst."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ms_recover.file_names import WeightKind
from ms_recover.model.plan import RankVerdict
from ms_recover.model.texts import many, name_ranks
from ms_recover.model.verdicts import RankState, Verdict

_STATES: Sequence[RankState] = ("lost", "unreadable", "damaged", "missing", "ok")
_VERDICTS: Sequence[Verdict] = ("unrecoverable", "compose", "copy", "keep")
_MOST_NAMED = 8


def join_ranks(by_kind: Mapping[WeightKind | None, Sequence[RankVerdict]]) -> tuple[RankVerdict, ...]:
    """Return one verdict for each rank from those on its files, by the parts these are of."""
    if None in by_kind:  # a slice is one file
        return tuple(by_kind[None])
    world = max(map(len, by_kind.values()), default=0)
    return tuple(
        join_verdicts(rank, tuple(_part_of(kind, ranks, rank) for kind, ranks in by_kind.items()))
        for rank in range(world)
    )


def _part_of(kind: WeightKind | None, ranks: Sequence[RankVerdict], rank: int) -> RankVerdict:
    if rank < len(ranks):
        return replace(ranks[rank], part=kind)
    why = f"the files of this part are of {many(len(ranks), 'rank')}"
    return RankVerdict(rank=rank, state="missing", verdict="unrecoverable", reason=why, part=kind)


def join_verdicts(rank: int, parts: tuple[RankVerdict, ...]) -> RankVerdict:
    """Return the verdict on a rank from those on its files: that of the worst."""
    worst = min(parts, key=lambda one: (_VERDICTS.index(one.verdict), _STATES.index(one.state)))
    known = [one.bytes for one in parts if one.bytes is not None]
    reasons = [f"{one.part}: {one.reason}" for one in parts if one.verdict == worst.verdict]
    return replace(
        worst,
        rank=rank,
        state=min((one.state for one in parts), key=_STATES.index),
        reason="; ".join(reasons),
        missing=tuple(region for one in parts for region in one.missing),
        bytes=sum(known) if known else None,
        part=None,
        parts=parts,
    )


def why_unrecoverable(ranks: Iterable[RankVerdict]) -> str:
    """Return the reasons why ranks cannot be recovered, each once with its ranks; of many the first, and the others."""
    by_reason: dict[str, list[int]] = {}
    for one in ranks:
        if one.verdict == "unrecoverable":
            by_reason.setdefault(one.reason, []).append(one.rank)
    named = list(by_reason.items())
    text = "; ".join(f"{name_ranks(of)}: {reason}" for reason, of in named[:_MOST_NAMED])
    rest = [rank for _, of in named[_MOST_NAMED:] for rank in of]
    return f"{text}; and {many(len(rest), 'more rank')}: {name_ranks(rest)}" if rest else text
