"""What a network keeps beside its parameters: taken with each slice, and given back by a resume."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import mindspore as ms

from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.training import attributes
from ms_recover.training.buffers import digests_of, persistent_buffers, savable
from ms_recover.training.cell_settings import settings_of_cells
from ms_recover.training.cell_values import Cells
from ms_recover.training.constants import Kept, is_as_before
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.hyperparameters import current_settings
from ms_recover.training.mindspore_inside import amp_level_of, calling_model, parameters_of_cell, without_gradient
from ms_recover.training.proof import resume_line
from ms_recover.training.run_state import RunState
from ms_recover.training.snapshot import memory_places

_log = logging.getLogger(__name__)

_MOST_NAMED = 8

_flags_begun: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()
"""By cell, as it was when the cell was first seen in this process, by the attribute that holds the parameter."""


def note_begin(network: Any) -> None:
    """Note what a network keeps as it begins, once in a process: what changes later is saved with its slices."""
    cells = list(network.cells_and_names())
    attributes.note_begin(cells)
    note_flags(cells)


class NetworkState:
    """Takes what a saver saves of its network beside the parameters; names once what is not restored."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job
        self._named: set[str] = set()
        self._places: dict[str, int] = {}
        self._replaced = False
        self._settings: dict[str, str] | None = None
        self.buffers: tuple[tuple[str, str], ...] = ()
        """Name and digest of each buffer that was taken last."""

    def take(self, network: Any, *, name: bool = True) -> dict[str, Any]:
        """Return the members of a `RunState`; with `name` a warning says what a resume is not going to restore."""
        cells, graph = list(network.cells_and_names()), is_graph()
        buffers = persistent_buffers(network, cells)
        self.buffers = tuple(digests_of(buffers).items())
        values, unsavable = attributes.changed_values(cells)
        flags = changed_flags(cells)
        if name and self._job.rank == 0:
            left = attributes.compiled_in(values) if graph else []
            self._name(left, "changed since the training began, and what is compiled does not see that: a resumed "
                       "training begins with them as the program makes them")  # fmt: skip
            self._name(list(unsavable), "of types that no state file holds: they begin anew in a resumed training")
            if graph and flags.keys() - self._named:
                self._named |= flags.keys()
                _log.warning("%s", frozen_text(flags))
        if self._settings is None:
            self._settings = current_settings(network, amp_level_of(calling_model()))
            self._settings |= settings_of_cells(network, attributes.places_of(values))
        return {
            "buffers": savable(buffers),
            "attributes": values,
            "trainable": flags,
            "settings": self._settings,
        }

    def name_replaced(self, network: Any, step: Step) -> None:
        """Name parameters whose memory was replaced since the save before: training changes them no more."""
        before, self._places = self._places, memory_places(network)
        moved = [name for name, place in self._places.items() if before.get(name, place) != place]
        if moved and not self._replaced:
            self._replaced = True
            _log.warning(
                "rank %d, step %s: %s were given other memory (by set_data or load_param_into_net): in PyNative mode "
                "what MindSpore has compiled, such as an optimizer, goes on with the old one, so a resumed training is "
                "another one; change values in place, with mindspore.ops.assign",
                self._job.rank,
                step,
                list_some(moved, _MOST_NAMED),
            )

    def _name(self, names: list[str], why: str) -> None:
        new = [name for name in names if name not in self._named]
        self._named.update(new)
        if new:
            _log.warning("these values of cells are %s: %s", why, list_some(new, _MOST_NAMED))


def is_graph() -> bool:
    """Whether MindSpore compiles whole networks."""
    return bool(ms.get_context("mode") == ms.GRAPH_MODE)


def restore(network: Any, state: RunState | None, own: OwnSlice) -> list[Kept]:
    """Restore what cells keep, and which parameters are trained; return the tensors that had other values."""
    if state is None:
        return []
    cells = list(network.cells_and_names())
    compiled = bool(state.generators.get("operators", {}).get("compiled"))
    with without_gradient():
        begun = attributes.restore_values(cells, state.attributes, own, graph=is_graph(), compiled=compiled)
    restore_flags(cells, state.trainable, own, graph=is_graph())
    return begun


def name_constants(begun: list[Kept], state: RunState | None, own: OwnSlice) -> None:
    """Warn of tensors with other values than in the interrupted training when what reads them was compiled.

    That is what ``@jit`` compiles, and in graph mode whatever a loop calls; MindSpore does it at the first step.
    """
    compiled = state is not None and state.generators.get("operators", {}).get("compiled")
    if (compiled or is_graph()) and any(not is_as_before(kept) for kept in begun):
        _log.warning(
            "%s: buffers and tensors of cells are restored; where what %s compiles reads them, it takes the values "
            "of now for constants, and the interrupted training those of its begin: make them parameters",
            own,
            how := "graph mode" if is_graph() else "@jit",
        )
        resume_line().doubt(f"tensors are read by what {how} compiles", "weights")


def note_flags(cells: Cells) -> None:
    """Note which parameters are trained, unless that was noted before in this process."""
    for _, cell in cells:
        own = parameters_of_cell(cell)
        if own and cell not in _flags_begun:
            _flags_begun[cell] = {key: bool(one.requires_grad) for key, one in own.items() if one is not None}


def changed_flags(cells: Cells) -> dict[str, bool]:
    """Return the parameters that are frozen now and were not at the begin (False), or the other way round (True)."""
    note_flags(cells)
    changed: dict[str, bool] = {}
    for _, cell in cells:
        own = parameters_of_cell(cell)
        before = _flags_begun.get(cell, {}) if own else {}
        for key, flag in before.items():
            one = own.get(key)
            if one is not None and (now := bool(one.requires_grad)) != flag:
                changed[one.name] = now
    return changed


def restore_flags(cells: Cells, saved: Mapping[str, bool], own: OwnSlice, *, graph: bool) -> None:
    """Freeze what had been frozen by the time that a slice was saved, and release what had been released.

    In graph mode it is named alone: what was compiled before goes on training the parameter.
    """
    if graph:
        if saved:
            _log.warning("%s: %s", own, frozen_text(saved))
            resume_line().doubt(f"requires_grad of {list_some(sorted(saved), _MOST_NAMED)} is not restored", "weights")
        return
    parameters = [one for _, cell in cells for one in parameters_of_cell(cell).values() if one is not None]
    for parameter in parameters:
        if parameter.name in saved:
            parameter.requires_grad = saved[parameter.name]
    back = changed_flags(cells).keys() - saved.keys()  # changed in this process behind that slice
    for parameter in {id(one): one for one in parameters}.values():
        if parameter.name in back:
            parameter.requires_grad = not parameter.requires_grad


def frozen_text(changed: Mapping[str, bool]) -> str:
    """Return a sentence about parameters that were frozen or released in graph mode."""
    return (
        f"requires_grad was changed since the training began: {list_some(sorted(changed), _MOST_NAMED)}; in graph mode "
        "what is compiled goes on as before, so a resumed training does not restore it, and a start that sets it "
        "before the first step is another training"
    )
