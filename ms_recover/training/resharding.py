"""Resuming on other ranks: each rank puts exactly its own slice together in memory, and loads that."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ms_recover.errors import InputError, MsRecoverError, UsageError, VerificationError
from ms_recover.execution.context import ActionContext
from ms_recover.execution.piece_reader import ComposedValue, compose_values
from ms_recover.loading.arrays import NUMPY_TYPES
from ms_recover.loading.tensors import value_of
from ms_recover.model.compose import ComposeAction
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Manifest, RunStep
from ms_recover.model.reshard import ReshardPlan
from ms_recover.model.texts import list_some
from ms_recover.planning.reshard.actions import action_of, source_names
from ms_recover.planning.reshard.step_plan import why_incomplete
from ms_recover.planning.tree.lineage import identity_of
from ms_recover.stores.atomic import write_small
from ms_recover.stores.local_store import LocalStore
from ms_recover.training.compiled_files import CapturedFiles, captured_files
from ms_recover.training.cut_steps import CutStep
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.deciding.position import Feed, Position
from ms_recover.training.deciding.reshard_position import (
    SharedFeed,
    feed_before,
    feed_now,
    find_shared_position,
    micro_batches,
)
from ms_recover.training.deciding.resume_text import OF_STATE, VALUES
from ms_recover.training.in_process import of_process
from ms_recover.training.network import check_values, load_into_network
from ms_recover.training.obtained import Obtained
from ms_recover.training.proof import resume_line
from ms_recover.training.reshard_target import JobTarget, StatedCut, is_cut_like, target_of
from ms_recover.training.run import Loaded, OtherWorld, Runs, note_resumed
from ms_recover.training.run_state import RunState, run_state_in
from ms_recover.training.sample_order import shards_of
from ms_recover.training.search import Search
from ms_recover.training.set_aside import Renames
from ms_recover.training.snapshot import saved_parameters
from ms_recover.training.this_process import device_target

_log = logging.getLogger(__name__)

_MOST_NAMED = 8


@dataclass(eq=False, kw_only=True)
class Resharded(Obtained):
    """The slice of a training on other ranks, put together in memory from those that it resumes from."""

    search: Search
    chosen: CutStep
    stated: StatedCut
    _files: CapturedFiles = field(default_factory=lambda: CapturedFiles(None, {}))
    _fits: bool = False
    _values: list[ComposedValue] | None = None
    _digests: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._likes = self._like_this_rank()

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the slice of the rank that this one goes on as, None when none can be read."""
        return next((one.manifest for one in self._likes if one.manifest is not None), None)

    def position(self, feed: Feed, dataset: Any, state: RunState | None, allow_change: bool) -> Position:
        """Return the position in the dataset; errors are those of `find_shared_position`."""
        before, now = self._feeds(feed, dataset, state)
        return find_shared_position(self.own.step, before, now, sinks=feed.sinks, allow_change=allow_change)

    def micro_batches(self, dataset: Any, state: RunState | None) -> int:
        """Return how many micro-batches of before one rank trains now for an update of the weights."""
        return micro_batches(*self._feeds(Feed.of(dataset), dataset, state))

    def _feeds(self, feed: Feed, dataset: Any, state: RunState | None) -> tuple[SharedFeed, SharedFeed]:
        training = self.manifest.training if self.manifest is not None else None
        before = feed_before(training, state.order if state is not None else {})
        return before, feed_now(feed, shards_of(dataset), of_process(Runs).accumulate)

    def _like_this_rank(self) -> list[SliceFile]:
        """Return the slices of the step: that of this rank modulo the ranks before first, then the others."""
        view, step = self.chosen.view, self.chosen.step
        run = self.chosen.run
        files = [one.file for one in view.facts.counted_at(step)]
        files = [one for one in files if identity_of(one.manifest) == (run.run_id or "", run.started)] or files
        like = self.job.rank % view.ranks
        return sorted(files, key=lambda one: (one.rank != like, one.rank))

    def state(self) -> RunState | None:
        """Return the state that was saved with such a slice; None, and a warning with the reason, where there is none.

        A rank goes on with the generators and callbacks of the rank that it is modulo the number of ranks before.
        """
        like = self.job.rank % self.chosen.view.ranks
        for file in self._likes:
            training = file.manifest.training if file.manifest is not None else None
            if training is None or training.state_digest is None:
                continue
            tree = self.chosen.view.tree
            store = tree.stores.get(file.path) or LocalStore(tree.inventory.root)
            try:
                state = run_state_in(store, file.path, training.state_digest)
            except MsRecoverError as error:
                _log.warning("%s: the state of rank %d is passed over: %s", self.own, file.rank, error)
                continue
            if file.rank != like:
                _log.warning(
                    "%s: the state of rank %d is lost, so random generators and callbacks go on as those of rank %d",
                    self.own,
                    like,
                    file.rank,
                )
                resume_line().doubt(f"those of rank {file.rank}", *OF_STATE)
            return state
        _log.warning("%s: no state was saved with these slices: random generators and callbacks start anew", self.own)
        resume_line().doubt("no state was saved", *OF_STATE)
        return None

    def load(
        self, network: Callable[[], Any], compile_it: Callable[[], None], *, in_place: bool = True, model: Any = None
    ) -> None:
        """Compile the network where its compiler cuts it, put this rank's slice together, and load it.

        Raises
        ------
        UsageError, InputError
            When the parameters of the job are not those of the slices, or cannot be cut so.
        VerificationError
            When a piece has other contents than its digest says and nobody else holds it.
        """
        compiles = model is not None and device_target() != "CPU"
        with captured_files(model) if compiles else nullcontext(_nothing) as captured:
            compile_it()
            self._files = captured()
        if self._values is None:
            self.prepare(network())
        cell, values = network(), self._values or []
        self._check_shapes(cell, values)
        tensors = {one.parameter.name: _loaded(one) for one in values}
        load_into_network(cell, tensors, self.own, self.initial, in_place=in_place)
        expected = {one.parameter.name: one.digest for one in values if one.parameter.name not in self.initial}
        count = check_values(cell, expected, self.own)
        resume_line().prove(*VALUES)
        self._digests = expected
        _log.info("%s: %d parameters of the network have the digests of what was put together", self.own, count)
        self._values = None

    def digests(self) -> Mapping[str, str]:
        """Return the digests of the parameters that were loaded, by name."""
        return self._digests

    def values(self, network: Any) -> dict[str, Any]:
        """Put the parameters together once more; errors are those of `load`."""
        self.prepare(network)
        tensors = {one.parameter.name: _loaded(one) for one in self._values or []}
        self._values = None
        return tensors

    def others(self) -> tuple[()]:
        """Return no other slices: `state` has looked through them."""
        return ()

    def _check_shapes(self, cell: Any, values: Sequence[ComposedValue]) -> None:
        """Refuse what does not fit before anything is loaded."""
        there = {one.parameter.name: one.parameter for one in values}
        for one in saved_parameters(cell):
            found, shape = there.get(one.name), list(one.shape)
            if (
                found is not None
                and one.name not in self.initial
                and (list(found.shape), found.dtype) != (shape, str(one.dtype))
            ):
                raise InputError(
                    f"{self.own}: the network has {one.name!r} as {one.dtype} {shape} on this rank, and "
                    f"cut as this job states it is {found.dtype} {list(found.shape)}: it is another network, or its "
                    "layouts are wrong"
                )

    def prepare(self, cell: Any) -> None:
        """Put this rank's slice together in memory; errors are those of `load`."""
        uncut = not self.chosen.view.facts.stages.layouts
        target = target_of(self.job, cell, self.stated, self._files.strategy, uncut=uncut)
        view = self.chosen.view
        self._fits = view.tree.in_place and is_cut_like(self.job, target.target, view.facts.stages, view.ranks)
        plan = view.plan(self.chosen.step, self.chosen.run, target.target)
        if not plan.complete:
            raise InputError(f"{self.own}: {why_incomplete(plan)}")
        self._values = self._composed(plan, target)

    def _composed(self, plan: ReshardPlan, target: JobTarget) -> list[ComposedValue]:
        file = replace(plan.files[target.place], rank=self.job.rank)
        action = action_of(plan, file)
        wanted = tuple(one for one in action.parameters if one.parameter.name in target.names)
        action = replace(action, parameters=wanted)
        self._warn(plan, action)
        tree, dropped = self.chosen.view.tree, list[str]()
        context = ActionContext(tree=LocalStore(tree.inventory.root), elsewhere=tree.stores)
        values = list(compose_values(action, context, source_names(plan), dropped))
        for text in dropped:
            _log.warning("%s: passed over for another holder: %s", self.own, text)
        size = sum(len(one.data) for one in values)
        _log.info("%s: %d parameters, %d bytes, put together from slices of ranks %s", self.own, len(values), size,
                  list_some(action.source_ranks, _MOST_NAMED))  # fmt: skip
        return values

    def _warn(self, plan: ReshardPlan, action: ComposeAction) -> None:
        own = sorted({one.parameter.name for one in action.parameters}.intersection(plan.own))
        if own:
            _log.warning(
                "%s: each rank had its own values of %s: this one goes on with those of rank %d, or of the lowest that "
                "has some",
                self.own,
                list_some(own, _MOST_NAMED),
                self.job.rank % plan.world_size,
            )
        for text in plan.warnings:
            _log.warning("%s: %s", self.own, text)

    def set_aside(self) -> None:
        """Leave all slices where they are: the first saver of the run that goes on sets those before aside."""
        self.brought.keep()

    def note(self) -> None:
        """Note that the next run goes on from here."""
        view, step = self.chosen.view, self.chosen.step
        run = self.chosen.run
        before = RunStep(run.run_id or "", step, run.started)
        if self.job.holds_everywhere(self._fits, "comparing the layouts"):  # as it shows behind the compile
            for path, data in self._files.files.items():
                write_small(path, data, mode=0o600)
            note_resumed(before, None, Loaded(experiments=self.search.loaded, root=self.search.root), self.search.given)
            return
        note_resumed(
            before,
            OtherWorld(
                root=os.path.abspath(self.search.root),
                scanning=self.search.scanning,
                ranks=view.ranks,
                newest_start=max((one.started or 0 for one in view.runs), default=0),
                files=self._files.files,
            ),
            Loaded(experiments=self.search.loaded, root=self.search.root),
            self.search.given,
        )


def _nothing() -> CapturedFiles:
    return CapturedFiles(None, {})


@dataclass(eq=False, kw_only=True)
class Cutting:
    """Puts the slices of this rank together, each step that the ranks agree on, until one proves sound."""

    job: TrainingJob
    search: Search
    stated: StatedCut
    network: Any
    brought: Renames
    made: Resharded | None = None
    """The slice that was put together last; None where the slices in place are those of this job as they are."""

    def why_not(self, chosen: CutStep) -> str | None:
        """Put a slice together, where no compiler cuts the network later; return why it cannot be.

        All ranks call it together.
        """
        job, step, view = self.job, chosen.step, chosen.view
        self.made = None
        if job.holds_everywhere(self._fits(chosen), "comparing the layouts"):
            return None
        _log.warning(
            "rank %d: training resumes on %d ranks from step %s of %s, which %d ranks saved: slices are cut anew",
            job.rank,
            job.size,
            step,
            view.tree.name,
            view.ranks,
        )
        own = OwnSlice(job.rank, step, view.tree.name)
        made = Resharded(
            job=job,
            own=own,
            brought=self.brought,
            resharded_from=view.ranks,
            keep=self.search.keep,
            search=self.search,
            chosen=chosen,
            stated=self.stated,
        )
        if device_target() == "CPU":
            try:
                made.prepare(self.network)
            except VerificationError as error:
                return str(error)
        self.made = made
        return None

    def _fits(self, chosen: CutStep) -> bool:
        """Whether slices in place are cut as those of this job, of as many ranks."""
        view = chosen.view
        if chosen.view.tree.in_place and not view.tree.stores and view.ranks == self.job.size:
            with suppress(UsageError, InputError):  # it is raised where it matters
                stages = view.facts.stages
                target = target_of(self.job, self.network, self.stated, None, uncut=not stages.layouts).target
                return is_cut_like(self.job, target, stages, view.ranks)
        return False


def _loaded(value: ComposedValue) -> Any:
    """Return composed contents as a parameter of MindSpore, in the memory that they are in.

    Raises
    ------
    InputError
        When MindSpore has no such type.
    """
    listed = value.parameter
    if listed.dtype != "BFloat16" and listed.dtype not in NUMPY_TYPES:
        raise InputError(f"parameter {listed.name!r} is of type {listed.dtype}, which MindSpore cannot load")
    return value_of(listed, memoryview(value.data))
