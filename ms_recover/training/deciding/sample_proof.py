"""What is known of the samples of a resumed training: proven, not proven, or other ones; pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from ms_recover.model.texts import list_some

Outcome = Literal["proven", "unproven", "differs"]

_WORST: tuple[Outcome, ...] = ("differs", "unproven", "proven")


@dataclass(frozen=True)
class SampleProof:
    """Whether a resumed training goes on with the samples that the interrupted one would have had.

    It is proven by the last batch that was trained: drawn once more, and compared with the digest in the state file.
    """

    outcome: Outcome
    why: str = ""
    """Why they are not proven, or what differs; a clause."""
    note: str = ""
    """What a user has to know where they are proven, such as what was read for it."""

    @property
    def text(self) -> str:
        """One clause for the line of a resume."""
        if self.outcome == "proven":
            return "samples proven" + (f" ({self.note})" if self.note else "")
        return f"samples {'not proven' if self.outcome == 'unproven' else 'are others'}: {self.why}"

    def encoded(self) -> str:
        """Return it as a text, for `combined`."""
        return json.dumps([self.outcome, self.why, self.note])


def combined(rows: Sequence[str]) -> SampleProof:
    """Return the proof of all ranks from `SampleProof.encoded` of each, index = rank: the worst of them.

    Where ranks differ, `why` names those that it is true of.
    """
    proofs = [SampleProof(*json.loads(row)) for row in rows]
    worst = next(one for one in _WORST if any(proof.outcome == one for proof in proofs))
    ranks = [rank for rank, proof in enumerate(proofs) if proof.outcome == worst]
    first = proofs[ranks[0]]
    if worst == "proven" or len(ranks) == len(proofs):
        return first
    return replace(first, why=f"on rank(s) {list_some(ranks)} {first.why}")
