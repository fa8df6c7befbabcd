"""What the cells of a network keep that is in no slice: parameters outside of cells, tensors, numbers, generators.

MindSpore lists the parameters of cells alone. Those of an object that is no cell, such as
``mindspore.amp.DynamicLossScaler``, and all that Python code counts in attributes, begin anew in another process. What
changed since the network was first seen here is saved with its slices, and restored.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary, ref

import mindspore as ms
import numpy as np

from ms_recover.errors import UsageError
from ms_recover.model.state import StateTensor
from ms_recover.model.texts import list_some
from ms_recover.stores.digest import digest_of
from ms_recover.training.cell_values import Cells, FirstSeen, Key, Leaf, leaves
from ms_recover.training.constants import Kept, keep
from ms_recover.training.deciding.own_slice import OwnSlice
from ms_recover.training.mindspore_inside import buffers_of_cell
from ms_recover.training.proof import resume_line
from ms_recover.training.snapshot import values_of
from ms_recover.training.state_values import from_state, to_state

_log = logging.getLogger(__name__)

_MOST_NAMED = 8
_ERRORS = (LookupError, AttributeError, TypeError, ValueError, RuntimeError)
"""Of a value that cannot be put where it was."""


def _contents(leaf: Leaf) -> Any:
    """Return the value as state files hold it; UsageError where they cannot."""
    return to_state(_value(leaf), str(leaf))


def _value(leaf: Leaf) -> Any:
    if leaf.kind == "generator":
        return _generator_state(leaf.value)
    return list(leaf.value) if isinstance(leaf.value, deque) else leaf.value


def _generator_state(generator: Any) -> Any:
    if isinstance(generator, random.Random):  # noqa: S311 (a type)
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    return generator.bit_generator.state


def _set_generator(generator: Any, state: Any) -> None:
    if isinstance(generator, random.Random):  # noqa: S311 (a type)
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.bit_generator.state = state


def _mark(leaf: Leaf) -> Any:
    """Return what shows whether a value has changed; None where that cannot be seen."""
    try:
        if leaf.kind in ("parameter", "tensor"):
            if getattr(leaf.value, "has_init", False):
                return "not begun"
            return str(leaf.value.dtype), tuple(leaf.value.shape), digest_of(values_of(leaf.value))
        return _digested(_contents(leaf))
    except (UsageError, TypeError, ValueError, RuntimeError):
        return None


def _digested(value: Any) -> Any:
    """Return a value of a state file that is compared by its texts and digests."""
    if isinstance(value, StateTensor):
        return value.kind, value.dtype, value.shape, digest_of(memoryview(value.data))
    if isinstance(value, dict):
        return [(_digested(key), _digested(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(_digested, value)]
    return repr(sorted(value, key=repr)) if isinstance(value, set) else repr(value)


def marks_of(cells: Cells, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what shows whether what cells keep has changed, and whether further `values` have, by name."""
    found = {str(leaf): _mark(leaf) for leaf in leaves(cells)}
    for name, value in values.items():
        found[name] = _mark(Leaf(name, (), "tensor" if isinstance(value, ms.Tensor) else "plain", value))
    return found


@dataclass(frozen=True)
class _Begun:
    """A value as it was when its cell was first seen in this process."""

    mark: Any
    plain: Any
    """As state files hold it; None of tensors."""
    place: ref[Any] | None
    """The tensor itself."""


_begun: WeakKeyDictionary[Any, dict[tuple[Key, ...], _Begun]] = WeakKeyDictionary()
_first: WeakKeyDictionary[Any, FirstSeen] = WeakKeyDictionary()


def note_begin(cells: Cells) -> None:
    """Note what cells keep, unless that was noted before in this process."""
    new: dict[str, dict[tuple[Key, ...], _Begun]] = {path: {} for path, cell in cells if cell not in _begun}
    if not new:
        return
    for leaf in leaves(cells):
        if leaf.cell in new:
            new[leaf.cell][leaf.at] = _as_begun(leaf)
    for path, cell in cells:
        if path in new:
            _begun[cell] = new[path]
            _first[cell] = FirstSeen()
            _first[cell].note(vars(cell))


def _as_begun(leaf: Leaf) -> _Begun:
    mark = _mark(leaf)
    if leaf.kind in ("plain", "generator"):
        return _Begun(mark, None if mark is None else _contents(leaf), None)
    return _Begun(mark, None, ref(leaf.value) if leaf.kind == "tensor" else None)


def changed_values(cells: Cells) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what has changed since the begin, for a state file, by name; and the names of what none can hold.

    Parameters are always there, because another start may give them other values.
    """
    note_begin(cells)
    by_path = dict(cells)
    saved: dict[str, Any] = {}
    unsavable: list[str] = []
    for leaf in leaves(cells, _first):
        begun = _begun[by_path[leaf.cell]].get(leaf.at)
        if leaf.kind != "parameter" and begun is not None and begun.mark == _mark(leaf):
            continue
        try:
            _contents(leaf)
        except (UsageError, TypeError, ValueError, RuntimeError):
            unsavable.append(str(leaf))
        else:
            moved = begun is not None and begun.place is not None and begun.place() is not leaf.value
            at = [list(step) for step in leaf.at]
            record = {"cell": leaf.cell, "at": at, "kind": leaf.kind, "value": _value(leaf), "moved": moved}
            saved[str(leaf)] = record
    return saved, tuple(unsavable)


def places_of(saved: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Return cells and attributes in which something has changed, by their paths and names."""
    return {(one["cell"], str(one["at"][0][1])) for one in saved.values()}


def compiled_in(saved: Mapping[str, Any]) -> list[str]:
    """Return the names of changed values that what MindSpore has compiled does not see.

    What Python code reads is a constant there; it stays as it was when that was compiled.
    """
    return [name for name, one in saved.items() if one["kind"] in ("plain", "generator") or one["moved"]]


def restore_values(cells: Cells, saved: Mapping[str, Any], own: OwnSlice, *, graph: bool, compiled: bool) -> list[Kept]:
    """Restore what had changed by the time that a slice was saved; name what cannot be.

    Returns the tensors that were written to, with their values before.
    In `graph` mode everything is `compiled`; otherwise that is what ``@jit`` is said to have compiled.
    """
    note_begin(cells)
    by_path = dict(cells)
    seen = compiled_in(saved)
    left = seen if graph else []
    if seen and compiled and not graph:
        _name(own, "restored, but what @jit had compiled before they changed went on without the change, and now does "
              "not", seen)  # fmt: skip
    if left:
        _name(own, "not restored: they had changed, and in graph mode what is compiled goes on as it was then", left)
    failed = []
    begun: list[Kept] = []
    for name, one in saved.items():
        if name in left:
            continue
        try:
            begun += _restore(by_path[one["cell"]], one)
        except _ERRORS as error:
            failed.append(f"{name} ({error})")
    if failed:
        _name(own, "not restored, because they are not there as they were", failed)
    if not graph:
        _reset(cells, saved)
    return begun


def _name(own: OwnSlice, what: str, names: list[str]) -> None:
    _log.warning("%s: these values of cells are %s: %s", own, what, list_some(names, _MOST_NAMED))
    resume_line().doubt(f"values of cells are {what.partition(':')[0].partition(',')[0]}", "weights")


def _restore(cell: Any, one: Mapping[str, Any]) -> list[Kept]:
    """Put a value where it was; return the tensor that was written to, with its values before."""
    *path, (how, key) = one["at"]
    owner = cell
    for step, name in path:
        owner = owner[name] if step == "item" else getattr(owner, name)
    value, kind = one["value"], one["kind"]
    there: Any = (
        buffers_of_cell(cell)[key] if how == "buffer" else owner[key] if how == "item" else getattr(owner, key, None)
    )
    if kind in ("parameter", "tensor") and not one["moved"] and _fits(there, value):
        before = [keep(there)] if kind == "tensor" else []
        there.copy_(value)
        return before
    if kind == "parameter" or how == "buffer":
        raise ValueError(f"it was {value.dtype} {list(value.shape)}")
    if kind == "generator":
        _set_generator(there, value)
    elif not _fill(there, value):
        if how == "item":
            owner[key] = value
        else:
            setattr(owner, key, value)
    return []


def _fits(there: Any, value: Any) -> bool:
    return isinstance(there, ms.Tensor) and (there.shape, there.dtype) == (value.shape, value.dtype)


def _fill(there: Any, value: Any) -> bool:
    """Write a value into the container that is there, which others may hold too; False where it is none."""
    if isinstance(there, list) and type(value) is list:
        there[:] = value
    elif isinstance(there, deque) and type(value) is list:
        there.clear()
        there.extend(value)
    elif (isinstance(there, dict) and type(value) is dict) or (isinstance(there, set) and type(value) is set):
        there.clear()
        there.update(value)
    elif isinstance(there, np.ndarray) and isinstance(value, np.ndarray) and there.shape == value.shape:
        there[...] = value
    else:
        return False
    return True


def _reset(cells: Cells, saved: Mapping[str, Any]) -> None:
    """Put back what had not changed when the slice was saved, and has since, in a training of this process."""
    by_path = dict(cells)
    for leaf in list(leaves(cells, _first)):
        begun = _begun[by_path[leaf.cell]].get(leaf.at)
        if str(leaf) in saved or begun is None or begun.plain is None or begun.mark == _mark(leaf):
            continue
        record = {"at": leaf.at, "kind": leaf.kind, "value": from_state(begun.plain), "moved": False}
        with suppress(*_ERRORS):
            _restore(by_path[leaf.cell], record)
