"""The values of a part in training, in a worker: where they lie, and their way to and from shared memory."""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from ms_recover.errors import FormatError
from ms_recover.splitting.stages import ModelPart, parameters_of
from ms_recover.splitting.values import SliceFile
from ms_recover.stores.digest import name_digest
from ms_recover.tensors.memory import memory_of

Bytes = npt.NDArray[np.uint8]
_ALIGN = 64


class PartState:
    """All values of a part, in order: the weights (and other parameters) of its stages, then those of its optimizer.

    The weights have the names of the part's slice, in the slice's order; the optimizer's values follow in the order of
    its ``parameters_and_names()``, without the weights, by their own names (``moment1.0.weight``, ``global_step``).
    """

    def __init__(self, part: ModelPart, optimizer: Any) -> None:
        weights = parameters_of(part.stages)
        found = [("weights", name, parameter) for name, parameter in weights.items()]
        own = {} if optimizer is None else values_of(optimizer, list(weights.values()))
        found += [("optimizer", name, parameter) for name, parameter in own.items()]
        self._parameters = [parameter for _, _, parameter in found]
        self.others = {name_in_slice(name, weights): parameter for name, parameter in own.items()}
        """The values that are no weights of the part, by their names in its slice."""
        self.layout: list[dict[str, Any]] = []
        """For each value ``kind``, ``name``, ``dtype``, ``shape``, ``offset``, ``size``."""
        offset = 0
        for kind, name, parameter in found:
            size = bytes_of(parameter).nbytes
            self.layout.append(
                {
                    "kind": kind,
                    "name": name,
                    "dtype": str(parameter.dtype).lower(),
                    "shape": list(parameter.shape),
                    "offset": offset,
                    "size": size,
                }
            )
            offset += -(-size // _ALIGN) * _ALIGN
        self._size = max(offset, 1)

    def fill(self, file: SliceFile) -> None:
        """Set the values that are no weights to those of a slice; those of another optimizer raise FormatError."""
        if set(file.others) != set(self.others):
            raise FormatError(
                f"{file.path} has the state of another optimizer: {len(file.others)} values, expected "
                f"{len(self.others)} with other names"
            )
        for name, parameter in self.others.items():
            file.fill(name, parameter)

    def save(self, path: str) -> str:
        """Copy the values to shared memory; return the digest of all bytes."""
        digest = xxhash.xxh3_128()
        with Mapped(path, self._size) as memory:
            for entry, parameter in zip(self.layout, self._parameters, strict=True):
                into = memory.array[entry["offset"] : entry["offset"] + entry["size"]]
                np.copyto(into, bytes_of(parameter))
                digest.update(into.data)
        return name_digest(digest)

    def load(self, path: str, digest: str) -> None:
        """Set the values in the memory that they have; bytes that are not those that were saved raise FormatError."""
        found = xxhash.xxh3_128()
        with Mapped(path) as memory:
            if len(memory.array) != self._size:
                raise FormatError(f"a snapshot has {len(memory.array)} bytes, expected {self._size} for this part")
            places = [memory.array[entry["offset"] : entry["offset"] + entry["size"]] for entry in self.layout]
            for place in places:
                found.update(place.data)
            if name_digest(found) != digest:
                raise FormatError("a snapshot in memory has other bytes than were saved: check this machine's memory")
            for place, parameter in zip(places, self._parameters, strict=True):
                np.copyto(bytes_of(parameter), place)


def values_of(optimizer: Any, weights: Sequence[Any]) -> dict[str, Any]:
    """Return the values of an optimizer that are none of these weights, in order, by names of their own."""
    known = {id(weight) for weight in weights}
    found: dict[str, Any] = {}
    for _, parameter in optimizer.parameters_and_names():
        if id(parameter) not in known:
            name, count = parameter.name, 1
            while name in found:
                name, count = f"{parameter.name}_{count}", count + 1
            found[name] = parameter
    return found


def name_in_slice(name: str, weights: Collection[str]) -> str:
    """Return the name that a value of an optimizer has in the slice of a part with these weights."""
    return f"optimizer.{name}" if name in weights else name


class Mapped:
    """Shared memory mapped into this process; it grows to a `size` if it is smaller."""

    def __init__(self, path: str, size: int | None = None) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            if size is not None and os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self.array: Bytes = np.frombuffer(self._map, np.uint8)

    def __enter__(self) -> Mapped:
        return self

    def __exit__(self, *_: object) -> None:
        self.array = np.empty(0, np.uint8)
        # the map ends with the last array on it


def bytes_of(parameter: Any) -> Bytes:
    """Return the bytes of a parameter in host memory, to read and to write."""
    memory = memory_of(parameter)
    found: Bytes = (parameter.asnumpy() if memory is None else memory).reshape(-1).view(np.uint8)
    return found


def copies_of(parameters: Sequence[Any]) -> list[Bytes]:
    """Return copies of the bytes of parameters."""
    return [bytes_of(parameter).copy() for parameter in parameters]
