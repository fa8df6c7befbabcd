"""The slice that a rank has obtained, whichever way: how it is loaded, and how the line of the resume names it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import Manifest
from ms_recover.model.rank_local import RankLocalChoice
from ms_recover.model.texts import list_some
from ms_recover.training.attributes import changed_values, places_of
from ms_recover.training.cell_settings import compare_cells, settings_of_cells
from ms_recover.training.deciding.agreement import Back
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import OwnSlice, digests_by_name
from ms_recover.training.deciding.position import Feed, Position, find_position
from ms_recover.training.deciding.resume_text import OF_MODEL, VALUES, Source, Subject
from ms_recover.training.found_state import find_run_state
from ms_recover.training.hyperparameters import compare_settings, settings_of_program
from ms_recover.training.in_process import of_process
from ms_recover.training.network import check_network, load_into_network, load_slice
from ms_recover.training.own_steps import OwnSteps
from ms_recover.training.proof import resume_line
from ms_recover.training.run import Loaded, Runs, note_resumed
from ms_recover.training.run_state import RunState
from ms_recover.training.set_aside import Renames

_log = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class Obtained(ABC):
    """The slice of a rank, kept, copied, composed or cut anew."""

    job: TrainingJob
    own: OwnSlice
    """The step, and the slice; where it is cut anew, the tree that it is taken from in place of a file."""
    brought: Renames
    """Slices that got their names back to be resumed from."""
    back: Back | None = None
    """The newer step that all ranks went back from."""
    source_rank: int | None = None
    """See `ms_recover.training.Resumption.source_rank`."""
    resharded_from: int | None = None
    """See `ms_recover.training.Resumption.resharded_from`."""
    lost: tuple[str, ...] = ()
    """See `ms_recover.training.Resumption.rank_local_lost`."""
    rank_local: RankLocalChoice = "refuse"
    """What becomes of values of this rank that are lost."""
    keep: tuple[str, ...] = ()
    """The parameters that keep the values of the network, as the program says."""

    @property
    @abstractmethod
    def manifest(self) -> Manifest | None:
        """The manifest of the slice, None when none can be read."""

    @property
    def initial(self) -> tuple[str, ...]:
        """The parameters that keep the values of the network."""
        return (*self.keep, *(self.lost if self.rank_local == "initial" else ()))

    @abstractmethod
    def state(self) -> RunState | None:
        """Return the state that was saved with the slice; None, and a warning with the reason, where there is none."""

    @abstractmethod
    def digests(self) -> Mapping[str, str]:
        """Return the digests of the parameters, by name; empty where nothing states them."""

    @abstractmethod
    def values(self, network: Any) -> dict[str, Any]:
        """Return the parameters once more, for the `network` that holds them."""

    @abstractmethod
    def others(self) -> Iterable[tuple[Manifest, Callable[[], RunState | None]]]:
        """Return the manifests of other slices of the step that may help, each with a function that reads its state."""

    @abstractmethod
    def load(
        self, network: Callable[[], Any], compile_it: Callable[[], None], *, in_place: bool = True, model: Any = None
    ) -> None:
        """Compile the network where its compiler cuts it, and load the slice.

        Raises
        ------
        UsageError, InputError
            When the parameters of the job are not those of the slice, or cannot be cut so.
        VerificationError
            When there are other contents than their digests say.
        """

    @abstractmethod
    def position(self, feed: Feed, dataset: Any, state: RunState | None, allow_change: bool) -> Position:
        """Return the position in the dataset; errors are those of `find_position` and `find_shared_position`."""

    @abstractmethod
    def micro_batches(self, dataset: Any, state: RunState | None) -> int:
        """See `ms_recover.training.Resumption.accumulate`."""

    @abstractmethod
    def note(self) -> None:
        """Note that the next run goes on from here."""

    @abstractmethod
    def set_aside(self) -> None:
        """Set newer slices aside, behind the proof of everything that was resumed; all ranks call it together."""

    def waiting(self) -> Callable[[], None]:
        """Return what to call where the proof, which comes later, fails: slices get their names of before."""
        return self.brought.taken().undo

    def source(self, state: RunState | None) -> Source:
        """Return how the line of a resume names it."""
        manifest = self.manifest
        training = manifest.training if manifest is not None else None
        return Source(
            step=str(self.own.step),
            run=manifest.run_id if manifest is not None else "",
            saved_at=state.saved_at if state is not None else None,
            host=training.host if training is not None else None,
            other_rank=self.source_rank,
            cut_from=self.resharded_from,
            back_from=self.back.text if self.back is not None else None,
        )


@dataclass(eq=False, kw_only=True)
class ObtainedSlice(Obtained):
    """A slice of this rank as a file: it was kept, copied or composed."""

    steps: OwnSteps

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the slice, None when none can be read."""
        try:
            return read_manifest(self.own.path + MANIFEST_SUFFIX)
        except MsRecoverError:
            return None

    def state(self) -> RunState | None:
        """Return the state that was saved with the slice; None, and a warning with the reason, where there is none."""
        return find_run_state(self.own, self.steps.inventory.root, self.others)

    def digests(self) -> dict[str, str]:
        """Return the digests of the parameters, by name; empty where no manifest states them."""
        return digests_by_name(self.manifest)

    def values(self, network: Any) -> dict[str, Any]:
        """Return the parameters once more."""
        return load_slice(self.own)

    def others(self) -> Iterator[tuple[Manifest, Callable[[], RunState | None]]]:
        """Yield the manifests of the other slices of the step, each with a function that reads its state."""
        return self.steps.peers(self.own.step)

    def load(
        self, network: Callable[[], Any], compile_it: Callable[[], None], *, in_place: bool = True, model: Any = None
    ) -> None:
        """Read the slice, compile the network where its compiler cuts it, and load it; errors as for `load_into`."""
        parameters = load_slice(self.own, self.steps.take_contents(self.own))
        compile_it()
        load_into(network(), parameters, self.own, self.initial, in_place=in_place)

    def position(self, feed: Feed, dataset: Any, state: RunState | None, allow_change: bool) -> Position:
        """Return the position in the dataset; errors are those of `find_position`."""
        return find_position(self.own.step, self.manifest, feed, allow_change=allow_change)

    def micro_batches(self, dataset: Any, state: RunState | None) -> int:
        """See `ms_recover.training.Resumption.accumulate`."""
        return of_process(Runs).accumulate

    def note(self) -> None:
        """Note that the next run goes on from this one."""
        taken = self.steps.taken
        loaded = Loaded(experiments=taken.loaded, root=self.steps.inventory.root)
        note_resumed(self.steps.steps.run_of(self.own.step), loaded=loaded, own=taken.own)

    def set_aside(self) -> None:
        """Set newer slices aside, behind the proof of everything that was resumed; all ranks call it together."""
        step = self.own.step
        self.brought.keep()
        self.job.run_together("renaming newer slices", lambda: self.steps.set_newer_aside(step))


def load_into(
    network: Any, parameters: dict[str, Any], own: OwnSlice, initial: Collection[str] = (), *, in_place: bool = True
) -> None:
    """Load a slice into a network that is compiled if it has to be, and compare what it holds then with the manifest.

    Parameters named `initial` keep the values of the network; `in_place` is that of `load_into_network`.
    Errors are those of `load_into_network` and `check_network`.
    """
    load_into_network(network, parameters, own, initial, in_place=in_place)
    try:
        manifest = read_manifest(own.path + MANIFEST_SUFFIX)
    except MissingInputError:
        _log.warning("%s: it has no manifest, so the loaded values rest on the structure of the slice only", own)
        resume_line().doubt("no manifest describes them", *VALUES)
    except MsRecoverError as error:
        _log.warning("%s: the loaded values rest on the structure of the slice only: %s", own, error)
        resume_line().doubt("their manifest cannot be read", *VALUES)
    else:
        count = check_network(network, manifest, own, initial)
        resume_line().prove(*VALUES)
        _log.info("%s: %d parameters of the network have the digests of the manifest", own, count)


def load_found(
    found: Obtained,
    load: Callable[[], None],
    state: RunState | None,
    program: Any,
    *,
    subjects: Collection[Subject] = OF_MODEL,
    trains: bool = True,
) -> None:
    """Have all ranks `load` their slices; if it fails on one rank, it fails on all.

    The settings of the `program`, a ``Model`` or a cell, are compared with those that were saved. Where it `trains` on,
    its run goes on from them. Newer ones are set aside later, see `Obtained.set_aside`.
    """
    network, settings = getattr(program, "train_network", program), settings_of_program(program)
    found.job.run_together(f"loading the slice of step {found.own.step}", load)
    compare_settings(found.own, network, state.settings if state is not None else {}, settings, found.initial)
    if state is not None and not state.lent and found.resharded_from is None:
        changed = places_of(changed_values(list(network.cells_and_names()))[0])
        compare_cells(found.own, state.settings, settings_of_cells(network, changed))
    if found.lost:
        whose = "the network's own" if set(found.lost) <= set(found.initial) else "another rank's"
        resume_line().doubt(f"{list_some(found.lost)} are {whose}", "weights")
    if trains:
        resume_line().resumes(found.source(state), subjects)
        found.note()
