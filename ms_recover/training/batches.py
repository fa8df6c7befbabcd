"""The digest of a batch: what a state file keeps of the last one that was trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ms_recover.stores.digest import digest_of
from ms_recover.tensors.memory import bytes_of, is_tensor

MOST_BYTES = 64 << 20
"""Bytes of a batch that are digested, from its first column on; of later ones types and shapes are compared."""


@dataclass(frozen=True)
class Column:
    """One column of a batch.

    Parameters
    ----------
    dtype : str
        The type of its values.
    shape : tuple of int
        Its shape, with the batch in front.
    digest : str
        Of its bytes, empty behind `MOST_BYTES`.
    place : str
        Its name where the batch is a dict, otherwise empty.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: str
    place: str = ""

    @property
    def text(self) -> str:
        """Type and shape in words."""
        return f"{self.dtype} {list(self.shape)}"


def digest_batch(batch: Any) -> tuple[Column, ...]:
    """Return the digests of a batch: of a tensor, an array, a number or a text, or of lists, tuples and dicts of them.

    Values of other types are compared by their types alone.
    """
    columns, left = [], MOST_BYTES
    for place, value in _leaves(batch, ""):
        dtype, shape, data = _described(value)
        part = data[:left]
        columns.append(Column(dtype, shape, digest_of(part) if left > 0 or not len(data) else "", place))
        left -= len(part)
    return tuple(columns)


def to_record(columns: Sequence[Column]) -> list[Any]:
    """Return digests of a batch as a state file holds them."""
    return [[one.dtype, list(one.shape), one.digest, one.place] for one in columns]


def from_record(record: Any) -> tuple[Column, ...]:
    """Return digests that a state file holds."""
    return tuple(Column(dtype, tuple(shape), digest, place) for dtype, shape, digest, place in record)


def difference(before: Sequence[Column], now: Sequence[Column], names: Sequence[str] = ()) -> str | None:
    """Return how a batch differs from another one, as a clause that names its columns; None where it does not.

    `names` are those of the columns, as far as they are known.
    """
    if len(before) != len(now):
        return f"it has {len(now)} column(s), and had {len(before)}"
    texts = []
    for index, (old, new) in enumerate(zip(before, now, strict=True)):
        if old == new:
            continue
        name = new.place or (names[index] if index < len(names) else "")
        column = f"column {name!r}" if name else f"column {index + 1}"
        if (old.dtype, old.shape, old.place) != (new.dtype, new.shape, new.place):
            texts.append(f"{column} is {new.text}, and was {old.text}")
        else:
            texts.append(f"{column} has other values")
    return "; ".join(texts) or None


def _leaves(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _leaves(value[key], f"{place}[{key!r}]" if place else str(key))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one, place)
    else:
        yield place, value


def _described(value: Any) -> tuple[str, tuple[int, ...], memoryview]:
    """Return type, shape and bytes of a value of a batch."""
    if is_tensor(value):
        return str(value.dtype), tuple(value.shape), bytes_of(value)
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        if array.dtype.kind in "USO":
            return array.dtype.kind, array.shape, memoryview(repr(array.tolist()).encode("utf-8", "surrogatepass"))
        return str(array.dtype), array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    if isinstance(value, (bool, int, float, complex, str, bytes)):
        return type(value).__name__, (), memoryview(repr(value).encode("utf-8", "surrogatepass"))
    return type(value).__name__, (), memoryview(b"")
