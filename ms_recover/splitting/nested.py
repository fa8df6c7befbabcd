"""Nested inputs and outputs: taken apart for the wire, cut into chunks of rows, joined again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ms_recover.errors import InputError, UsageError
from ms_recover.worlds.tensors import is_tensor

DEEPEST = 64
"""Most containers within each other."""
_NUMBERS = 1 << 63


@dataclass(frozen=True, eq=False)
class Shared:
    """An argument, or a piece of one, that goes whole to every chunk instead of being cut.

    Parameters
    ----------
    value
        Anything that may be an argument.
    """

    value: Any


def flatten(value: Any) -> tuple[Any, list[Any]]:
    """Take a value apart into a skeleton that JSON can hold and the tensors in it.

    In the skeleton None, truth values, whole numbers and texts stand for themselves, everything else is a list that
    starts with its kind: ``["tuple", ...]``, ``["list", ...]``, ``["dict", [key, value], ...]``, ``["tensor", index]``,
    ``["float", hexadecimal]``, ``["complex", hexadecimal, hexadecimal]``.

    Parameters
    ----------
    value
        Tuples (named ones become plain), lists and dicts with text keys, of mindspore.Tensor, numpy arrays, numbers,
        truth values, texts and None.

    Returns
    -------
    skeleton
    leaves : list
        The tensors and arrays themselves, in order.

    Raises
    ------
    UsageError
        When there is something else in it, or it is nested too deeply.
    """
    leaves: list[Any] = []
    return _flatten(value, leaves, 0), leaves


def unflatten(skeleton: Any, leaves: Sequence[Any]) -> Any:
    """Put together what `flatten` took apart; nobody vouches for the skeleton.

    Raises
    ------
    InputError
        When it is no skeleton, or does not name every leaf once and in order.
    """
    unused = iter(range(len(leaves)))
    value = _unflatten(skeleton, leaves, unused, 0)
    if next(unused, None) is not None:
        raise InputError(f"{len(leaves)} tensors came with a description of fewer")
    return value


def rows_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Return the length of axis 0 that all tensors of a call have, but for those in `Shared`.

    Raises
    ------
    UsageError
        When there is no tensor, one without axes, no rows, or lengths differ.
    """
    shapes: list[tuple[int, ...]] = [
        tuple(leaf.shape) for value in (*args, *kwargs.values()) for leaf in _leaves(value, 0)
    ]
    advice = "wrap what goes whole to every chunk in Shared"
    if not shapes:
        raise UsageError("the call has no tensor that could be cut into chunks: give one with the batch as axis 0")
    if () in shapes:
        raise UsageError(f"a tensor of the call has no axes and cannot be cut into chunks: {advice}")
    rows = {shape[0] for shape in shapes}
    if len(rows) > 1:
        raise UsageError(f"tensors of shapes {', '.join(map(str, shapes))} differ in axis 0, the batch: {advice}")
    if rows == {0}:
        raise UsageError("the batch has no rows")
    return rows.pop()


def cut(
    args: Sequence[Any], kwargs: Mapping[str, Any], start: int, stop: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call with rows `start` to `stop` of each tensor, those in `Shared` whole.

    Tensors become numpy arrays on their memory where numpy has the element type.
    """

    def rows(leaf: Any) -> Any:
        array = _array(leaf)
        # a view, unless the array's rows do not lie one after the other
        return leaf[start:stop] if array is None else np.ascontiguousarray(array[start:stop])

    return tuple(_map(value, rows, 0) for value in args), {key: _map(value, rows, 0) for key, value in kwargs.items()}


def join(pieces: Sequence[Any], rows: Sequence[int]) -> Any:
    """Put the outputs of chunks together, in order, along axis 0.

    Parameters
    ----------
    pieces : sequence
        Outputs of the chunks, at least one, of the same structure.
    rows : sequence of int
        Rows of each chunk's input.

    Returns
    -------
    Any
        The same structure; its tensors are of type ``mindspore.Tensor`` and of the outputs' element type.

    Raises
    ------
    UsageError
        When a tensor has not its chunk's rows as axis 0, or pieces differ in anything but their rows.
    """
    if not pieces:
        raise UsageError("there is no output to join")
    return _join(list(pieces), rows, "output", 0)


def to_host(leaf: Any) -> Any:
    """Return a tensor as contiguous numpy array, once it is computed; as it is where numpy has not its element type."""
    array = _array(leaf)
    return leaf if array is None else np.asarray(array, order="C")


def to_tensor(leaf: Any) -> Any:
    """Return a numpy array as ``mindspore.Tensor`` on its memory, where that can be written to; a tensor as it is."""
    if is_tensor(leaf):
        return leaf
    import mindspore as ms

    return ms.Tensor.from_numpy(np.require(leaf, requirements=["C", "W"]))


def plan_chunks(rows: int, most: int, least_rows: int = 16) -> list[tuple[int, int]]:
    """Cut rows into chunks whose sizes differ by at most one.

    Chunks are never below `least_rows`, but for one chunk of a batch that has fewer. On CPU, MindSpore's matrix
    multiplication sums in another order for fewer than 16 rows; from there on chunks give what the whole batch gives,
    for most shapes to the bit.

    Parameters
    ----------
    rows : int
        At least 1.
    most : int
        Most chunks, at least 1.
    least_rows : int
        Rows that make a chunk, at least 1.

    Returns
    -------
    list of tuple of int
        First row and the one behind the last, of each chunk; longer ones first.

    Raises
    ------
    UsageError
        When a number is not positive.
    """
    for name, number in (("rows", rows), ("chunks", most), ("least_rows", least_rows)):
        if number < 1:
            raise UsageError(f"{name} has to be at least 1, not {number}")
    count = max(1, min(most, rows // least_rows))
    size, longer = divmod(rows, count)
    bounds = [index * size + min(index, longer) for index in range(count + 1)]
    return list(pairwise(bounds))


def _is_leaf(value: Any) -> bool:
    return isinstance(value, np.ndarray) or is_tensor(value)


def _check_depth(depth: int) -> None:
    if depth > DEEPEST:
        raise UsageError(f"the value is nested more than {DEEPEST} deep")


def _text_keys(value: Mapping[Any, Any]) -> None:
    for key in value:
        if not isinstance(key, str):
            raise UsageError(f"keys of dicts have to be texts, not {type(key).__name__} ({key!r:.40})")


def _flatten(value: Any, leaves: list[Any], depth: int) -> Any:
    _check_depth(depth)
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        if not -_NUMBERS <= value < _NUMBERS:
            raise UsageError("whole numbers have to fit into 64 bits")
        return int(value)
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, complex):
        return ["complex", value.real.hex(), value.imag.hex()]
    if _is_leaf(value):
        leaves.append(value)
        return ["tensor", len(leaves) - 1]
    if isinstance(value, tuple | list):
        return ["tuple" if isinstance(value, tuple) else "list", *(_flatten(each, leaves, depth + 1) for each in value)]
    if isinstance(value, dict):
        _text_keys(value)
        return ["dict", *([str(key), _flatten(each, leaves, depth + 1)] for key, each in value.items())]
    raise UsageError(
        f"{type(value).__name__} cannot be handed to or from a part of the model: only tensors, numpy arrays, numbers, "
        "texts and None, in tuples, lists and dicts"
    )


def _unflatten(skeleton: Any, leaves: Sequence[Any], unused: Iterator[int], depth: int) -> Any:
    if depth > DEEPEST:
        raise InputError(f"the description of a value is nested more than {DEEPEST} deep")
    if skeleton is None or type(skeleton) in {bool, int, str}:
        return skeleton
    if type(skeleton) is not list or not skeleton or type(skeleton[0]) is not str:
        raise InputError(f"{skeleton!r:.60} describes no value")
    kind, *items = skeleton
    if kind == "tensor" and len(items) == 1 and type(items[0]) is int:
        if next(unused, None) != items[0]:
            raise InputError(f"the description names tensor {items[0]} of {len(leaves)} out of order")
        return leaves[items[0]]
    if kind in {"tuple", "list"}:
        values = [_unflatten(item, leaves, unused, depth + 1) for item in items]
        return tuple(values) if kind == "tuple" else values
    if kind == "dict" and all(type(item) is list and len(item) == 2 and type(item[0]) is str for item in items):
        found = {key: _unflatten(item, leaves, unused, depth + 1) for key, item in items}
        if len(found) != len(items):
            raise InputError("the description of a dict has a key twice")
        return found
    if kind in {"float", "complex"} and len(items) == (1 if kind == "float" else 2):
        numbers = [_number(item) for item in items]
        return numbers[0] if kind == "float" else complex(*numbers)
    raise InputError(f"{skeleton!r:.60} describes no value")


def _number(text: Any) -> float:
    if type(text) is str and len(text) <= 40:
        try:
            return float.fromhex(text)
        except (ValueError, OverflowError):
            pass
    raise InputError(f"{text!r:.60} is no number")


def _leaves(value: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors that are to be cut."""
    _check_depth(depth)
    if _is_leaf(value):
        yield value
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _leaves(each, depth + 1)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _leaves(each, depth + 1)


def _map(value: Any, change: Callable[[Any], Any], depth: int) -> Any:
    """Return a value with its tensors changed, those in `Shared` as they are."""
    _check_depth(depth)
    if isinstance(value, Shared):
        return _map(value.value, lambda leaf: leaf, depth + 1)
    if _is_leaf(value):
        return change(value)
    if isinstance(value, tuple | list):
        values = [_map(each, change, depth + 1) for each in value]
        return tuple(values) if isinstance(value, tuple) else values
    if isinstance(value, dict):
        return {key: _map(each, change, depth + 1) for key, each in value.items()}
    return value


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _array(leaf: Any) -> Any:
    """Return a tensor as numpy array without copying it, or None where numpy has not its element type."""
    if isinstance(leaf, np.ndarray):
        return leaf
    try:
        return leaf.asnumpy()
    except TypeError:  # bfloat16
        return None


def _join(pieces: list[Any], rows: Sequence[int], where: str, depth: int) -> Any:
    _check_depth(depth)
    first = pieces[0]
    if all(map(_is_leaf, pieces)):
        return _concatenate(pieces, rows, where)
    for kind in (tuple, list):
        if all(isinstance(piece, kind) for piece in pieces) and len({len(piece) for piece in pieces}) == 1:
            columns = zip(*pieces, strict=True)
            return kind(
                _join(list(column), rows, f"{where}[{index}]", depth + 1) for index, column in enumerate(columns)
            )
    if all(isinstance(piece, dict) and piece.keys() == first.keys() for piece in pieces):
        _text_keys(first)
        return {key: _join([piece[key] for piece in pieces], rows, f"{where}[{key!r}]", depth + 1) for key in first}
    if any(isinstance(piece, tuple | list | dict) or _is_leaf(piece) for piece in pieces):
        raise UsageError(f"{where} is not built alike for all chunks of the batch, so that it cannot be joined")
    if all(type(piece) is type(first) and (piece == first or (_is_nan(piece) and _is_nan(first))) for piece in pieces):
        return first
    raise UsageError(
        f"{where} is {first!r:.40} for one chunk of the batch and something else for another: only tensors can differ, "
        "with the batch as axis 0"
    )


def _concatenate(pieces: list[Any], rows: Sequence[int], where: str) -> Any:
    for piece, count in zip(pieces, rows, strict=True):
        shape = tuple(piece.shape)
        if not shape or shape[0] != count:
            raise UsageError(
                f"{where} has shape {shape} for a chunk of {count} rows: every tensor of the output has to have the "
                "batch as axis 0"
            )
    alike = {(str(piece.dtype).lower(), tuple(piece.shape)[1:]) for piece in pieces}
    if len(alike) > 1:
        told = ", ".join(f"{dtype} {shape}" for dtype, shape in sorted(alike, key=str))
        raise UsageError(f"rows of {where} differ in element type or shape from chunk to chunk: {told}")
    arrays = [_array(piece) for piece in pieces]
    if any(array is None for array in arrays):
        import mindspore as ms

        return pieces[0] if len(pieces) == 1 else ms.ops.concat(pieces, 0)
    return to_tensor(np.concatenate(arrays))
