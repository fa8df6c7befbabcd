"""The iterator of a resumed training: it draws the last trained batch once more, and compares it, before it gives any.

A second iterator would move the generators and counts of the program, so the one that proves is the one that trains.
``mindspore.train.Model`` makes it by ``create_tuple_iterator`` of the dataset (``train/dataset_helper.py`` of 2.10).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import mindspore.dataset as ds

from ms_recover.errors import InputError
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.deciding.sample_proof import SampleProof, combined
from ms_recover.training.generators import GENERATORS, changed_generators, generator_states
from ms_recover.training.proof import resume_line
from ms_recover.training.run_state import RunState, named
from ms_recover.training.sample_order import causes, code_names, random_operations, unrepeatable

_log = logging.getLogger(__name__)

FAST_OFF = "mindspore.dataset.config.set_fast_recovery(False)"

_OF_BEFORE = "by the last batch of the epoch before, which was read for it"


def why_unproven(state: RunState | None, dataset: Any, drawn: int) -> str | None:
    """Return why the last trained batch cannot be drawn and compared; None where it can be."""
    if state is None:
        return "the state of the training is lost"
    if state.lent and not state.knows_batch:
        return "the state is that of another rank, which had a batch of its own"
    if not state.knows_batch:
        return "the slice does not state its last batch"
    if drawn < 1:
        return "no batch was drawn before"
    if ds.config.get_debug_mode():
        return "in debug mode every dataset begins with its first batch"
    return unrepeatable(dataset)


def compared(
    own: OwnSlice, found: str | None, dataset: Any, state: RunState, before: Mapping[str, Any], note: str = ""
) -> SampleProof:
    """Return what a batch proves that was drawn from generators as they were `before`, and `found` to be another one.

    It proves nothing where it was drawn from generators whose states of this rank are lost: it cannot be the same.
    """
    if found is None:
        return SampleProof("proven", note=note)
    drawn = changed_generators(before, generator_states()) if state.lent else ()
    if drawn:
        why = f"its own state is lost, and its samples are drawn from {named(drawn, GENERATORS)}"
        return SampleProof("unproven", why)
    return SampleProof("differs", why_different(own, found, dataset, state))


def refuse_or_warn(own: OwnSlice, proof: SampleProof, otherwise: str | None) -> None:
    """Raise InputError where the samples are others, unless training may go on with them, which is warned of.

    `otherwise` says how to go on with others; None where the program has asked for it.
    """
    if proof.outcome == "differs" and otherwise is not None:
        raise InputError(f"{own}: {proof.why}; or {otherwise}. Nothing was trained, and the tree is as before")
    if proof.outcome == "proven":
        resume_line().prove("samples", note=proof.note)
    else:
        resume_line().doubt(proof.why if proof.outcome == "unproven" else "they are others, as allowed", "samples")
    if proof.outcome == "differs":
        _log.warning("%s: training goes on with other samples: %s", own, proof.why)
    else:
        _log.info("%s: %s", own, proof.text)


def why_different(own: OwnSlice, found: str, dataset: Any, state: RunState) -> str:
    """Return why a batch is another one than that of the state, and what to do, as a clause."""
    text = f"the batch of step {own.step}, drawn once more, is not the one that was trained: {found}"
    reasons = causes(dataset, state.order) if dataset is not None else []
    if reasons:
        text += f". Possible causes: {'; '.join(reasons)}"
    if ds.config.get_fast_recovery():
        return f"{text}. Start again with {FAST_OFF} before the dataset is made: it makes all samples once more"
    return f"{text}. Start again with the dataset of that training, made anew"


class ProvingIterator:
    """The iterator that a training is given in place of MindSpore's; it proves before it gives the first batch."""

    def __init__(self, prover: SampleProver) -> None:
        self._prover = prover

    def __iter__(self) -> ProvingIterator:
        return self

    def __next__(self) -> Any:
        self._prover.prove()
        return self._prover.next()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._prover.iterator, name)


@dataclass(frozen=True, slots=True)
class Trained:
    """What a saved training drew from its dataset."""

    dataset: Any
    batches: int
    """Batches that it had given behind the saved step."""
    epoch_steps: int
    """Batches of an epoch."""


class SampleProver:
    """Proves the samples of a training that `recover_train` resumes; all ranks make one, and prove together.

    Parameters
    ----------
    job : TrainingJob
        The ranks.
    own : OwnSlice
        The slice that was loaded, for messages.
    trained : Trained
        The dataset of the training, and what was drawn from it.
    state : RunState, optional
        What was saved with the slice.
    why_not : str, optional
        Why nothing can be compared.
    allow : bool
        Whether training may go on with other samples.
    """

    def __init__(
        self,
        job: TrainingJob,
        own: OwnSlice,
        trained: Trained,
        state: RunState | None,
        *,
        why_not: str | None,
        allow: bool,
    ) -> None:
        dataset = trained.dataset
        self._job, self._own, self._dataset, self._state, self._allow = job, own, dataset, state, allow
        self.trained, self._drawn = trained, trained.batches
        self._why_not = why_not
        self._code = code_names(dataset)
        self._fast = not (random_operations(dataset) and not self._code)
        self._make: Callable[[], Any] | None = None
        self._ahead: list[Any] = []
        self.iterator: Any = None
        self.proof: SampleProof | None = None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Have the next iterator of the dataset begin one batch before, where that can be compared."""
        held = vars(self._dataset)
        before = held.get("create_tuple_iterator")

        def restore() -> None:
            held.pop("create_tuple_iterator", None)
            if before is not None:
                held["create_tuple_iterator"] = before

        def create(*arguments: Any, **options: Any) -> ProvingIterator:
            restore()
            self._make = lambda: self._dataset.create_tuple_iterator(*arguments, **options)
            self.iterator = self._begin()
            return ProvingIterator(self)

        if self._why_not is None:
            held["create_tuple_iterator"] = create  # a function: copies of the dataset share it
        try:
            yield
        finally:
            restore()

    def prove(self, prepare: Callable[[], None] = lambda: None) -> SampleProof:
        """Compare the last trained batch, once; `prepare` sets the generators that the dataset draws from.

        All ranks call it together. Raises InputError on every rank when one has other samples, unless that is allowed.
        """
        if self.proof is None:
            rows: list[str] = []

            def look() -> None:
                rows.append(self._prove_here(prepare).encoded())

            self._job.run_together("proving the samples", look)
            self.proof = combined(self._job.gather_text(rows[0], "proving the samples"))
            try:
                refuse_or_warn(self._own, self.proof, None if self._allow else "go on with allow_dataset_change=True")
            except InputError:
                self._stop()  # its threads read ahead, and would take samples of the next start in this process
                raise
        return self.proof

    def _stop(self) -> None:
        """End the iterator that nobody is going to train from."""
        if self.iterator is not None and hasattr(self.iterator, "stop"):
            self.iterator.stop()

    @property
    def draws(self) -> bool:
        """Whether there is a batch to draw."""
        return self._why_not is None and self.iterator is not None

    def next(self) -> Any:
        """Return the next batch to train."""
        return self._ahead.pop() if self._ahead else next(self.iterator)

    def _begin(self) -> Any:
        """Return an iterator that begins with the last trained batch."""
        assert self._make is not None
        fast = ds.config.get_fast_recovery()
        self._dataset.set_init_step(self._drawn - 1)
        ds.config.set_fast_recovery(fast and self._fast)
        try:
            return self._make()
        finally:
            ds.config.set_fast_recovery(fast)
            self._dataset.set_init_step(self._drawn)

    def _prove_here(self, prepare: Callable[[], None]) -> SampleProof:
        prepare()
        if self._why_not is not None:
            return SampleProof("unproven", self._why_not)
        if self.iterator is None:
            return SampleProof("unproven", "the training does not make its iterator by create_tuple_iterator")
        before, slow = generator_states(), ds.config.get_fast_recovery() and not self._fast
        if slow:
            self._say_slow("does not repeat the random operations on samples")
        found = self._compare()
        if found is not None and ds.config.get_fast_recovery() and self._fast and not self._code:
            self._say_slow(f"gives other samples ({found})")
            self.iterator.stop()
            self._fast, slow = False, True
            self.iterator = self._begin()
            prepare()
            found = self._compare()
        assert self._state is not None
        notes = [_OF_BEFORE] if self._ends_epoch else []
        notes += ["read from the beginning, without fast recovery"] if slow else []
        return compared(self._own, found, self._dataset, self._state, before, "; ".join(notes))

    def _say_slow(self, why: str) -> None:
        _log.warning(
            "%s: MindSpore's fast recovery %s: they are read once more from the beginning, without it, which takes the "
            "time of reading",
            self._own,
            why,
        )

    @property
    def _ends_epoch(self) -> bool:
        return self._drawn % self.trained.epoch_steps == 0

    def _compare(self) -> str | None:
        """Draw the last trained batch; return how it differs."""
        try:
            batch = next(self.iterator)
        except StopIteration:
            return "the dataset has no such batch"
        assert self._state is not None
        found = self._state.difference(batch, self._names())
        if self._ends_epoch:
            with suppress(StopIteration):  # which ends that epoch
                self._ahead = [next(self.iterator)]
        return found

    def _names(self) -> Sequence[str]:
        try:
            return list(self._dataset.get_col_names())
        except (AttributeError, RuntimeError):
            return ()
