"""A training that begins anew in the process of an attempt that died before its first save.

Another process begins with the initial state. This one may begin with what the attempt has left of the network, the
callbacks, the generators and the samples, so that is compared with what the attempt began with.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet, ref

from ms_recover.model.texts import list_some
from ms_recover.training.attributes import marks_of
from ms_recover.training.batches import difference, from_record
from ms_recover.training.buffers import persistent_buffers
from ms_recover.training.callback_states import callback_states
from ms_recover.training.cell_values import Cells
from ms_recover.training.cells import rounding_optimizers
from ms_recover.training.generators import GENERATORS, changed_generators, generator_states, random_operators
from ms_recover.training.in_process import of_process
from ms_recover.training.mindspore_inside import parameters_of_cell
from ms_recover.training.run_state import named
from ms_recover.training.sample_order import code_names

_log = logging.getLogger(__name__)

_MOST_NAMED = 8
_OPERATORS = "operators"


@dataclass(eq=False)
class _Begin:
    """What the first attempt at a training began with in this process."""

    owner: ref[Any] | None
    """The attempt that noted or compared it last: of its savers one does it."""
    cells: WeakSet[Any]
    """Those with parameters."""
    marks: Mapping[str, Any]
    generators: Mapping[str, Any]
    batch: Sequence[Any] = ()
    """Digests of its first batch, empty where none was seen."""


class _Begins:
    """What trainings of this process began with."""

    def __init__(self) -> None:
        self.of: dict[tuple[str, tuple[str, ...]], _Begin] = {}
        """By folder and experiments; until one of these has saved a slice below the folder."""


class Anew:
    """The begin of a training without a slice, beside that of an attempt before.

    Parameters
    ----------
    first : _Begin
        What the first attempt began with.
    experiments : collection of str
        What is trained, for messages.
    differing : list of str, optional
        In what this one differs; None where it is the first.
    """

    def __init__(self, first: _Begin, experiments: Collection[str], differing: list[str] | None) -> None:
        self._first, self._experiments, self._differing = first, experiments, differing

    def say(self, rank: int, dataset: Any, batch: Sequence[Any] = ()) -> None:
        """Compare the digests of the first `batch`, as far as one is in hand, and name in a warning what differs."""
        first, differing = self._first, self._differing
        if differing is None:
            first.batch = batch
            return
        code = code_names(dataset)
        if batch and first.batch:
            found = difference(from_record(first.batch), from_record(batch))
            differing += [f"another first batch ({found})"] if found is not None else []
        elif code:
            differing.append(f"samples that nothing compares, which code of the program makes ({list_some(code, 8)})")
        if differing:
            _log.warning(
                "rank %d: the training%s begins anew in the process of an attempt that saved nothing, and not as that "
                "began: with %s. A new process begins with the initial state, and so does a retry that sets the seeds "
                "and makes network, optimizer, callbacks and dataset once more",
                rank,
                "".join(f" of {name!r}" for name in self._experiments),
                "; ".join(differing),
            )


def begin_anew(
    folder: str, experiments: Sequence[str], network: Any, callbacks: Iterable[Any] = (), owner: Any = None
) -> Anew | None:
    """Note what a training begins with that resumes nothing, or compare it with what the attempt before began with.

    `folder` and `experiments`, empty for any, are where it is going to save. None where another saver of the same
    training, its `owner`, has done it.
    """
    key = os.path.realpath(folder), tuple(experiments)
    cells, first = list(network.cells_and_names()), of_process(_Begins).of.get(key)
    if first is not None and owner is not None and first.owner is not None and first.owner() is owner:
        return None
    states = {f"{one['class']} ({number})": one["state"] for number, one in enumerate(callback_states(callbacks), 1)}
    marks, generators = _marks(network, cells, states), generator_states()
    owned = None if owner is None else ref(owner)
    if first is None:
        of_network = WeakSet(cell for _, cell in cells if parameters_of_cell(cell))
        first = of_process(_Begins).of[key] = _Begin(owned, of_network, marks, generators)
        return Anew(first, experiments, None)
    first.owner = owned
    names = [name for name in first.marks.keys() | marks.keys() if first.marks.get(name) != marks.get(name)]
    left, theirs = [name for name in names if name not in states], [name for name in names if name in states]
    differing = [f"other values of {list_some(sorted(left), _MOST_NAMED)}"] if left else []
    differing += [f"other states of the callbacks {list_some(sorted(theirs), _MOST_NAMED)}"] if theirs else []
    drawn = changed_generators(first.generators, generators) - {_OPERATORS}
    differing += [f"the states of {named(drawn, GENERATORS)} that it left"] if drawn else []
    ran = any(cell in first.cells for _, cell in cells)
    if ran or _seeds(first.generators) != _seeds(generators):
        operators = random_operators(network, generators)
        differing += [f"random operators that go on: {list_some(operators, _MOST_NAMED)}"] if operators else []
    rounding = rounding_optimizers(network)
    differing += [f"{list_some(rounding)}, which rounds by how often its kernel ran"] if rounding else []
    return Anew(first, experiments, differing)


def forget_begin(folder: str, experiment: str) -> None:
    """Forget what trainings of an experiment began with that save in a folder: there is a slice to resume from."""
    path = os.path.join(os.path.realpath(folder), "")
    for root, experiments in list(of_process(_Begins).of):
        if path.startswith(os.path.join(root, "")) and (not experiments or experiment in experiments):
            of_process(_Begins).of.pop((root, experiments), None)


def _marks(network: Any, cells: Cells, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return what shows whether what a network keeps, or one of some `states`, has changed, by name."""
    parameters = list(network.get_parameters())
    values: dict[str, Any] = {one.name: one for one in parameters} | persistent_buffers(network, cells)
    flags = {f"requires_grad of {one.name}": bool(one.requires_grad) for one in parameters}
    return {**marks_of(cells, values | dict(states)), **flags}


def _seeds(states: Mapping[str, Any]) -> Any:
    return states[_OPERATORS]["seed"], states[_OPERATORS]["counts"]
