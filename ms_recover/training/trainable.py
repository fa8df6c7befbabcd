"""Which parameters are trained: ``requires_grad`` of each, which a callback or a loop may change on the way."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from ms_recover.model.texts import list_some
from ms_recover.training.cell_values import Cells
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.mindspore_inside import parameters_of_cell
from ms_recover.training.proof import resume_line

_log = logging.getLogger(__name__)

_MOST_NAMED = 8

_begun: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()
"""By cell, as it was when the cell was first seen in this process, by the attribute that holds the parameter."""


def note_begin(cells: Cells) -> None:
    """Note which parameters are trained, unless that was noted before in this process."""
    for _, cell in cells:
        own = parameters_of_cell(cell)
        if own and cell not in _begun:
            _begun[cell] = {key: bool(one.requires_grad) for key, one in own.items() if one is not None}


def changed_flags(cells: Cells) -> dict[str, bool]:
    """Return the parameters that are frozen now and were not at the begin (False), or the other way round (True)."""
    note_begin(cells)
    changed: dict[str, bool] = {}
    for _, cell in cells:
        own = parameters_of_cell(cell)
        before = _begun.get(cell, {}) if own else {}
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
