"""Resuming: all ranks load the newest step that each of them has or can get."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ms_recover.errors import InputError, MissingInputError, MsRecoverError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.training.arguments import check_type, path_text, path_texts, texts
from ms_recover.training.cells import as_cell
from ms_recover.training.generators import restore_generators
from ms_recover.training.job import TrainingJob, current_job
from ms_recover.training.network import OwnSlice, check_network, load_into_network, load_slice
from ms_recover.training.rank_view import RankView, make_rank_view
from ms_recover.training.resume_step import obtain_resume_slice, supersede_newer_slices
from ms_recover.training.run_state import RunState, find_run_state, warn_of_operators

_log = logging.getLogger(__name__)

Fresh = Literal["refuse", "start"]
Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


@dataclass(frozen=True)
class Resumption:
    """The result of `resume` and `recover_train`."""

    step: Step | None
    """Step that training resumed from; None when training started afresh, like `path`."""
    path: str | None
    """This rank's slice of that step."""
    source_rank: int | None
    """Rank that the slice was copied from, or the first of several it was composed from; None when this rank had it."""
    epochs: int | None = None
    """Of `recover_train`: epochs in total, those before the resume included."""
    trained: bool = False
    """Of `recover_train`: False when all epochs were done already."""
    extra: Mapping[str, Any] | None = None
    """Of `resume`: what the program gave to `SliceSaver.save`; None when that was nothing, or when it is lost."""


@dataclass(frozen=True)
class Search:
    """Where slices and evidence are looked for, and how they are chosen."""

    root: str
    scanning: ScanOptions
    judging: PlanOptions
    fresh: Fresh


@dataclass(frozen=True)
class Found:
    """The slice that a rank resumes from, and the tree that it was found in."""

    job: TrainingJob
    view: RankView
    own: OwnSlice

    @property
    def source_rank(self) -> int | None:
        """See `Resumption.source_rank`."""
        return self.view.source_ranks.get(self.own.step)

    def state(self) -> RunState | None:
        """Return the state that was saved with the slice; None, and a warning with the reason, where there is none."""
        return find_run_state(self.own, self.view.inventory.root)


def resume(
    parameters: Any,
    root: str | os.PathLike[str],
    *,
    pattern: str | None = None,
    group_info: Paths = (),
    strategy: Paths = (),
    newest: bool = False,
    tolerate: str | Iterable[str] = (),
    fresh: Fresh = "refuse",
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
    pattern, group_info, strategy, newest, tolerate
        As for `recover_train`.
    fresh : {"refuse", "start"}
        Without any slice of any step on any rank: raise, or change nothing and return a `Resumption` without step.

    Returns
    -------
    Resumption
        The step, and the `extra` that was saved with it. The random generators are in the state in which the slice was
        saved.

    Raises
    ------
    MissingInputError, UnrecoverableError, InputError, VerificationError, MsRecoverError
        As `recover_train`.

    Examples
    --------
    >>> resumed = resume([network, optimizer], ".", fresh="start")  # doctest: +SKIP
    >>> done = resumed.step.step if resumed.step else 0  # doctest: +SKIP
    """
    job, network = current_job(), as_cell(parameters)
    search = make_search(job, root, pattern, group_info, strategy, newest, tolerate, fresh)
    found = find_slice(job, search)
    if found is None:
        return Resumption(None, None, None)
    load_found(found, lambda: load_into(network, load_slice(found.own), found.own))
    state = found.state()
    warn_of_operators(found.own, network, state)
    if state is None:
        return Resumption(found.own.step, found.own.path, found.source_rank)
    restore_generators(state.generators)
    return Resumption(found.own.step, found.own.path, found.source_rank, extra=state.extra)


def make_search(
    job: TrainingJob,
    root: str | os.PathLike[str],
    pattern: str | None,
    group_info: Paths,
    strategy: Paths,
    newest: bool,
    tolerate: str | Iterable[str],
    fresh: Fresh,
) -> Search:
    """Check the arguments of `resume`; UsageError when one is invalid."""
    if pattern is not None:
        check_type("pattern", pattern, str, "a text")
    check_type("newest", newest, bool, "True or False")
    if fresh not in ("refuse", "start"):
        raise UsageError(f"fresh={fresh!r}: it must be 'refuse' or 'start'")
    return Search(
        path_text("root", root),
        ScanOptions(
            pattern=pattern,
            group_info=path_texts("group_info", group_info),
            strategy=path_texts("strategy", strategy),
        ),
        PlanOptions(world_size=job.size, newest=newest, tolerate=texts("tolerate", tolerate)),
        fresh,
    )


def find_slice(job: TrainingJob, search: Search) -> Found | None:
    """Find and obtain the slice to resume from; None, and a warning, when training is to start afresh.

    All ranks call it together. Errors are those of `obtain_resume_slice`, and MissingInputError when there is no slice
    and nothing said that this is right.
    """
    top = search.root
    view = job.run_together("scanning the tree", lambda: make_rank_view(top, job.rank, search.scanning, search.judging))
    view, own = obtain_resume_slice(job, view, top)
    if own is not None:
        return Found(job, view, own)
    if search.fresh == "refuse":
        seen = f" ({view.overlooked})" if view.overlooked else ""
        raise MissingInputError(
            f"no rank has a slice under {top}{seen}: name the folder that holds ckpt_dir{{rank}}/, "
            "or train from the start with fresh='start'"
        )
    job.run_together("looking for slices", lambda: _refuse_overlooked(view))
    _log.warning("rank %d: no slices under %s, training from the start", job.rank, top)
    return None


def _refuse_overlooked(view: RankView) -> None:
    if view.overlooked is not None:
        raise InputError(
            f"rank {view.rank}: {view.overlooked}. fresh='start' trains over no slices: correct root, pattern, "
            "group_info or strategy, so that they are found, or move them away"
        )


def load_found(found: Found, load: Callable[[], None], *, aside: bool = True) -> None:
    """Have all ranks `load` their slices, then set newer ones `aside`; if it fails on one rank, it fails on all."""
    step = found.own.step
    found.job.run_together(f"loading the slice of step {step}", load)
    if aside:
        found.job.run_together("renaming newer slices", lambda: supersede_newer_slices(found.view, step))


def load_into(network: Any, parameters: dict[str, Any], own: OwnSlice) -> None:
    """Load a slice into a network that is compiled if it has to be, and compare what it holds then with the manifest.

    Errors are those of `load_into_network` and `check_network`.
    """
    load_into_network(network, parameters, own)
    try:
        manifest = read_manifest(own.path + MANIFEST_SUFFIX)
    except MissingInputError:
        _log.warning("%s: it has no manifest, so the loaded values rest on the structure of the slice only", own)
    except MsRecoverError as error:
        _log.warning("%s: the loaded values rest on the structure of the slice only: %s", own, error)
    else:
        count = check_network(network, manifest, own)
        _log.info("%s: %d parameters of the network have the digests of the manifest", own, count)
