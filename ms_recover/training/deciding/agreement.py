"""The step that all ranks resume from: one agreement, however each of them obtains its slice of it.

A rank keeps its slice, copies or composes it from others, or has it cut anew. What it can be brought to are its
candidates. Ranks may see different slices, and what each can have shows when it is looked at. So each names its newest
candidate, then its newest one up to the oldest that was named, until all name the same.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from ms_recover.errors import UnrecoverableError
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.training.deciding.job import TrainingJob

_log = logging.getLogger(__name__)

T = TypeVar("T")

Place = tuple[int, Step]
"""The place of a run in the lineage, and a step of it: the order in which steps were trained."""

_CHOOSING = "choosing the step to resume from"
_LONGEST_REASON = 1000
"""Characters of the reason of another rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A step that one rank can be brought to."""

    place: Place
    own_states: bool = True
    """Whether the rank has its own states there, or such as are equal to them."""
    fingerprint: int = 0
    """A 32-bit number that differs between runs; 0 where the run is unknown, or shows when the slice is proven."""

    @property
    def step(self) -> Step:
        """The step."""
        return self.place[1]


class Candidates(ABC, Generic[T]):
    """The steps that one rank can be brought to, each looked at when it is asked for."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether this rank sees no slices, of whatever worth."""

    @abstractmethod
    def newest(self, bound: Place | None, *, own_states: bool) -> Candidate | None:
        """Return the newest candidate up to a bound, None when there is none; with `own_states` of those that have."""

    @abstractmethod
    def obtain(self, candidate: Candidate) -> T | None:
        """Prove this rank's slice, or get it; None where that shows that it cannot be had."""

    @abstractmethod
    def fingerprint(self, candidate: Candidate) -> int:
        """Return that of the run of a slice, after it is proven."""

    @abstractmethod
    def withdraw(self, candidate: Candidate, why: str) -> None:
        """Name it no more, and say why."""

    @abstractmethod
    def missed(self, candidate: Candidate, ranks: Sequence[int]) -> None:
        """Take note that some ranks could not obtain their slices; all ranks call it."""

    @abstractmethod
    def why_none(self, job: TrainingJob, ranks: Sequence[int]) -> str:
        """Return why there is no common step, where some ranks can have none; all ranks call it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """A newer step that all ranks were passed over for an older one, and the ranks whose states are lost there."""

    step: Step
    ranks: tuple[int, ...]

    @property
    def text(self) -> str:
        """As the line of a resume names it."""
        return f"{self.step}, where states of rank(s) {list_some(self.ranks)} are lost"

    def why(self, step: Step) -> str:
        """Return why training goes back to an older step."""
        return (
            f"at step {self.step} the states of rank(s) {list_some(self.ranks)} (random generators, callbacks, extra) "
            "are lost, and differ from those of other ranks: all ranks go back to "
            f"step {step}, where each has its own; rank_local='peer' stays at step {self.step} with those of another "
            "rank"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreed(Generic[T]):
    """What a rank obtained of the step that all ranks resume from."""

    obtained: T
    back: Back | None


def agree(job: TrainingJob, candidates: Candidates[T]) -> Agreed[T] | None:
    """Find the newest step of which every rank obtains its slice; None when no rank sees any.

    Where some ranks cannot, all go on to the next older step. All ranks call this function.

    Raises
    ------
    UnrecoverableError
        When there are slices, but no such step.
    MsRecoverError
        What obtaining a slice raises; on the other ranks, that it failed.
    """
    if all(empty for (empty,) in job.gather([candidates.is_empty], _CHOOSING)):
        return None
    back: Back | None = None
    while True:
        candidate, back = find_common_step(job, candidates, back)
        step = candidate.step
        obtained = job.run_together(f"getting the slice of step {step}", partial(candidates.obtain, candidate))
        row = [obtained is not None, candidates.fingerprint(candidate)]
        answers = job.gather(row, f"resuming from step {step}")
        missing = [rank for rank, (has, _) in enumerate(answers) if not has]
        if _differ(number for _, number in answers):
            candidates.withdraw(candidate, "its slices are of different runs")
        elif missing or obtained is None:
            candidates.missed(candidate, missing)
        else:
            return Agreed(obtained=obtained, back=back)


def find_common_step(
    job: TrainingJob, candidates: Candidates[T], before: Back | None = None
) -> tuple[Candidate, Back | None]:
    """Return the newest step that every rank names, and the newer one that it is taken for.

    That is the newest one at which every rank has its own states, else the newest one. It is named in a warning where
    `before`, the newer one of an earlier search, is not. All ranks call this function.

    Raises
    ------
    UnrecoverableError
        When there is no such step.
    """
    newest, rows = _newest_common(job, candidates, own_states=False)
    if newest is None:
        ranks = [rank for rank, row in enumerate(rows) if not row]
        raise UnrecoverableError(candidates.why_none(job, ranks))
    lacking = tuple(rank for rank, row in enumerate(rows) if not row[3])
    with_states = _newest_common(job, candidates, own_states=True)[0] if lacking else None
    if with_states is None:
        return newest, None
    back = Back(step=newest.step, ranks=lacking)
    if before is None and (job.rank in lacking or job.rank == 0):
        _log.warning("rank %d: %s", job.rank, back.why(with_states.step))
    return with_states, back


def _newest_common(
    job: TrainingJob, candidates: Candidates[T], *, own_states: bool
) -> tuple[Candidate | None, list[tuple[int, ...]]]:
    """Return the newest candidate that all ranks name, and what each of them said; None when there is none."""
    bound: Place | None = None
    while True:
        found = job.run_together("judging the slices", partial(candidates.newest, bound, own_states=own_states))
        rows = job.gather([] if found is None else _row(found), _CHOOSING)
        if found is None or not all(rows):
            return None, rows
        bound = min((row[0], Step(row[1], row[2])) for row in rows)
        if len({row[:3] for row in rows}) > 1:
            continue
        if not _differ(row[4] for row in rows):
            return found, rows
        candidates.withdraw(found, "its slices are of different runs")


def _row(candidate: Candidate) -> list[int]:
    generation, step = candidate.place
    return [generation, step.epoch, step.step, candidate.own_states, candidate.fingerprint]


def _differ(fingerprints: Iterable[int]) -> bool:
    return len({number for number in fingerprints if number}) > 1


def why_no_common_step(job: TrainingJob, root: str, available: Sequence[Step], unavailable: Mapping[Step, str]) -> str:
    """Name the steps that each rank can be brought to, and why ranks have no others; all ranks call it together.

    `available` and `unavailable` are those of this rank, newest first.
    """
    by_offer: dict[str, list[int]] = {}
    for rank, text in enumerate(job.gather_text(list_some(available) or "none", _CHOOSING)):
        by_offer.setdefault(text, []).append(rank)
    have = list_some((f"rank(s) {list_some(ranks)}: {text}" for text, ranks in by_offer.items()), separator="; ")
    lacks = _why_lacking(unavailable)
    stated = job.gather_text(lacks[:_LONGEST_REASON], "saying why no step can be resumed")
    others = [f"rank {rank} lacks {text}" for rank, text in enumerate(stated) if text and rank != job.rank]
    reasons = ([f"rank {job.rank} lacks {lacks}"] if lacks else []) + others[:1]
    return (
        f"there is no step under {root} that every rank can be brought to ({have})"
        + "".join(f"; {reason}" for reason in reasons)
        + f"; see: recover-ckpt plan {root}"
    )


def _why_lacking(reasons: Mapping[Step, str]) -> str:
    """Return the reasons why a rank lacks steps, each once."""
    by_reason: dict[str, list[Step]] = {}
    for step, reason in reasons.items():
        by_reason.setdefault(reason, []).append(step)
    return list_some((f"step {list_some(steps)}: {reason}" for reason, steps in by_reason.items()), separator="; ")
