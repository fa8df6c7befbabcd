"""Which rank reads which shard of the samples: named where it changes, or where ranks read the same."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ms_recover.errors import InputError
from ms_recover.model.texts import list_some
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.obtained import Obtained

_log = logging.getLogger(__name__)

_UNKNOWN = -1


@dataclass(frozen=True)
class Shard:
    """One shard of so many."""

    shard: int
    shards: int

    @classmethod
    def of(cls, order: Mapping[str, Any]) -> Shard | None:
        """Return the shard that an order of samples states, see `sample_order`; None where it states none."""
        return cls(order["shard"], order["shards"]) if "shard" in order and "shards" in order else None

    @property
    def text(self) -> str:
        """As messages name it."""
        return f"shard {self.shard} of {self.shards}" if self.shards > 1 else "all samples"


def moved_text(before: Sequence[Shard | None], now: Sequence[Shard]) -> str | None:
    """Return which ranks read another shard than before, both index = rank; None where none does.

    What None stands for is not known, and moves nowhere.
    """
    moved = [
        f"rank {rank} reads {new.text}, and read {old.text}"
        for rank, (old, new) in enumerate(zip(before, now, strict=True))
        if old is not None and old != new
    ]
    return list_some(moved, 8, separator="; ") if moved else None


def unread_text(now: Sequence[Shard]) -> str | None:
    """Return which ranks read the same shard, index = rank, while nobody reads another one; None where that is not so.

    Ranks that hold different parts of the weights read the same: then each shard has readers.
    """
    for shards in sorted({one.shards for one in now}):
        readers: dict[int, list[int]] = {}
        for rank, one in enumerate(now):
            if one.shards == shards:
                readers.setdefault(one.shard, []).append(rank)
        missing = [shard for shard in range(shards) if shard not in readers]
        same = [f"ranks {list_some(ranks)} read shard {shard}" for shard, ranks in readers.items() if len(ranks) > 1]
        if missing and same:
            return (
                f"{list_some(same, 4, separator=', ')} of {shards}, and nobody reads shard {list_some(missing, 8)}: "
                "those samples are never trained; give each rank its shard_id, such as its rank"
            )
    return None


def warn_of_shards(job: TrainingJob, order: Mapping[str, Any]) -> None:
    """Warn, on rank 0, of shards that nobody reads; all ranks call it together when a training begins."""
    if job.size == 1 or not job.connected:
        return
    _, now = _gathered(job, None, order)
    unread = unread_text(now)
    if unread is not None and job.rank == 0:
        _log.warning("%s", unread)


def check_shards(
    found: Obtained,
    before: Mapping[str, Any],
    order: Mapping[str, Any],
    *,
    allow: bool = False,
    otherwise: str = "with allow_dataset_change=True",
) -> None:
    """Refuse a training that is resumed with other shards; all ranks call it together, and all have the same answer.

    `before` and `order` state the shard when the slice was saved, as far as it is known, and now. Where slices were cut
    anew, the samples are shared out anew as well, and other shards are right. InputError names ranks with both numbers,
    and that `otherwise` it goes on; with `allow` it is a warning.
    """
    job, own, shared_out = found.job, found.own, found.resharded_from is not None
    if job.size == 1 or not job.connected:
        return
    then, now = _gathered(job, None if shared_out else Shard.of(before), order)
    moved, unread = moved_text(then, now), unread_text(now)
    if moved is None and (unread is None or all(one is not None for one in then)):
        return  # what was so before goes on as it was, and the saver names it
    text = "; ".join(one for one in (moved, unread) if one)
    if not allow:
        raise InputError(f"{own}: {text}. Nothing was trained; give each rank its shard, or go on {otherwise}")
    if job.rank == 0:
        _log.warning("%s: training goes on with other samples: %s", own, text)


def _gathered(
    job: TrainingJob, before: Shard | None, order: Mapping[str, Any]
) -> tuple[list[Shard | None], list[Shard]]:
    """Return the shards of all ranks before and now, index = rank."""
    now = Shard.of(order) or Shard(0, 1)
    then = before or Shard(_UNKNOWN, 1)
    rows = job.gather([then.shard, then.shards, now.shard, now.shards], "comparing the shards")
    return (
        [None if row[0] == _UNKNOWN else Shard(row[0], row[1]) for row in rows],
        [Shard(row[2], row[3]) for row in rows],
    )
