"""What a dataset's Python code remembers between samples: its sources, its functions, and what these refer to.

MindSpore calls them in this process, in threads (``dataset/engine/datasets.py`` of 2.10), unless they have processes of
their own. A resumed training makes the dataset anew, so that a count, or a generator of random numbers, begins anew; in
fast mode MindSpore skips samples without making them.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import mindspore.dataset as ds
import numpy as np

_CODE = ("source", "operations", "per_batch_map", "batch_size_func", "predicate", "collate_fn")
"""Attributes of MindSpore's datasets that hold code, or objects with code, of the program."""

_MOST, _DEPTH, _LARGE = 4096, 6, 1 << 16
"""Where looking ends: values, depth of nesting, bytes or members of one value."""

_PLAIN = (bool, int, float, complex, str, bytes, type(None), itertools.count)
_GENERATORS = (np.random.Generator, np.random.RandomState, random.Random)
_GLOBAL = (getattr(random, "_inst", None), np.random.mtrand._rand)
"""The generators that `ms_recover.training.generators` looks after."""
_WRAPPERS = ("_GeneratorWrapper", "_PickleGeneratorSource", "FuncWrapper")
"""Classes of MindSpore that hold objects of the program; its other objects remember nothing of a program."""
_NOT_OURS = ("implementation",)
"""Attributes that MindSpore gives to objects of the program."""


class SampleMemory:
    """Notes what the code of a dataset holds when a training begins, to see later what it remembers.

    Parameters
    ----------
    dataset : Dataset
        The dataset, before its first sample is read.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self._begun = held_values(dataset)

    def changed(self) -> dict[str, str]:
        """Return the values that have changed since, by their places, each with the digest that it began with."""
        now = held_values(self._dataset)
        return {place: digest for place, digest in self._begun.items() if now.get(place, digest) != digest}

    def differs(self, begun: Mapping[str, str]) -> list[str]:
        """Return the places at which another training, by `changed` of it, began with other values."""
        return sorted(place for place, digest in begun.items() if self._begun.get(place, digest) != digest)


def called_by_threads(dataset: Any) -> bool:
    """Whether several threads of this process call the code of a dataset, in an order that nobody fixes."""
    return any(
        list(_code_of(node))
        and not getattr(node, "python_multiprocessing", False)
        and (getattr(node, "num_parallel_workers", None) or ds.config.get_num_parallel_workers()) > 1
        for node in nodes(dataset)
    )


def nodes(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those that it is made from."""
    waiting = [dataset]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += list(getattr(node, "children", None) or ())


def held_values(dataset: Any) -> dict[str, str]:
    """Return digests of the values that the code of a dataset can remember something in, by their places."""
    looked = _Look()
    for node in nodes(dataset):
        for one in _code_of(node):
            looked.at(one, _name(one), 0)
    return looked.found


def _code_of(node: Any) -> Iterator[Any]:
    """Yield the program's code in one dataset; none of MindSpore's own operations."""
    for name in _CODE:
        value = getattr(node, name, None)
        for one in value if name == "operations" and isinstance(value, list) else [value]:
            if one is not None and not _is_theirs(one):
                yield one


def _is_theirs(one: Any) -> bool:
    kind = type(one)
    return kind.__module__.startswith("mindspore.") and kind.__name__ not in _WRAPPERS


def _name(one: Any) -> str:
    return str(getattr(one, "__qualname__", type(one).__qualname__))


class _Look:
    """Follows references from the program's code, each object once."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}
        self._seen: dict[int, Any] = {}

    def at(self, one: Any, place: str, depth: int) -> None:
        """Note what an object holds, in place of a name that is its own."""
        if depth > _DEPTH or len(self._seen) >= _MOST or id(one) in self._seen:
            return
        if isinstance(one, _PLAIN):
            self._note(place, f"{len(one)}" if isinstance(one, (str, bytes)) and len(one) > _LARGE else repr(one))
            return
        self._seen[id(one)] = one
        if isinstance(one, _GENERATORS):
            if not any(one is known for known in _GLOBAL):
                self._note(place, _generator_state(one))
        elif isinstance(one, np.ndarray):
            self._note(place, f"{one.shape}" if one.dtype.hasobject or one.nbytes > _LARGE else one.tobytes())
        else:
            with suppress(AttributeError, RuntimeError, TypeError):  # another thread has changed it just now
                above = _name(one) if isinstance(one, FunctionType) else place
                for name, value in self._members(one, place):
                    self.at(value, f"{above}{name}", depth + 1)

    def _note(self, place: str, value: str | bytes) -> None:
        while place in self.found:
            place += "'"
        data = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
        self.found[place] = hashlib.blake2b(data, digest_size=8).hexdigest()

    def _members(self, one: Any, place: str) -> Iterator[tuple[str, Any]]:
        if isinstance(one, (type, ModuleType, BuiltinFunctionType)) or _is_theirs(one):
            return
        if isinstance(one, FunctionType):
            yield from _references(one)
        elif isinstance(one, MethodType):
            yield "", one.__self__
            yield "", one.__func__
        elif isinstance(one, functools.partial):
            yield "", one.func
            yield "", [*one.args, *one.keywords.values()]
        elif isinstance(one, (list, tuple, set, frozenset, deque, dict)):
            self._note(f"len({place})", str(len(one)))
            if len(one) <= 64 and not isinstance(one, (set, frozenset)):
                pairs = list(one.items()) if isinstance(one, dict) else list(enumerate(one))
                yield from ((f"[{key!r}]" if isinstance(key, _PLAIN) else "[]", value) for key, value in pairs)
        else:
            held = dict(getattr(one, "__dict__", None) or {})
            slots = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
            held |= {name: getattr(one, name) for name in slots if isinstance(name, str) and hasattr(one, name)}
            yield from ((f".{name}", value) for name, value in held.items() if name not in _NOT_OURS)


def _generator_state(one: Any) -> str:
    """Return the state of a generator of random numbers."""
    if isinstance(one, np.random.Generator):
        return repr(one.bit_generator.state)
    if isinstance(one, np.random.RandomState):
        return repr([part.tobytes() if isinstance(part, np.ndarray) else part for part in one.get_state()])
    return repr(one.getstate())


def _references(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield what a function refers to beyond its arguments: variables around it, defaults, and global ones."""
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        with suppress(ValueError):  # not yet bound
            yield f": {name}", cell.cell_contents
    yield "", [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    if not function.__module__.startswith("mindspore."):
        for name in _global_names(function.__code__):
            if name in function.__globals__:
                yield f": {name}", function.__globals__[name]


def _global_names(code: CodeType) -> list[str]:
    inner = [name for one in code.co_consts if isinstance(one, CodeType) for name in _global_names(one)]
    return [*code.co_names, *inner]
