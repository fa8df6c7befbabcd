"""The values that the cells of a network keep in attributes, wherever Python can keep one below them.

A walk looks at every attribute of every cell, at every save: what is the same object as before is passed over early.
"""

from __future__ import annotations

import operator
import random
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isroutine
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, Literal

import mindspore as ms
import numpy as np
from mindspore import Parameter, nn
from mindspore.ops import Primitive

from ms_recover.training.mindspore_inside import buffers_of_cell, parameters_of_cell, transient_buffers

_DEPTH = 16
"""Steps from a cell to what is looked for."""
_MOST_OBJECTS = 10_000
"""Of a list or dict of other things than numbers, texts, tensors and arrays, that is looked into."""
_MOST_ITEMS = 100_000
"""Of a list or dict that is saved."""

Cells = Sequence[tuple[str, Any]]
"""The cells of a network with their paths."""

Kind = Literal["parameter", "tensor", "generator", "plain"]
Key = tuple[str, Any]
"""A step from an object to what it holds: ``("attr", name)``, ``("item", index)`` or ``("buffer", name)``."""

OF_CELLS = frozenset(vars(nn.Cell())) | {"_func_graph_flags", "_mutable_flags", "current_phase", "sequence_modified"}
"""Attributes of cells that are MindSpore's own; it adds the last ones while it compiles."""
_SCALARS = (bool, int, float, str, bytes, type(None))
_NO_VALUES = (nn.Cell, Primitive, type, ModuleType)
_LOOKED_INTO = (SimpleNamespace, ms.amp.LossScaler)
_LIBRARIES = ("mindspore", "numpy", "ms_recover")
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)  # noqa: S311 (types)
_CONTAINERS = (list, tuple, dict, set, deque)
_VALUES = (ms.Tensor, *GENERATORS, *_SCALARS, np.generic, np.ndarray, *_CONTAINERS)
_ABSENT = object()


@dataclass(frozen=True)
class Leaf:
    """One value, and where it is: in the cell of this path, behind some steps."""

    cell: str
    at: tuple[Key, ...]
    kind: Kind
    value: Any

    def __str__(self) -> str:
        """Return its name for messages."""
        name = "".join(f"[{key!r}]" if how == "item" else f".{key}" for how, key in self.at)
        return f"{self.cell}{name}".lstrip(".")


@dataclass
class FirstSeen:
    """The attributes of a cell, as they were when it was first seen, as far as a glance shows that they are the same.

    A network has thousands that hold an object of a type that never changes, or a list of such objects, and few others.
    """

    fixed: dict[str, Any] = field(default_factory=dict)
    """Of types that never change: the same object is the same value."""
    lists: dict[str, list[Any]] = field(default_factory=dict)
    """Copies of lists of such objects."""
    _keys: frozenset[str] = frozenset()
    _names: tuple[str, ...] = ()

    def note(self, attributes: Mapping[str, Any]) -> None:
        """Note what shows at a glance that it is unchanged."""
        for name in self.names_in(attributes):
            value = attributes[name]
            if _is_fixed(value):
                self.fixed[name] = value
            elif type(value) is list and all(map(_is_fixed, value)):
                self.lists[name] = list(value)

    def names_in(self, attributes: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the attributes that are not MindSpore's own."""
        if attributes.keys() != self._keys:
            self._keys = frozenset(attributes)
            self._names = tuple(sorted(name for name in self._keys - OF_CELLS if not name.startswith("__")))
        return self._names

    def has(self, name: str, value: Any) -> bool:
        """Whether an attribute is known at a glance to hold what it held."""
        if self.fixed.get(name, _ABSENT) is value:
            return True
        before = self.lists.get(name)
        if before is None or type(value) is not list or len(value) != len(before):
            return False
        return all(map(operator.is_, value, before))


def _is_fixed(value: Any) -> bool:
    return isinstance(value, _SCALARS) or (type(value) is tuple and all(map(_is_fixed, value)))


def leaves(cells: Cells, firsts: Mapping[Any, FirstSeen] = MappingProxyType({})) -> Iterator[Leaf]:
    """Yield what cells keep that neither their parameters nor their persistent buffers are.

    Of cells that are among `firsts`, attributes are left out that are seen at a glance to hold what they held.
    """
    seen = {id(parameter) for _, cell in cells for parameter in parameters_of_cell(cell).values()}
    empty: set[type] = set()
    for path, cell in cells:
        if buffers := buffers_of_cell(cell):
            for name in sorted(transient_buffers(cell)):
                if buffers.get(name) is not None:
                    yield Leaf(path, (("buffer", name),), "tensor", buffers[name])
        attributes, first = vars(cell), firsts.get(cell) or FirstSeen()
        for name in first.names_in(attributes):
            value = attributes[name]
            if type(value) in empty or first.has(name, value):
                continue
            if _holds_nothing(value):
                empty.add(type(value))
            else:
                yield from _leaves(path, (("attr", name),), value, seen)


def _leaves(cell: str, at: tuple[Key, ...], value: Any, seen: set[int]) -> Iterator[Leaf]:
    if isinstance(value, Parameter):
        if id(value) not in seen:
            seen.add(id(value))
            yield Leaf(cell, at, "parameter", value)
    elif isinstance(value, ms.Tensor):
        yield Leaf(cell, at, "tensor", value)
    elif isinstance(value, GENERATORS):
        yield Leaf(cell, at, "generator", value)
    elif isinstance(value, (*_SCALARS, np.generic, np.ndarray)):
        yield Leaf(cell, at, "plain", value)
    elif _holds_nothing(value) or len(at) > _DEPTH or id(value) in seen:
        return
    elif isinstance(value, _CONTAINERS):
        seen.add(id(value))
        if _is_plain(value):
            yield Leaf(cell, at, "plain", value)
        elif not isinstance(value, set) and len(value) <= _MOST_OBJECTS:
            items = value.items() if isinstance(value, dict) else enumerate(value)
            new = [(key, item) for key, item in items if id(item) not in seen and isinstance(key, (str, int))]
            for key, item in new:
                yield from _leaves(cell, (*at, ("item", key)), item, seen)
    else:
        seen.add(id(value))
        for name, item in list(vars(value).items()):
            yield from _leaves(cell, (*at, ("attr", name)), item, seen)


def _holds_nothing(value: Any) -> bool:
    """Whether values of this type hold none of the program's, whatever they are.

    Values are looked for in containers, and in objects of its own classes, namespaces and loss scalers.
    """
    if isinstance(value, _VALUES):
        return False
    if isinstance(value, _NO_VALUES) or isroutine(value) or not hasattr(value, "__dict__"):
        return True
    package = type(value).__module__.partition(".")[0]
    return not isinstance(value, _LOOKED_INTO) and (package in sys.stdlib_module_names or package in _LIBRARIES)


def _is_plain(value: Any) -> bool:
    """Whether a container holds nothing but what a state file can hold."""
    if isinstance(value, (list, tuple, set, deque)):
        items: Collection[Any] = value
    elif isinstance(value, dict):
        items = [*value.keys(), *value.values()]
    elif isinstance(value, Parameter):
        return False
    else:
        return value is None or isinstance(value, (bool, int, float, str, bytes, np.generic, np.ndarray, ms.Tensor))
    return len(items) <= _MOST_ITEMS and all(_is_plain(item) for item in items)
