"""The position in the dataset at which a resumed training goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ms_recover.errors import InputError
from ms_recover.model.manifest import Manifest, TrainingRecord
from ms_recover.model.steps import Step


@dataclass(frozen=True, slots=True)
class Feed:
    """The dataset as a training reads it."""

    epoch_steps: int
    """Steps of an epoch, as ``Model.train`` counts them: batches, or the size of a sink."""
    batch_size: int | None
    """Samples of a step on one rank, None when the dataset does not tell."""

    sinks: bool = False
    """Whether it goes to the device in sinks, so that training can begin at the end of one only."""

    @classmethod
    def of(cls, dataset: Any, sink_size: int = -1, *, sinks: bool = False) -> Feed:
        """Return how a training reads a dataset, in sinks of a size if that is above 0."""
        return cls(sink_size if sink_size > 0 else dataset.get_dataset_size(), batch_size_of(dataset), sinks)


def batch_size_of(dataset: Any) -> int | None:
    """Return the samples of a step on one rank, None when the dataset does not tell."""
    try:
        size = dataset.get_batch_size()
    except (AttributeError, RuntimeError, TypeError, ValueError):  # a batch size that a function returns
        return None
    return size if isinstance(size, int) and size > 0 else None


@dataclass(frozen=True, slots=True)
class Position:
    """Steps of the dataset that are not trained again, and where the dataset has changed, the change."""

    done: int
    change: str | None = None
    drawn: int | None = None
    """Batches that the dataset has given by then, where that is another number; see `Position.batches`."""
    steps: int | None = None
    """Steps that callbacks have counted by then, where that is another number."""

    @property
    def batches(self) -> int:
        """Batches of the dataset that are passed over: a training that began in a later epoch has drawn fewer."""
        return self.done if self.drawn is None else self.drawn

    @property
    def counted(self) -> int:
        """Steps of the training, as callbacks count them."""
        return self.done if self.steps is None else self.steps

    def counting(self, drawn: int | None, steps: int | None) -> Position:
        """Return it with the numbers that were counted when the slice was saved, unless the dataset has changed."""
        if drawn is None or self.change is not None:
            return self
        return replace(self, drawn=drawn, steps=steps)


def find_position(step: Step, manifest: Manifest | None, feed: Feed, *, allow_change: bool = False) -> Position:
    """Return the position behind a step, for the dataset that training goes on with.

    A changed one is refused unless `allow_change`. Then whole epochs stay whole, and of the epoch in which the step
    lies as many samples are passed over as were trained, without the part of a batch; the whole epoch if it has fewer.

    Raises InputError when the dataset or the batch size is another one than that the slice was saved with, or when sink
    mode would begin within an epoch.
    """
    position = _find_position(step, manifest, feed, allow_change)
    if feed.sinks and position.done % feed.epoch_steps:
        raise InputError(
            f"training would go on in the middle of an epoch of {feed.epoch_steps} steps, where sink mode cannot "
            "resume; resume without sink mode, or with the sink size the slice was saved with"
        )
    return position


def check_feed(manifest: Manifest | None, feed: Feed) -> None:
    """Raise InputError when the dataset is another one than that which a loop gave to its saver."""
    training = manifest.training if manifest is not None else None
    before = training.epoch_steps if training is not None else None
    epoch = None
    if before is not None and before != feed.epoch_steps:
        epoch = f"an epoch of this dataset has {feed.epoch_steps} steps, and had {before} when the slice was saved"
    change = "; ".join(one for one in (epoch, _batch_change(training, feed)) if one is not None)
    if change:
        raise InputError(
            f"{change}: training would not go on where it stopped; give the dataset and batch size that the slice was "
            "saved with, or none to resume(), which then compares nothing"
        )


def _find_position(step: Step, manifest: Manifest | None, feed: Feed, allow_change: bool) -> Position:
    training = manifest.training if manifest is not None else None
    before = _epoch_steps_before(step, manifest)
    changes = [_epoch_change(step, manifest, before, feed), _batch_change(training, feed)]
    change = "; ".join(one for one in changes if one is not None)
    if not change:
        return Position((step.epoch - 1) * feed.epoch_steps + step.step)
    if not allow_change or step.epoch < 1:
        raise InputError(
            f"{change}: training would not go on where it stopped; give the dataset, batch size and sink size that "
            "the slice was saved with, or allow_dataset_change=True"
        )
    old = training.batch_size if training is not None else None
    scale = (old, feed.batch_size) if old is not None and feed.batch_size is not None else (1, 1)
    whole = before is not None and step.step >= before
    steps = feed.epoch_steps if whole else min(step.step * scale[0] // scale[1], feed.epoch_steps)
    done = (step.epoch - 1) * feed.epoch_steps + steps
    return Position(
        done,
        f"{change}; training goes on in epoch {done // feed.epoch_steps + 1} behind its first "
        f"{done % feed.epoch_steps} of {feed.epoch_steps} steps",
    )


def _batch_change(training: TrainingRecord | None, feed: Feed) -> str | None:
    before = training.batch_size if training is not None else None
    if None in (before, feed.batch_size) or before == feed.batch_size:
        return None
    return f"a batch of this dataset has {feed.batch_size} samples, and had {before} when the slice was saved"


def _epoch_steps_before(step: Step, manifest: Manifest | None) -> int | None:
    """Return the steps of an epoch as the manifest states them, else as its numbers do; None where nothing does."""
    if manifest is None or (manifest.training is not None and manifest.training.epoch_steps is not None):
        return manifest.training.epoch_steps if manifest is not None and manifest.training is not None else None
    if manifest.cumulative_step is None or step.epoch < 2:
        return None
    before, rest = divmod(manifest.cumulative_step - step.step, step.epoch - 1)
    return before if rest == 0 and before >= step.step else None


def _epoch_change(step: Step, manifest: Manifest | None, before: int | None, feed: Feed) -> str | None:
    now = f"an epoch of this dataset has {feed.epoch_steps} steps"
    if before is not None and before != feed.epoch_steps:
        return f"{now}, and had {before} when the slice was saved"
    if step.epoch < 1 or not 1 <= step.step <= feed.epoch_steps:
        return f"{now}, and the slice was saved behind step {step.step} of epoch {step.epoch}"
    training = manifest.training if manifest is not None else None
    uncounted = training is None or training.names_host_alone
    trained = manifest.cumulative_step if manifest is not None and uncounted else None
    expected = (step.epoch - 1) * feed.epoch_steps + step.step
    if trained is None or trained == expected:
        return None
    return f"{now}, so that step {step} is behind {expected} steps of training, and was behind {trained}"
