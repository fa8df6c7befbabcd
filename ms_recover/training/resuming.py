"""The verb resume: all ranks load the newest step that each of them has or can get, in a loop without ``Model``."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ms_recover.errors import InputError
from ms_recover.loading.path_arguments import Paths
from ms_recover.model.rank_local import RankLocalChoice
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.training.anew import begin_anew
from ms_recover.training.cells import as_cell, holds_optimizer
from ms_recover.training.deciding.equal_arguments import or_not_given
from ms_recover.training.deciding.position import Feed, check_feed
from ms_recover.training.deciding.resume_text import OF_LOOP
from ms_recover.training.first_step import LoadedValues
from ms_recover.training.foreign_saves import given_experiments
from ms_recover.training.found_slice import find_any
from ms_recover.training.generators import begin_drawing, restore_generators
from ms_recover.training.held_directories import Held
from ms_recover.training.loop_proof import LoopProof, forget_waiting
from ms_recover.training.network_state import name_constants, restore
from ms_recover.training.obtained import Obtained, load_found
from ms_recover.training.proof import resume_line
from ms_recover.training.resume_options import ResumeOptions
from ms_recover.training.run_state import RunState
from ms_recover.training.sample_order import check_order, loop_doubts, sample_order
from ms_recover.training.search import Fresh
from ms_recover.training.shards import check_shards
from ms_recover.training.state_now import name_operators
from ms_recover.training.this_process import current_job

_log = logging.getLogger(__name__)

_OTHERWISE = "without a dataset for resume(), which then compares nothing"


@dataclass(frozen=True)
class Resumption:
    """The result of `resume` and `recover_train`."""

    step: Step | None
    """Step that training resumed from; None when training started afresh, like `path`."""
    path: str | None
    """This rank's slice of that step; where slices were cut anew, the tree that they were taken from."""
    source_rank: int | None
    """Rank that the slice was copied from, or the first of several it was composed from; None when this rank had it."""
    epochs: int | None = None
    """Of `recover_train`: epochs in total, those before the resume included."""
    trained: bool = False
    """Of `recover_train`: False when all epochs were done already."""
    rank_local_lost: tuple[str, ...] = ()
    """Parameters whose values were this rank's own and are lost with its slice; see `rank_local` of `recover_train`."""
    extra: Mapping[str, Any] | None = None
    """Of `resume`: what the program gave to `SliceSaver.save`; None when that was nothing, or when it is lost."""
    resharded_from: int | None = None
    """With ``reshard=True``: how many ranks saved the slices, where they were cut anew; None where they fit."""
    accumulate: int = 1
    """With ``reshard=True`` and a dataset: how many micro-batches, each as large as one of a rank before, a rank trains
    now for an update of the weights, so that they make up for lost ranks."""
    loop_proof: LoopProof | None = field(default=None, repr=False, compare=False)
    """Of `resume`: what `prove` compares with."""

    def prove(self, iterator: Iterator[Any], *, allow_dataset_change: bool = False) -> Iterator[Any]:
        """Draw the last trained batch once more from the iterator of a loop, and compare it with the saved digest.

        All ranks call it together, before the first step, with the iterator that the loop trains from, which has to
        begin one batch before the first that is not trained yet: ``dataset.set_init_step(done - 1)``. Where the
        training starts afresh nothing is drawn.

        Parameters
        ----------
        iterator : iterator
            Of MindSpore or of the program; what it gives was given to ``SliceSaver.save(step, batch=...)``.
        allow_dataset_change : bool
            Warn of another batch instead of refusing it.

        Returns
        -------
        iterator
            The iterator, which goes on behind that batch.

        Raises
        ------
        InputError
            On every rank when one has another batch; nothing below the root is changed.
        """
        return iterator if self.loop_proof is None else self.loop_proof.prove(iterator, allow=allow_dataset_change)


def resume(  # noqa: PLR0913 (the keywords of programs)
    parameters: Any,
    root: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    group_info: Paths = (),
    strategy: Paths = (),
    step: Step | str | tuple[int, int] | None = None,
    ckpt_file: str | os.PathLike[str] | None = None,
    run: str | None = None,
    prefix: str | Iterable[str] | None = None,
    newest: bool = False,
    tolerate: str | Iterable[str] = (),
    fresh: Fresh = "refuse",
    rank_local: RankLocalChoice = "refuse",
    keep: str | Iterable[str] = (),
    dataset: Any = None,
    reshard: bool = False,
    sources: Paths = (),
    layouts: Iterable[Layout] | None = None,
    accumulate: int = 1,
) -> Resumption:
    """Load the newest step that every rank has or can get, for a training loop without ``Model``.

    All ranks call it, with the same arguments, after ``mindspore.communication.init`` and before the first step. What
    is loaded and how it is proven is the same as in `recover_train`, which uses this. Under (semi-)auto parallel the
    network must be compiled before.

    Parameters
    ----------
    parameters : Cell, or list of cells and parameters
        As the `SliceSaver` had them that saved the slices.
    root : str or path
        The tree of slices, which holds ``ckpt_dir{rank}/``.
    pattern, group_info, strategy, step, ckpt_file, run, newest, tolerate, rank_local, keep
        As for `recover_train`.
    prefix : str or list of str, optional
        The prefix that the program gives to its `SliceSaver`, which names the experiment: slices of other ones are no
        candidates, and stay as they are. Without it the root must hold slices of one experiment alone, and the saver
        must have its prefix.
    fresh : {"refuse", "start"}
        Without any slice of any step on any rank: raise, or change nothing and return a `Resumption` without step.
    dataset : mindspore.dataset.Dataset, optional
        The dataset of the loop, not yet used, where the `SliceSaver` was given its own: another length of an epoch,
        batch size, shuffle or seed is refused, and what keeps its samples from going on exactly is named. The loop
        itself passes over the samples that were trained (``dataset.set_init_step``).
    reshard, sources, layouts, accumulate
        As for `recover_train`. Of a network that MindSpore's compiler cuts give the `layouts`.

    Returns
    -------
    Resumption
        The step, and the `extra` that was saved with it. The random generators are in the state in which the slice was
        saved.

    Raises
    ------
    MissingInputError, UnrecoverableError, InputError, VerificationError, MsRecoverError
        As `recover_train`.

    Notes
    -----
    Slices that are newer than the step are set aside when `Resumption.prove` has proven the samples, or where nothing
    can be compared at once.

    Examples
    --------
    >>> resumed = resume([network, optimizer], ".", fresh="start")  # doctest: +SKIP
    >>> done = resumed.step.step if resumed.step else 0  # doctest: +SKIP
    """
    keywords = locals()  # no other name is bound yet
    with Held() as held:
        return _resume(parameters, dataset, keywords, held)


def _resume(parameters: Any, dataset: Any, keywords: Mapping[str, Any], held: Held) -> Resumption:
    job = current_job()
    with job.ending_together("checking the arguments of a resume"):
        network, options = as_cell(parameters), ResumeOptions.of(keywords)
        options = options.of_program(given_experiments(options.prefix))
    forget_waiting(options.experiments)
    found = find_any(job, options, held, (), network, {"dataset": or_not_given(dataset)})
    if found is None:
        anew = begin_anew(options.root, options.experiments, network)
        if anew is not None:
            anew.say(job.rank, dataset)
        return Resumption(None, None, None)
    with job.ending_together("reading the state"):
        state = found.state()
    if not holds_optimizer(network):
        resume_line().doubt("none is among the parameters", "optimizer")
    if dataset is not None:
        job.run_together("comparing the dataset", lambda: _check_dataset(found, dataset, state))
        shared_out = found.resharded_from is not None
        before, now = state.order if state is not None else {}, sample_order(dataset)
        check_shards(found, before, now, otherwise=_OTHERWISE)
    loaded = LoadedValues(found, lambda: network)
    load_found(found, lambda: loaded.load(state), state, network, subjects=OF_LOOP)
    begun = job.run_together("restoring what cells keep", lambda: restore(network, state, found.own))
    name_constants([*loaded.begun, *begun], state, found.own)
    name_operators(found.own, network, state)
    shared_out = found.resharded_from is not None
    doubts = loop_doubts(found.own.step, dataset, state, shared_out=shared_out) if dataset is not None else []
    if state is not None:
        restore_generators(state.generators)
        begin_drawing(state.drawn_generators)
        if state.extra is None:
            resume_line().doubt("no extra was saved", "other values of the loop")
    known = None if shared_out else state
    proof = LoopProof(job, found.own, dataset, known, doubts, found.set_aside, found.waiting(), options.experiments)
    return Resumption(
        found.own.step,
        found.own.path,
        found.source_rank,
        rank_local_lost=found.lost,
        extra=state.extra if state is not None else None,
        resharded_from=found.resharded_from,
        accumulate=found.micro_batches(dataset, state) if dataset is not None else 1,
        loop_proof=proof,
    )


def _check_dataset(found: Obtained, dataset: Any, state: RunState | None) -> None:
    try:
        if found.resharded_from is None:
            check_feed(found.manifest, Feed.of(dataset))
        else:
            found.position(Feed.of(dataset), dataset, state, False)
    except InputError as error:
        raise InputError(f"{found.own}: {error}") from error
    if state is not None:
        check_order(state.order, dataset, _OTHERWISE, shared_out=found.resharded_from is not None)
