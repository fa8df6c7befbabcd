"""The values of a slice: written straight from the memory of tensors, and read into it, one after the other.

MindSpore's own functions hold several copies of a slice while they write or read it; a part may take most of a
process's memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from ms_recover.errors import FormatError, UsageError
from ms_recover.execution.write_slice import write_slice
from ms_recover.formats.dtypes import ITEM_SIZES
from ms_recover.formats.header import read_header
from ms_recover.formats.reading import open_regular
from ms_recover.model.manifest import Digests
from ms_recover.model.slices import ByteRange, Parameter
from ms_recover.splitting.stages import MARK
from ms_recover.tensors.memory import bytes_of, memory_of, set_value, tensor_over

_READ = 16 << 20
"""Bytes that are read at once."""


def write_values(values: Mapping[str, Any], path: str) -> Digests:
    """Write a slice of these tensors, byte for byte as MindSpore would, and return its digests.

    The values must not change meanwhile. Raises UsageError when a type cannot be saved, and OSError when the file
    system refuses.
    """
    described = [_describe(name, value) for name, value in values.items()]
    return write_slice(path, "ckpt", described, [bytes_of(value) for value in values.values()])


class SliceFile:
    """The values of a slice on the disk; one at a time is in memory. Raises FormatError when it is not whole."""

    def __init__(self, path: str) -> None:
        self.path = path
        header = read_header(path)
        if header.problems:
            raise FormatError(f"{path} is not whole: {header.problems[0]}")
        pairs = zip(header.parameters, header.contents, strict=True)
        self._places = {parameter.name: (parameter, ranges) for parameter, ranges in pairs}

    @property
    def parameters(self) -> dict[str, Parameter]:
        """Name, type, shape and size of each value, by name."""
        return {name: parameter for name, (parameter, _) in self._places.items()}

    @property
    def weights(self) -> list[str]:
        """The names of the weights; behind them lies the mark of the part."""
        return list(self._places)[: self._mark]

    @property
    def others(self) -> list[str]:
        """The names of the values behind the mark: the state of the part's optimizer."""
        return list(self._places)[self._mark + 1 :]

    @property
    def _mark(self) -> int:
        for place, name in enumerate(self._places):
            if name.startswith(MARK):
                return place
        raise FormatError(f"{self.path} is no slice of a splitter: it has no value {MARK}N")

    def read(self, name: str) -> Any:
        """Return a value as tensor; UsageError when there is none of this name."""
        parameter, _ = self._place(name)
        data = np.empty(parameter.nbytes, np.uint8)
        self._read(name, data.data)
        try:
            return tensor_over(parameter.dtype, parameter.shape, data)
        except TypeError:
            raise FormatError(
                f"{self.path}: {name} is of type {parameter.dtype}, of which there are no tensors"
            ) from None

    def fill(self, name: str, tensor: Any) -> None:
        """Set a tensor to a value, in the memory that it has; FormatError when type or shape differ."""
        parameter, _ = self._place(name)
        if parameter.dtype != str(tensor.dtype) or parameter.shape != tuple(tensor.shape):
            raise FormatError(
                f"{self.path} has {name} as {parameter.dtype} {list(parameter.shape)}, "
                f"expected {tensor.dtype} {list(tensor.shape)}"
            )
        memory = memory_of(tensor)
        if memory is not None and memory.flags.c_contiguous:
            self._read(name, memory.reshape(-1).view(np.uint8).data)
        else:
            set_value(tensor, self.read(name))

    def _place(self, name: str) -> tuple[Parameter, tuple[ByteRange, ...]]:
        try:
            return self._places[name]
        except KeyError:
            raise UsageError(f"{self.path} has no value {name!r}") from None

    def _read(self, name: str, memory: memoryview) -> None:
        with open_regular(self.path, "a slice") as (descriptor, _):
            for place in self._place(name)[1]:
                at = place.start
                while at < place.end:
                    count = os.preadv(descriptor, [memory[: min(_READ, place.end - at)]], at)
                    if not count:
                        raise FormatError(f"{self.path} ends within {name}: somebody has cut it")
                    memory, at = memory[count:], at + count


def _describe(name: str, value: Any) -> Parameter:
    dtype, shape = str(value.dtype), tuple(value.shape)
    if dtype not in ITEM_SIZES or dtype in ("Int4", "str"):
        raise UsageError(f"{name} is of type {dtype}, which slices cannot hold")
    return Parameter(name=name, dtype=dtype, shape=shape, nbytes=prod(shape) * ITEM_SIZES[dtype])
