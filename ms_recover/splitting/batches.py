"""A batch cut into chunks of rows, and the outputs of the chunks joined again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ms_recover.errors import UsageError
from ms_recover.splitting.events import Rows
from ms_recover.splitting.nested import flatten, is_leaf, unflatten
from ms_recover.tensors.arrays import array_of, to_host, to_tensor
from ms_recover.tensors.memory import is_tensor
from ms_recover.worlds.schedules import chunks


class Batch:
    """The arguments of a call, to be cut into chunks of rows.

    Tensors become numpy arrays on their memory if numpy has the element type. Raises UsageError when an argument is
    invalid, or the tensors, apart from those in `Shared`, have no common length of axis 0.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._shared: set[int] = set()
        self._skeleton, leaves = flatten((tuple(args), dict(kwargs)), self._shared)
        self.tensors = [leaf for leaf in leaves if is_tensor(leaf)]
        """The tensors of MindSpore as they were given."""
        self._leaves = [to_host(leaf) for leaf in leaves]
        self.rows = _common_rows([tuple(leaf.shape) for index, leaf in self._cuttable()])
        """Length of axis 0."""

    def cut(self, start: int, stop: int) -> tuple[Any, list[Any]]:
        """Return the call with rows `start` to `stop` of each tensor, taken apart as by `nested.flatten`.

        Of an empty batch it has one row of zeros: operators need not know tensors without any.
        """
        leaves = list(self._leaves)
        for index, leaf in self._cuttable():
            leaves[index] = leaf[start:stop] if self.rows else _one_row(leaf)
        return self._skeleton, leaves

    def join(self, outputs: Sequence[Any], rows: Sequence[int]) -> Any:
        """Join the outputs of chunks as `join`; the output of an empty batch loses its one row."""
        if self.rows:
            return join(outputs, rows)
        skeleton, leaves = flatten(join(outputs, [1]))
        return unflatten(skeleton, [to_tensor(to_host(leaf)[:0]) for leaf in leaves])

    def keep(self) -> None:
        """Take copies of the tensors: the caller may change his."""
        self._leaves = [leaf.copy() for leaf in self._leaves]

    def _cuttable(self) -> list[tuple[int, Any]]:
        return [(index, leaf) for index, leaf in enumerate(self._leaves) if index not in self._shared]


class Whole:
    """A call that is not cut: its output need not have the batch as axis 0.

    The arguments are as of `Batch`; `single` is for a part that is not the first, which gets one value.
    """

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], *, single: bool) -> None:
        if single and (len(args) != 1 or kwargs):
            raise UsageError("this part takes one argument, the output of the part before")
        self._skeleton, leaves = flatten(args[0] if single else (tuple(args), dict(kwargs)), set())
        self.tensors = [leaf for leaf in leaves if is_tensor(leaf)]
        """The tensors of MindSpore as they were given."""
        self._leaves = [to_host(leaf) for leaf in leaves]
        self.rows = next((leaf.shape[0] for leaf in self._leaves if leaf.shape), 0)
        """Length of axis 0 of the first tensor that has one."""

    def cut(self, start: int, stop: int) -> tuple[Any, list[Any]]:
        """Return the call, taken apart as by `nested.flatten`."""
        return self._skeleton, list(self._leaves)

    def join(self, outputs: Sequence[Any], rows: Sequence[int]) -> Any:
        """Return the only output."""
        skeleton, leaves = flatten(outputs[0])
        return unflatten(skeleton, [to_tensor(leaf) for leaf in leaves])


def join(pieces: Sequence[Any], rows: Sequence[int], where: str = "output") -> Any:
    """Join the outputs of chunks, in order, along axis 0; `rows` are the numbers of their input rows.

    The tensors of the result are of type ``mindspore.Tensor`` and have the outputs' element type. Raises UsageError
    when axis 0 of a tensor differs from its chunk's rows, or pieces differ in anything but their rows.
    """
    first = pieces[0]
    if all(map(is_leaf, pieces)):
        return _concatenate(pieces, rows, where)
    for kind in (tuple, list):
        if all(isinstance(piece, kind) for piece in pieces) and len({len(piece) for piece in pieces}) == 1:
            columns = enumerate(zip(*pieces, strict=True))
            return kind(join(column, rows, f"{where}[{index}]") for index, column in columns)
    if all(isinstance(piece, dict) and piece.keys() == first.keys() for piece in pieces):
        return {key: join([piece[key] for piece in pieces], rows, f"{where}[{key!r}]") for key in first}
    if any(isinstance(piece, tuple | list | dict) or is_leaf(piece) for piece in pieces):
        raise UsageError(f"{where} cannot be joined: its structure differs between chunks of the batch")
    # NaN equals NaN here
    if all(type(piece) is type(first) and (piece == first or repr(piece) == repr(first)) for piece in pieces):
        return first
    raise UsageError(
        f"{where} is {first!r:.40} for one chunk of the batch and something else for another: only tensors can differ, "
        "with the batch as axis 0"
    )


def plan_chunks(rows: int, most: int, least_rows: int = 16) -> list[Rows]:
    """Cut rows into at most `most` chunks whose sizes differ by at most one, longer ones first.

    No chunk has fewer than `least_rows`, unless the batch has. On CPU, MindSpore's matrix multiplication sums in
    another order for fewer than 16 rows; from there on chunks give the output of the whole batch, for most shapes to
    the bit.
    """
    count = max(1, min(most, rows // least_rows))
    return chunks(rows, count)


def _common_rows(shapes: Sequence[tuple[int, ...]]) -> int:
    advice = "wrap arguments that every chunk needs whole in Shared"
    if not shapes:
        raise UsageError("the call has no tensor to cut into chunks: give one with the batch as axis 0")
    if () in shapes:
        raise UsageError(f"a tensor of the call has no axes and cannot be cut into chunks: {advice}")
    rows = {shape[0] for shape in shapes}
    if len(rows) > 1:
        raise UsageError(f"tensors of shapes {', '.join(map(str, shapes))} differ in axis 0, the batch: {advice}")
    return rows.pop()


def _one_row(leaf: Any) -> Any:
    """Return a row of zeros like those of a tensor without rows."""
    shape = (1, *tuple(leaf.shape)[1:])
    if isinstance(leaf, np.ndarray):
        return np.zeros(shape, leaf.dtype)
    import mindspore as ms

    return ms.ops.zeros(shape, leaf.dtype)


def _concatenate(pieces: Sequence[Any], rows: Sequence[int], where: str) -> Any:
    for piece, count in zip(pieces, rows, strict=True):
        shape = tuple(piece.shape)
        if not shape or shape[0] != count:
            raise UsageError(
                f"{where} has shape {shape} for a chunk of {count} rows: every tensor of the output needs the batch as "
                "axis 0"
            )
    types = {(str(piece.dtype).lower(), tuple(piece.shape)[1:]) for piece in pieces}
    if len(types) > 1:
        listed = ", ".join(f"{dtype} {shape}" for dtype, shape in sorted(types, key=str))
        raise UsageError(f"rows of {where} differ in element type or shape between chunks: {listed}")
    arrays = [array_of(piece) for piece in pieces]
    if any(array is None for array in arrays):
        import mindspore as ms

        return pieces[0] if len(pieces) == 1 else ms.ops.concat(pieces, 0)
    return to_tensor(np.concatenate(arrays))
