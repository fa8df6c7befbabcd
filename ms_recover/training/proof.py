"""What a resume has proven: one line on rank 0 says it, with everything that is not proven.

Whoever compares something states it: ``resume_line().prove("weights")`` where it was equal, and
``resume_line().doubt("the dataset is shuffled without a seed", "samples")`` where it goes on unproven. A doubt stays,
whatever else is proven of its subject. What nobody states is not proven.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from ms_recover.model.texts import list_some
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.in_process import of_thread

QUIET = "MS_RECOVER_QUIET"
"""Environment variable: anything but nothing or ``0`` leaves the line out."""

Subject = Literal[
    "weights", "optimizer", "callbacks", "samples", "random numbers", "settings", "other values of the loop"
]
SUBJECTS: tuple[Subject, ...] = get_args(Subject)
"""In the order in which the line names them."""

OF_MODEL: tuple[Subject, ...] = ("weights", "optimizer", "callbacks", "samples")
OF_LOOP: tuple[Subject, ...] = ("weights", "optimizer", "samples")
"""What the line of a ``Model`` and of a loop always names; the other subjects only where there is a doubt."""

VALUES: tuple[Subject, ...] = ("weights", "optimizer")
"""What the parameters of a slice are."""

OF_STATE: tuple[Subject, ...] = ("callbacks", "random numbers")
"""What a state file holds."""

NOT_COMPARED = "not compared"
"""The reason where nobody states a subject."""

_MOST_NAMED = 4


@dataclass(frozen=True)
class Proof:
    """What one rank has proven of a resume; a value that each statement makes anew."""

    doubts: Mapping[Subject, tuple[str, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """By subject why it is not proven; without a reason it is proven, and without an entry nobody has stated it."""
    notes: tuple[str, ...] = ()
    """What a user has to know beside it, such as what was read for a proof."""

    def proven(self, subject: Subject, note: str = "") -> Proof:
        """Return the proof with a subject that was compared and equal."""
        notes = (*self.notes, f"{subject}: {note}") if note else self.notes
        return Proof({**self.doubts, subject: self.doubts.get(subject, ())}, notes)

    def doubted(self, subject: Subject, why: str) -> Proof:
        """Return the proof with a reason, a clause, why a subject goes on unproven."""
        reasons = tuple(dict.fromkeys((*self.doubts.get(subject, ()), why)))
        return Proof({**self.doubts, subject: reasons}, self.notes)


@dataclass(frozen=True, kw_only=True)
class Source:
    """What a rank resumes from, as the line names it."""

    step: str
    run: str = ""
    """The run that saved it, empty where nothing names it."""
    saved_at: float | None = None
    """When it was saved, in seconds since 1970."""
    host: str | None = None
    """The host that saved it."""
    other_rank: int | None = None
    """The rank whose slice was copied; None where the rank has its own."""
    cut_from: int | None = None
    """How many ranks saved the slices, where they were cut anew."""
    back_from: str | None = None
    """A newer step, with the reason why it was passed over; a clause."""


def text_of(
    source: Source,
    others: Sequence[int | None],
    proofs: Sequence[Proof],
    now: float,
    subjects: Collection[Subject] = OF_MODEL,
) -> str:
    """Return the line, from what rank 0 resumes from, and by rank `Source.other_rank` and the proof."""
    own = sum(other is None for other in others)
    copied = [f"rank {rank} from rank {other}" for rank, other in enumerate(others) if other is not None]
    facts = [f"run {source.run}"] if source.run else []
    if source.cut_from is not None:
        facts.append(f"cut anew from the slices of {source.cut_from} ranks")
    facts.append(", ".join([f"{own} of {len(others)} ranks", *([list_some(copied, _MOST_NAMED)] if copied else [])]))
    facts += [f"back from step {source.back_from}"] if source.back_from is not None else []
    saved = [_clock(source.saved_at, now)] if source.saved_at is not None else []
    saved += [f"by host {source.host}"] if source.host else []
    facts += [f"saved {' '.join(saved)}"] if saved else []
    return f"resumed from step {source.step} ({', '.join(facts)}): {proof_text(proofs, subjects)}"


def proof_text(proofs: Sequence[Proof], subjects: Collection[Subject] = OF_MODEL) -> str:
    """Return what all ranks have proven, and of the rest the reasons, with the ranks where not all have them."""
    reasons: dict[Subject, list[str]] = {}
    for subject in SUBJECTS:
        ranks_of: dict[str, list[int]] = {}
        for rank, proof in enumerate(proofs):
            for why in proof.doubts.get(subject, (NOT_COMPARED,) if subject in subjects else ()):
                ranks_of.setdefault(why, []).append(rank)
        reasons[subject] = [
            why if len(ranks) == len(proofs) else f"{why} (rank {list_some(ranks, 8)})"
            for why, ranks in ranks_of.items()
        ]
    proven = [subject for subject in SUBJECTS if subject in subjects and not reasons[subject]]
    notes = list(dict.fromkeys(note for proof in proofs for note in proof.notes))
    parts = [f"{_listed(proven)} proven" + (f" ({'; '.join(notes)})" if notes else "")] if proven else []
    parts += [f"{subject} not proven: {', '.join(reasons[subject])}" for subject in SUBJECTS if reasons[subject]]
    return "; ".join(parts)


class ResumeLine:
    """The line of one resume: filled by what compares, said once.

    Parameters
    ----------
    job : TrainingJob, optional
        The ranks.
    """

    def __init__(self, job: TrainingJob | None = None) -> None:
        self._job = job
        self._subjects: Collection[Subject] = OF_MODEL
        self._source: Source | None = None
        self.proof = Proof()

    def resumes(self, source: Source, subjects: Collection[Subject] = OF_MODEL) -> None:
        """Note what this rank resumes from, and what is named in any case; without it nothing is said."""
        self._source, self._subjects = source, subjects

    def prove(self, *subjects: Subject, note: str = "") -> None:
        """State that subjects were compared and are equal."""
        for subject in subjects:
            self.proof = self.proof.proven(subject, note)

    def doubt(self, why: str, *subjects: Subject) -> None:
        """State why subjects go on unproven, in a clause."""
        for subject in subjects:
            self.proof = self.proof.doubted(subject, why)

    def say(self) -> None:
        """Print the line, once, on rank 0; all ranks call it together, behind the last comparison."""
        job, source, self._source = self._job, self._source, None
        if job is None or source is None:
            return
        own = json.dumps([source.other_rank, dict(self.proof.doubts), self.proof.notes])
        rows = [json.loads(row) for row in job.gather_text(own, "saying what was resumed")]
        if job.rank == 0:
            proofs = [
                Proof({subject: tuple(found) for subject, found in doubts.items()}, tuple(notes))
                for _, doubts, notes in rows
            ]
            say_line(text_of(source, [other for other, *_ in rows], proofs, time.time(), self._subjects))


class _Present:
    """The line of the resume that this thread has begun last: one thread trains."""

    def __init__(self) -> None:
        self.line = ResumeLine()


def begin_line(job: TrainingJob) -> ResumeLine:
    """Begin the line of a resume; one that was begun before and not said is forgotten: that resume has failed."""
    line = of_thread(_Present).line = ResumeLine(job)
    return line


def forget_line() -> None:
    """Forget a line that was not said: its resume has ended, or failed."""
    of_thread(_Present).line = ResumeLine()


def resume_line() -> ResumeLine:
    """Return the line of the present resume; without one what is stated goes nowhere."""
    return of_thread(_Present).line


@contextmanager
def said_in(line: ResumeLine) -> Iterator[None]:
    """Have what a block states stand in the line of its own resume, where others have begun since."""
    present = of_thread(_Present)
    before, present.line = present.line, line
    try:
        yield
    finally:
        present.line = before


def is_quiet(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the line is turned off."""
    return environ.get(QUIET, "") not in ("", "0")


def say_line(text: str) -> None:
    """Print a line; to stderr, where warnings go, so that it stands among them and stdout stays the program's."""
    if not is_quiet():
        print(f"ms_recover: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _clock(saved_at: float, now: float) -> str:
    """Return the local time, with the date where that is not today's."""
    then, today = time.localtime(saved_at), time.localtime(now)
    same_day = (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", then)


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
