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
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.resume_text import OF_MODEL, Proof, Source, Subject, text_of
from ms_recover.training.in_process import of_thread

QUIET = "MS_RECOVER_QUIET"
"""Environment variable: anything but nothing or ``0`` leaves the line out."""


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
            saved = "" if source.saved_at is None else clock_text(source.saved_at, time.time())
            say_line(text_of(source, [other for other, *_ in rows], proofs, saved, self._subjects))


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


def clock_text(saved_at: float, now: float) -> str:
    """Return the local time, with the date where that is not today's."""
    then, today = time.localtime(saved_at), time.localtime(now)
    same_day = (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M" if same_day else "%Y-%m-%d %H:%M", then)
