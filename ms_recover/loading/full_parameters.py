"""Whole parameters of one step as a mapping: put together out of the slices of all ranks when they are asked for."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from ms_recover.errors import UnrecoverableError, UsageError
from ms_recover.execution.context import ActionContext
from ms_recover.execution.piece_reader import PieceReader
from ms_recover.execution.sources import BadSourceError
from ms_recover.loading.kinds import Kind, values_module
from ms_recover.loading.whole_source import WholeSource
from ms_recover.model.compose import MissingRegion
from ms_recover.model.slices import Parameter
from ms_recover.model.texts import list_some
from ms_recover.planning.supply.whole import EVERY_PARAMETER
from ms_recover.stores.fill import take_memory
from ms_recover.stores.urls import open_store

_log = logging.getLogger(__name__)


class FullParameters(Mapping[str, Any]):
    """The whole parameters of one step: a mapping, and a context manager; threads may share it.

    Each access reads and composes again: keep what is needed twice. Beside the parameter that takes a few MiB.

    Attributes
    ----------
    root : str
        The tree, or its URL without secrets.
    step : Step or None
        The step that is read; None of a checkpoint of whole parameters where no manifest states it.
    missing : dict of str to tuple of MissingRegion
        The parameters that nobody holds whole, with the regions that are lost; asking for one raises.
    lost : tuple of MissingRegion
        Pipeline stages of which nothing is left, not even the names of their parameters.
    own : tuple of str
        Parameters of which each rank has values of its own, such as random states; those of rank 0 are given.
    rejected_steps : tuple of RejectedStep
        Newer steps, and the reasons why this one was taken.
    """

    def __init__(self, source: WholeSource, kind: Kind) -> None:
        self.root, self.step, self.rejected_steps = source.root, source.step, source.rejected_steps
        self.lost, self.own, self.missing = source.lost, source.own, dict(source.missing)
        items = {item.parameter.name: item for item in source.action.parameters}
        self._items = {name: None if name in self.missing else items[name] for name in source.names}
        self._source, self._kind = source, kind
        self._said: set[str] = set()
        self._lock, stack = threading.Lock(), ExitStack()
        self._close = weakref.finalize(self, stack.close)  # also where nobody calls close
        origin = stack.enter_context(open_store(source.root))
        reader = PieceReader(source.action, ActionContext(tree=origin), source.names_there)
        self._reader: PieceReader | None = stack.enter_context(reader)

    def __enter__(self) -> FullParameters:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the slices; what was given before stays. Asking for more is a UsageError then."""
        with self._lock:
            self._reader = None
            self._close()

    def __getitem__(self, name: str) -> Any:
        """Return a whole parameter; see `numpy` and `mindspore`."""
        return self.mindspore(name) if self._kind == "mindspore" else self.numpy(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: object) -> bool:
        return name in self._items

    def __repr__(self) -> str:
        return f"<{len(self)} whole parameters of {self._source.title}>"

    def dtype(self, name: str) -> str:
        """Return MindSpore's name of a parameter's type, such as ``Float32``; nothing is read. A KeyError as usual."""
        return self._description(name)[0]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole parameter; nothing is read. Errors as for `dtype`."""
        return self._description(name)[1]

    def _description(self, name: str) -> tuple[str, tuple[int, ...]]:
        self._check(name)
        if name not in self._source.described:
            raise self._why_missing(name)
        return self._source.described[name]

    def numpy(self, name: str) -> Any:
        """Return a parameter as a numpy array that nothing else uses, a string as str.

        ``BFloat16`` becomes ``ml_dtypes.bfloat16`` where that package is installed, else ``float32`` with the same
        values.

        Raises
        ------
        KeyError
            When there is no parameter of that name.
        UnrecoverableError
            When nobody holds all of it.
        VerificationError
            When slices are not what their manifests say, and no other slice holds the same.
        StorageError
            When they cannot be read.
        UsageError
            When this is closed, or numpy is not installed.
        """
        return values_module("numpy").value_of(*self._composed(name))

    def mindspore(self, name: str) -> Any:
        """Return a ``mindspore.Parameter`` over memory that nothing else uses; errors as for `numpy`."""
        return values_module("mindspore").value_of(*self._composed(name))

    def _composed(self, name: str) -> tuple[Parameter, memoryview]:
        self._check(name)
        item = self._items[name]
        if item is None:
            raise self._why_missing(name)
        (memory,) = take_memory([item.parameter.nbytes])
        with self._lock:
            if self._reader is None:
                raise UsageError(f"{name!r}: the parameters of {self.root} were closed; open them again with load_full")
            try:
                self._reader.attempt(partial(self._reader.fill, item, memory), self._warn)
                self._reader.check_unchanged()
            finally:
                self._reader.try_again()
        return item.parameter, memory

    def _warn(self, failure: BadSourceError) -> None:
        """Say once that a slice proved bad; another one that holds the same takes its place."""
        if str(failure) not in self._said:
            _log.warning("%s", failure)
        self._said.add(str(failure))

    def _check(self, name: str) -> None:
        if name not in self._items:
            more = f", or it is lost: {_texts(self.lost)}" if self.lost else ""
            raise KeyError(f"{name!r}: there is no such parameter in {self._source.title}{more}")

    def _why_missing(self, name: str) -> UnrecoverableError:
        where = self.root if self.step is None else f"{self.root}, step {self.step}"
        return UnrecoverableError(
            f"{where}: nobody holds all of {name!r}: {_texts(self.missing[name])}; {self._source.advice}"
        )


def _texts(regions: Iterable[MissingRegion]) -> str:
    found = []
    for one in regions:
        box = ", ".join(f"{start}:{stop}" for start, stop in one.region)
        name = one.parameter if one.parameter.startswith(EVERY_PARAMETER) else f"region [{box}], {one.bytes} bytes"
        found.append(f"{name} ({one.reason})" if one.bytes or name == one.parameter else one.reason)
    return list_some(found, separator="; ")
