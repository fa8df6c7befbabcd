"""The position in a dataset that other ranks share out, or in other batches: counted in samples over all ranks.

``DistributedSampler`` deals one order of samples out to the shards in turn, so that the samples of a step are the same
for every number of shards as long as their number is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ms_recover.errors import InputError
from ms_recover.model.manifest import TrainingRecord
from ms_recover.model.steps import Step
from ms_recover.training.deciding.position import Feed, Position

_SHARDS = re.compile(r"num_shards=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedFeed:
    """A dataset as all ranks read it together.

    Parameters
    ----------
    epoch_steps : int or None
        Steps of an epoch.
    batch_size : int or None
        Samples of a step on one rank.
    shards : int or None
        Into how many shards its samples are dealt; 1 where every rank reads the same.
    accumulate : int
        Steps that make up one update of the weights.
    """

    epoch_steps: int | None
    batch_size: int | None
    shards: int | None
    accumulate: int = 1

    @property
    def samples(self) -> int | None:
        """Samples of a step over all ranks, None where it is not known."""
        if self.batch_size is None or self.shards is None:
            return None
        return self.batch_size * self.shards

    @property
    def text(self) -> str:
        """The samples of an update in words."""
        several = f" x {self.accumulate} steps" if self.accumulate > 1 else ""
        return f"{(self.samples or 0) * self.accumulate} ({self.batch_size} x {self.shards} shard(s){several})"


def feed_before(training: TrainingRecord | None, order: Mapping[str, Any]) -> SharedFeed:
    """Return the dataset of the training that is resumed, by its manifest and its state."""
    shards = order.get("shards")
    if shards is None and order.get("made"):
        named = [int(match[1]) for text in order["made"] for match in _SHARDS.finditer(text)]
        shards = max(named, default=1)
    return SharedFeed(
        epoch_steps=training.epoch_steps if training is not None else None,
        batch_size=training.batch_size if training is not None else None,
        shards=shards,
        accumulate=order.get("accumulate") or 1,
    )


def feed_now(feed: Feed, shards: int, accumulate: int) -> SharedFeed:
    """Return the dataset that training goes on with."""
    return SharedFeed(epoch_steps=feed.epoch_steps, batch_size=feed.batch_size, shards=shards, accumulate=accumulate)


def micro_batches(before: SharedFeed, now: SharedFeed) -> int:
    """Return how many micro-batches, each as large as one of a rank before, one rank trains now for an update."""
    if before.shards is None or now.shards is None:
        return 1
    return max(1, before.shards * before.accumulate // now.shards)


def find_shared_position(
    step: Step, before: SharedFeed, now: SharedFeed, *, sinks: bool, allow_change: bool = False
) -> Position:
    """Return the position behind a step for a dataset that is dealt out otherwise.

    Raises
    ------
    InputError
        When an update of the weights or an epoch would have other samples than before, the step ends within a step of
        this dataset, or sink mode would begin within an epoch; the first unless `allow_change`.
    """
    assert now.epoch_steps is not None
    done, change = _steps_done(step, before, now)
    if change is not None and (not allow_change or step.epoch < 1):
        raise InputError(f"{change}; or go on from about there with allow_dataset_change=True")
    whole = before.epoch_steps is not None and step.step >= before.epoch_steps
    inside = now.epoch_steps if whole else min(done, now.epoch_steps)
    position = (step.epoch - 1) * now.epoch_steps + inside
    if sinks and position % now.epoch_steps:
        raise InputError(
            f"training would go on in the middle of an epoch of {now.epoch_steps} steps, where sink mode cannot "
            "resume; resume without sink mode, or from the step at the end of an epoch with step="
        )
    if change is None:
        return Position(position)
    return Position(
        position,
        f"{change}; training goes on in epoch {position // now.epoch_steps + 1} behind its first "
        f"{position % now.epoch_steps} of {now.epoch_steps} steps",
    )


def _steps_done(step: Step, before: SharedFeed, now: SharedFeed) -> tuple[int, str | None]:
    """Return the steps of this dataset that are as many samples as were trained in the epoch, and what has changed."""
    assert now.epoch_steps is not None
    if before.samples is None or now.samples is None:
        if (before.epoch_steps, before.batch_size) in ((now.epoch_steps, now.batch_size), (None, None)):
            return step.step, None
        return step.step, (
            f"an epoch was {before.epoch_steps} steps of {before.batch_size} samples and is {now.epoch_steps} of "
            f"{now.batch_size}, and nothing states how samples were dealt out: give the same dataset"
        )
    done, rest = divmod(step.step * before.samples, now.samples)
    updates = before.samples * before.accumulate, now.samples * now.accumulate
    if updates[0] != updates[1]:
        return done, (
            f"an update of the weights was {before.text} samples over all ranks, and is {now.text} now"
            + _advice(before, now)
        )
    if before.epoch_steps is not None and before.epoch_steps * before.samples != now.epoch_steps * now.samples:
        return done, (
            f"an epoch was {before.epoch_steps * before.samples} samples over all ranks, and is "
            f"{now.epoch_steps * now.samples} now: give as many samples, a multiple of the {updates[1]} of an update"
        )
    if rest or done % now.accumulate:
        return done, (
            f"step {step} is behind {step.step * before.samples} samples of its epoch, which is within an update of "
            f"{updates[1]} samples: resume from another step with step="
        )
    return done, None


def _advice(before: SharedFeed, now: SharedFeed) -> str:
    """Say how to keep the samples of an update."""
    assert before.samples is not None
    assert now.samples is not None
    wanted = before.samples * before.accumulate
    ways = []
    if now.shards and wanted % (now.shards * now.accumulate) == 0:
        ways.append(f"read batches of {wanted // (now.shards * now.accumulate)} samples")
    if wanted % now.samples == 0:
        count = wanted // now.samples
        ways.append(f"have the training step accumulate {count} batches, and resume with accumulate={count}")
    return ": " + ", or ".join(ways) if ways else ": give a number of ranks that divides it"
