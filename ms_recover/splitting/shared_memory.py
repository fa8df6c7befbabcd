"""Memory that outlives a worker: snapshots of the parts, and tensors on their way from one worker to another.

Each piece is an unnamed file in memory that the splitter's process holds open; workers reach it under ``/proc`` and map
it (`Mapped`). It costs one copy, no socket, and is gone with the processes, however they end. A part has two pieces for
its snapshots, used in turns: while one is written, the other holds the last complete snapshot.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ms_recover.worlds.tensors import Raw, copied, raw, to_array, to_tensor

_ALIGN = 64
Layout = Sequence[tuple[str, Sequence[int], int, int]]
"""For each tensor its type, shape, offset and number of bytes."""


class Mapped:
    """A piece of shared memory, mapped into this process; it grows to a `size` if it is smaller."""

    def __init__(self, path: str, size: int | None = None) -> None:
        descriptor = os.open(path, os.O_RDWR)
        try:
            if size is not None and os.fstat(descriptor).st_size < size:
                os.ftruncate(descriptor, size)
            self._map = mmap.mmap(descriptor, 0)
        finally:
            os.close(descriptor)
        self.array: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8)

    def __enter__(self) -> Mapped:
        return self

    def __exit__(self, *_: object) -> None:
        self.array = np.empty(0, np.uint8)
        # the map ends with the last array on it


def places_of(sizes: Iterable[int]) -> tuple[list[slice], int]:
    """Return where values of these sizes lie in a piece, one after the other, and the size of the piece, never 0."""
    places, end = [], 0
    for size in sizes:
        places.append(slice(end, end + size))
        end += -(-size // _ALIGN) * _ALIGN
    return places, max(end, 1)


def put(path: str, leaves: Sequence[Any]) -> Layout:
    """Copy tensors into a piece, for another worker; return where they lie: no socket carries activations."""
    sources = [raw(leaf) for leaf in leaves]
    places, size = places_of(len(source.data) for source in sources)
    with Mapped(path, size) as memory:
        for source, place in zip(sources, places, strict=True):
            np.copyto(memory.array[place], np.frombuffer(source.data, np.uint8))
    return [
        (source.dtype, source.shape, place.start, len(source.data))
        for source, place in zip(sources, places, strict=True)
    ]


def take(path: str, layout: Layout) -> list[Any]:
    """Return copies of the tensors that `put` left there: numpy arrays, those of type bfloat16 as tensors."""
    with Mapped(path) as memory:
        found = [
            copied(Raw(dtype, tuple(shape), memory.array[start : start + size].data))
            for dtype, shape, start, size in layout
        ]
    return [to_tensor(each) if each.dtype == "bfloat16" else to_array(each) for each in found]


@dataclass(frozen=True)
class PartSnapshot:
    """The values of one part at a step."""

    step: int
    path: str
    digest: str
    """Of all bytes."""
    layout: tuple[Mapping[str, Any], ...]
    """For each value ``name``, ``kind`` (``weights`` or ``optimizer``), ``dtype``, ``shape``, ``offset``, ``size``."""

    def fields(self) -> dict[str, Any]:
        """Return what a worker needs to load it."""
        return {"path": self.path, "digest": self.digest, "step": self.step}

    def values(self) -> Iterator[tuple[Mapping[str, Any], Raw]]:
        """Return each value with its description, one at a time; its bytes are valid until the next one is taken."""
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped, memoryview(mapped) as view:
                for entry in self.layout:
                    with view[entry["offset"] : entry["offset"] + entry["size"]] as data:
                        yield entry, Raw(entry["dtype"], tuple(entry["shape"]), data)
        finally:
            os.close(descriptor)


class SharedMemory:
    """Pieces of memory by name, each made when it is first asked for."""

    def __init__(self) -> None:
        self._descriptors: dict[tuple[Any, ...], int] = {}

    def path(self, *name: Any) -> str:
        """Return the path of a piece."""
        if name not in self._descriptors:
            self._descriptors[name] = os.memfd_create("ms_recover.splitting", os.MFD_CLOEXEC)
        return f"/proc/{os.getpid()}/fd/{self._descriptors[name]}"

    def keep(self, kind: str, names: Sequence[tuple[Any, ...]]) -> None:
        """Free the pieces of a kind, their first name, that are not among these."""
        for name in [name for name in self._descriptors if name[0] == kind and name not in names]:
            os.close(self._descriptors.pop(name))

    def close(self) -> None:
        """Free all pieces."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


class Snapshots:
    """The last complete snapshot of all parts."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._turn = 0
        self.current: tuple[PartSnapshot, ...] = ()
        """By part; empty before the first."""

    @property
    def step(self) -> int | None:
        """Step of the snapshot; None before the first."""
        return self.current[0].step if self.current else None

    def weights(self) -> dict[str, Any]:
        """Return the weights in the snapshot, as parameters by name."""
        from mindspore import Parameter

        found = (pair for part in self.current for pair in part.values())
        return {
            entry["name"]: Parameter(to_tensor(copied(value)), name=entry["name"])
            for entry, value in found
            if entry["kind"] == "weights"
        }

    def next_path(self, part: int) -> str:
        """Return where the next snapshot of a part goes."""
        return self._memory.path("snapshot", part, 1 - self._turn)

    def taken(self, parts: Sequence[PartSnapshot]) -> None:
        """Handle a snapshot of all parts: it replaces the one before."""
        self._turn = 1 - self._turn
        self.current = tuple(parts)
