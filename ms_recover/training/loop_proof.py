"""The proof of the samples of a loop without ``Model``, whose iterator the program makes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ms_recover.errors import InputError
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.deciding.sample_proof import SampleProof, combined
from ms_recover.training.in_process import of_thread
from ms_recover.training.proof import ResumeLine, resume_line, said_in
from ms_recover.training.proving import compared, refuse_or_warn, why_unproven
from ms_recover.training.run_state import RunState

_log = logging.getLogger(__name__)


class _Waiting:
    """What this thread, in which one training runs, has resumed and not yet proven: of each network the last."""

    def __init__(self) -> None:
        self.proofs: list[LoopProof] = []


def end_waiting() -> None:
    """Say what a loop has proven that begins to save, and that its samples are not; all ranks together."""
    waiting = of_thread(_Waiting)
    proofs, waiting.proofs = waiting.proofs, []
    for one in proofs:
        one.give_up()


def forget_waiting(experiments: Sequence[str] = ()) -> None:
    """Forget the resumes of some experiments that were not proven: others begin. They can still be proven themselves.

    Without any, or where those of a resume are not known, they may be the same.
    """
    known = set(experiments)
    waiting = of_thread(_Waiting)
    waiting.proofs = [one for one in waiting.proofs if known and one.experiments and known.isdisjoint(one.experiments)]


class BehindProof:
    """The iterator of a loop behind the batch that was drawn to prove it: the end of that batch's epoch is passed."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self._iterator, self._begun = iterator, False

    def __iter__(self) -> BehindProof:
        return self

    def __next__(self) -> Any:
        begun, self._begun = self._begun, True
        try:
            return next(self._iterator)
        except StopIteration:
            if begun:
                raise
        return next(self._iterator)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._iterator, name)


@dataclass(eq=False)
class LoopProof:
    """What `Resumption.prove` compares, and what waits for it.

    Parameters
    ----------
    job : TrainingJob
        The ranks.
    own : OwnSlice
        The slice that was loaded, for messages.
    dataset : Dataset, optional
        That of the loop, as far as `resume` was given it.
    state : RunState, optional
        What was saved with the slice.
    doubts : list of str
        Why samples may be others, as long as nothing compares them.
    proven : callable
        Sets newer slices aside; all ranks call it together.
    refused : callable
        Gives slices their names of before, where the samples are others.
    experiments : sequence of str
        Those that the program gave.
    """

    job: TrainingJob
    own: OwnSlice
    dataset: Any
    state: RunState | None
    doubts: Sequence[str]
    proven: Callable[[], None]
    refused: Callable[[], None]
    experiments: Sequence[str] = ()
    proof: SampleProof | None = field(default=None, init=False)
    """What is known of the samples so far."""
    _drew: bool = field(default=False, init=False)
    _given_up: bool = field(default=False, init=False)
    _line: ResumeLine = field(default_factory=resume_line, init=False)
    """That of this resume: another one may begin before it is proven, such as that of a second network."""

    def __post_init__(self) -> None:
        waits = self.job.holds_everywhere(self.state is not None and self.state.knows_batch, "proving the samples")
        of_thread(_Waiting).proofs.append(self)
        if not waits:
            self._end(SampleProof("unproven", "the loop gives save() no batch, see SliceSaver.save"))

    def prove(self, iterator: Iterator[Any], *, allow: bool) -> Iterator[Any]:
        """See `Resumption.prove`."""
        if self._drew:
            return iterator
        self._drew = True
        rows: list[str] = []

        def look() -> None:
            rows.append(self._compare(iterator).encoded())

        self.job.run_together("proving the samples", look)
        proof = combined(self.job.gather_text(rows[0], "proving the samples"))
        proofs = of_thread(_Waiting).proofs
        if self in proofs:
            proofs.remove(self)
        self._end(proof, None if allow else "go on with prove(..., allow_dataset_change=True)")
        self._line.say()
        return BehindProof(iterator)

    def give_up(self) -> None:
        """Go on without the proof, and say so."""
        self._given_up = self.proof is None
        self._end(SampleProof("unproven", "nothing has called prove() of the resumption"))
        self._line.say()

    def _end(self, proof: SampleProof, otherwise: str | None = None) -> None:
        """Have the rest follow, once, unless other samples are refused; these are behind a save, too."""
        late = self.proof is not None
        if late and not (self._given_up and proof.outcome == "differs"):
            return
        self.proof = proof
        try:
            with said_in(self._line):
                refuse_or_warn(self.own, proof, otherwise)
        except InputError:
            if not late:
                self.refused()
            raise
        if late:
            return
        for doubt in self.doubts if proof.outcome == "unproven" else ():
            _log.warning("%s: %s", self.own, doubt)
        self.proven()

    def _compare(self, iterator: Iterator[Any]) -> SampleProof:
        """Draw the last trained batch, and compare it where the state has its digest."""
        try:
            batch = next(iterator)
        except StopIteration:
            return SampleProof("differs", f"the iterator gives no batch of step {self.own.step} to compare")
        if self.dataset is not None:
            why = why_unproven(self.state, self.dataset, 1)
        else:
            known = self.state is not None and self.state.knows_batch
            why = None if known else "the slice does not state its last batch"
        if why is not None or self.state is None:
            return SampleProof("unproven", why or "")
        return compared(self.own, self.state.difference(batch), self.dataset, self.state, self.state.generators)
