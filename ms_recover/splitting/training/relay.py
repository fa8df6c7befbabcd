"""Tensors on their way from a part to its neighbour, in shared memory (in a worker).

A part writes them into a piece of memory that the splitter holds open, and answers with their layout, which goes to the
neighbour with its order. No socket carries activations or their gradients.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ms_recover.splitting.shared_memory import Mapped, places_of
from ms_recover.worlds.tensors import Raw, copied, raw, to_array, to_tensor

Layout = Sequence[tuple[str, Sequence[int], int, int]]
"""For each tensor its type, shape, offset and number of bytes."""


def put(path: str, leaves: Sequence[Any]) -> Layout:
    """Copy tensors into a piece of shared memory; return where they lie."""
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
