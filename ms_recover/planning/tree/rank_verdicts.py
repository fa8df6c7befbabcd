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
    """Return one verdict for each rank from those on its files, by the kinds of these."""
    world = max(map(len, by_kind.values()), default=0)
    return tuple(
        join_verdicts(rank, tuple(_verdict_on(kind, ranks, rank) for kind, ranks in by_kind.items()))
        for rank in range(world)
    )


def _verdict_on(kind: WeightKind | None, ranks: Sequence[RankVerdict], rank: int) -> RankVerdict:
    if rank < len(ranks):
        return ranks[rank] if kind is None else replace(ranks[rank], kind=kind)
    why = f"the files of this part are of {many(len(ranks), 'rank')}"
    return RankVerdict(rank=rank, state="missing", verdict="unrecoverable", reason=why, kind=kind)


def join_verdicts(rank: int, files: tuple[RankVerdict, ...]) -> RankVerdict:
    """Return the verdict on a rank from those on its files: that of the worst. Where a slice is one file it is that."""
    if len(files) == 1 and files[0].kind is None:
        return files[0]
    worst = min(files, key=lambda file: (_VERDICTS.index(file.verdict), _STATES.index(file.state)))
    known = [file.bytes for file in files if file.bytes is not None]
    reasons = [f"{file.kind}: {file.reason}" for file in files if file.verdict == worst.verdict]
    return replace(
        worst,
        rank=rank,
        state=min((file.state for file in files), key=_STATES.index),
        reason="; ".join(reasons),
        missing=tuple(region for file in files for region in file.missing),
        bytes=sum(known) if known else None,
        kind=None,
        by_kind=files,
    )


def why_unrecoverable(ranks: Iterable[RankVerdict]) -> str:
    """Return the reasons why ranks cannot be recovered, each once with its ranks; of many the first, and the others."""
    by_reason: dict[str, list[int]] = {}
    for verdict in ranks:
        if verdict.verdict == "unrecoverable":
            by_reason.setdefault(verdict.reason, []).append(verdict.rank)
    named = list(by_reason.items())
    text = "; ".join(f"{name_ranks(of)}: {reason}" for reason, of in named[:_MOST_NAMED])
    rest = [rank for _, of in named[_MOST_NAMED:] for rank in of]
    return f"{text}; and {many(len(rest), 'more rank')}: {name_ranks(rest)}" if rest else text
