"""What all ranks have proven of a resume, as one line: the subjects, and why some go on unproven."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from ms_recover.model.texts import list_some

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
    saved: str = "",
    subjects: Collection[Subject] = OF_MODEL,
) -> str:
    """Return the line: what rank 0 resumes from, when it was `saved`, and by rank `Source.other_rank` and proof."""
    own = sum(other is None for other in others)
    copied = [f"rank {rank} from rank {other}" for rank, other in enumerate(others) if other is not None]
    facts = [f"run {source.run}"] if source.run else []
    if source.cut_from is not None:
        facts.append(f"cut anew from the slices of {source.cut_from} ranks")
    facts.append(", ".join([f"{own} of {len(others)} ranks", *([list_some(copied, _MOST_NAMED)] if copied else [])]))
    facts += [f"back from step {source.back_from}"] if source.back_from is not None else []
    when = ([saved] if saved else []) + ([f"by host {source.host}"] if source.host else [])
    facts += [f"saved {' '.join(when)}"] if when else []
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


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
