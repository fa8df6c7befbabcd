"""Which steps of a tree are complete and quiet: a state machine that is told what is seen, and when. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from ms_recover.model.steps import Step

Signature = Mapping[str, int]
"""The modification time of each directory in ns, which changes when a file in it is made, renamed or removed; and of
each slice without a manifest."""

Identity = tuple[int, ...]
"""Inode, size in bytes, and times of modification and status change in ns."""

LONGEST_PAUSE_S = 600.0
"""Between two attempts at a step that cannot be sealed."""


@dataclass(frozen=True, kw_only=True)
class StepSight:
    """A step with slices that have no manifest, at one look."""

    step: Step
    unsealed: Mapping[str, Identity]
    """These slices, by path."""
    missing: tuple[str, ...] = ()
    """What the step lacks to be complete."""


@dataclass(frozen=True, kw_only=True)
class _Known:
    sight: StepSight
    since: float
    """When it was first seen as it is."""
    attempts: int = 0
    not_before: float = 0.0
    refused: bool = False
    """Nothing more can be sealed as long as it stays as it is."""
    named: bool = False
    """Whether somebody was told that it is not complete."""


@dataclass(frozen=True)
class Due:
    """The steps to seal now, newest first, and those that are quiet but not complete and were not named before."""

    steps: tuple[Step, ...] = ()
    incomplete: tuple[StepSight, ...] = ()


class QuietSteps:
    """The steps of one tree over time; all times are in seconds of one monotonic clock.

    The directories are looked at often, which is cheap; slices and manifests are scanned when a directory has changed,
    and once more when all has been quiet: so a change that falls within the clock tick of a look is not missed.

    Parameters
    ----------
    quiet_for : float
        Seconds without a change after which a complete step is sealed.
    """

    def __init__(self, quiet_for: float) -> None:
        self._quiet_for = quiet_for
        self._signature: Signature = {}
        self._changed = self._scanned = -float("inf")
        self._known: dict[Step, _Known] = {}

    @property
    def unsealed(self) -> tuple[str, ...]:
        """The paths of the slices without a manifest, as of the last scan."""
        return tuple(path for one in self._known.values() for path in one.sight.unsealed)

    def looked(self, signature: Signature, now: float) -> bool:
        """Take a look at the directories and the unsealed slices; return whether the tree is to be scanned now."""
        if signature != self._signature:
            self._signature, self._changed = signature, now
        if now < self._scanned + self._quiet_for:
            return False
        due = any(self._may_be_sealed(one, now) and not one.sight.missing for one in self._known.values())
        return due or self._scanned < self._changed + self._quiet_for

    def _may_be_sealed(self, one: _Known, now: float) -> bool:
        return not one.refused and now >= max(one.not_before, one.since + self._quiet_for)

    def scanned(self, sights: Sequence[StepSight], now: float) -> Due:
        """Take what a scan found: every step with slices that have no manifest; return what is due."""
        self._scanned = now
        known = self._known
        self._known = {}
        for sight in sights:
            before = known.get(sight.step)
            same = before is not None and (before.sight == sight or (before.refused and _is_rest(sight, before.sight)))
            self._known[sight.step] = before if before is not None and same else _Known(sight=sight, since=now)
        quiet = [one for one in self._known.values() if self._may_be_sealed(one, now)]
        incomplete = [one for one in quiet if one.sight.missing]
        due = [one.sight.step for one in quiet if not one.sight.missing]
        new = tuple(one.sight for one in incomplete if not one.named)
        for one in incomplete:
            self._known[one.sight.step] = replace(one, named=True)
        return Due(tuple(sorted(due, reverse=True)), new)

    def sealed(self, step: Step) -> None:
        """Take that a step was sealed as far as its slices are sound."""
        self._known[step] = replace(self._known[step], refused=True)

    def failed(self, step: Step, now: float) -> float:
        """Take that a step could not be sealed; return the seconds to the next attempt."""
        known = self._known[step]
        pause: float = min(LONGEST_PAUSE_S, max(1.0, self._quiet_for) * 2**known.attempts)
        self._known[step] = replace(known, attempts=known.attempts + 1, not_before=now + pause)
        return pause


def _is_rest(sight: StepSight, before: StepSight) -> bool:
    """Whether a step lacks the manifests of slices that were there before, unchanged, and of no others."""
    return sight.unsealed.items() <= before.unsealed.items()


def left_to_the_job(steps: Collection[Step]) -> Step | None:
    """Return the step of a tree that is not to be touched: the oldest of several iterations of MindFormers.

    The job removes that directory next, and fails when a file is added to it, or is open on NFS, meanwhile.
    """
    iterations = [step for step in steps if step.is_iteration]
    return min(iterations) if len(iterations) > 1 else None
