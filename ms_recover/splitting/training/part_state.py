"""The values of a part in training, in a worker: where they lie, and their way to and from shared memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import xxhash

from ms_recover.errors import FormatError
from ms_recover.splitting.shared_memory import Mapped, places_of
from ms_recover.splitting.stages import ModelPart, parameters_of
from ms_recover.splitting.values import SliceFile
from ms_recover.stores.digest import name_digest
from ms_recover.tensors.memory import host_bytes, set_bytes


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
        self._places, self._size = places_of(host_bytes(parameter).nbytes for parameter in self._parameters)
        for (kind, name, parameter), place in zip(found, self._places, strict=True):
            self.layout.append(
                {
                    "kind": kind,
                    "name": name,
                    "dtype": str(parameter.dtype).lower(),
                    "shape": list(parameter.shape),
                    "offset": place.start,
                    "size": place.stop - place.start,
                }
            )

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
            for place, parameter in zip(self._places, self._parameters, strict=True):
                np.copyto(memory.array[place], host_bytes(parameter))
                digest.update(memory.array[place].data)
        return name_digest(digest)

    def load(self, path: str, digest: str) -> None:
        """Set the values in the memory that they have; bytes that are not those that were saved raise FormatError."""
        found = xxhash.xxh3_128()
        with Mapped(path) as memory:
            if len(memory.array) != self._size:
                raise FormatError(f"a snapshot has {len(memory.array)} bytes, expected {self._size} for this part")
            values = [memory.array[place] for place in self._places]
            for value in values:
                found.update(value.data)
            if name_digest(found) != digest:
                raise FormatError("a snapshot in memory has other bytes than were saved: check this machine's memory")
            set_bytes(self._parameters, values)


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
