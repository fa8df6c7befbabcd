"""MindSpore's safetensors slices: every parameter and its byte range, without touching the contents.

::

    8 bytes     length of the header, little-endian
    header      {"__metadata__": {text: text}, name: {"dtype": , "shape": , "data_offsets": [begin, end]}, ...}
    contents    raw, little-endian, C order, in the order of the header, without gaps or a rest

MindSpore keeps ``"format": "ms"`` in the metadata, ``"remove_redundancy"``, ``"crc_num"`` (see `update_crc`), and
``"Int4"`` under the name of a parameter that is stored as int8. It never saves strings this way.

The format itself lets tensors be listed in another order than their contents lie; MindSpore's reader does not.

Source of the format: https://github.com/huggingface/safetensors#format and the ``safetensors`` crate 0.8; of the
metadata ``_exec_save`` in ``mindspore/train/serialization.py`` of MindSpore 2.10.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from math import prod
from typing import Any

from ms_recover.bounded_json import are_numbers, decode_object, is_text
from ms_recover.errors import FormatError
from ms_recover.formats.dtypes import ITEM_SIZES
from ms_recover.formats.reading import ReadAt
from ms_recover.formats.records import MAX_DIMS, MAX_NAME, MAX_PROBLEMS, MAX_RECORDS, show
from ms_recover.model.slices import ByteRange, Parameter, SliceHeader

MAX_HEADER = 100_000_000
"""Longest header in bytes; the format's own limit."""

METADATA = "__metadata__"
CRC_NUM = "crc_num"
INT4 = "Int4"
"""Keys and values of MindSpore's metadata."""

DTYPES = {
    "U64": "UInt64",
    "I64": "Int64",
    "F64": "Float64",
    "C64": "Complex64",
    "F32": "Float32",
    "U32": "UInt32",
    "I32": "Int32",
    "BF16": "BFloat16",
    "F16": "Float16",
    "U16": "UInt16",
    "I16": "Int16",
    "I8": "Int8",
    "U8": "UInt8",
    "BOOL": "Bool",
}
"""The format's types and MindSpore's names for them, in the order in which the writer puts tensors."""

_FIELDS = {"dtype", "shape", "data_offsets"}
_MOST_COMMAS = 16 * MAX_RECORDS
_MOST_BRACKETS = 4 * MAX_RECORDS
_MOST_METADATA = 1 << 16
_SHOWN = 40
_COUNTS = {"Int4", "Int8", "UInt8", "Int16", "UInt16", "Int32", "UInt32", "Int64", "UInt64"}
_MOST_ZEROS = 1 << 33
_ZEROS = bytes(1 << 20)


class DamageError(FormatError):
    """An unusable header or scalar, as opposed to a failure to read it; the text names no file."""


def parse_header(read_at: ReadAt, size: int) -> SliceHeader:
    """Read the header of a safetensors slice of `size` bytes and prove its structure; contents are not read.

    Damage does not raise. Parameters whose contents do not lie inside the file are not listed; the others stand in the
    order of their contents, one range each.
    """
    try:
        begin, entries, metadata = _header(read_at, size)
    except DamageError as problem:
        return SliceHeader("safetensors", size, problems=(str(problem),))
    problems: list[str] = []
    tensors: list[tuple[int, int, Parameter]] = []
    marked = {name for name, value in metadata if value == INT4}
    for name, info in entries:
        if len(problems) >= MAX_PROBLEMS:
            break
        try:
            tensors.append(_tensor(name, info, name in marked))
        except DamageError as problem:
            problems.append(f"{show(name)}: {problem}")
    if not problems:
        problems += _coverage(tensors, size - begin)
    inside = [tensor for tensor in tensors if tensor[1] <= size - begin]
    crc, wrong = _crc(metadata)
    return SliceHeader(
        "safetensors",
        size,
        tuple(parameter for _, _, parameter in inside),
        tuple((ByteRange(begin + start, end - start),) for start, end, _ in inside),
        crc,
        None,
        (*problems, *wrong),
        metadata,
    )


def update_crc(crc: int, parameter: Parameter, contents: Iterable[bytes]) -> int:
    """Return a ``crc_num`` with the next parameter taken in; 0 comes before the first, and they are sorted by name.

    It is the CRC-32 of each parameter's name (UTF-8) and contents. Of a scalar integer, however, MindSpore takes
    as many zero bytes as its value says, because that is what ``bytes`` makes of such an array.

    Raises
    ------
    DamageError
        When it is a scalar of which MindSpore would have no CRC: a negative one, or a very large one.
    """
    crc = zlib.crc32(parameter.name.encode(), crc)
    if parameter.shape or parameter.dtype not in _COUNTS:
        for data in contents:
            crc = zlib.crc32(data, crc)
        return crc
    count = int.from_bytes(b"".join(contents), "little", signed=parameter.dtype.startswith("Int"))
    if not 0 <= count <= _MOST_ZEROS:
        raise DamageError(f"{show(parameter.name)} is {count}, and MindSpore has no CRC of that")
    for _ in range(count // len(_ZEROS)):
        crc = zlib.crc32(_ZEROS, crc)
    return zlib.crc32(_ZEROS[: count % len(_ZEROS)], crc)


def _header(read_at: ReadAt, size: int) -> tuple[int, list[tuple[str, Any]], tuple[tuple[str, str], ...]]:
    """Return the offset of the contents, the header's entry of each tensor, and the metadata."""
    head = read_at(0, min(size, 9))
    if not size:
        raise DamageError("not a slice: the file is empty")
    if len(head) < 9:
        raise DamageError(f"the file ends after {len(head)} bytes, inside the length of the header")
    length = int.from_bytes(head[:8], "little")
    if not length and not any(head):
        raise DamageError("zeros where the header should begin: they were never written")
    if not 2 <= length <= MAX_HEADER or head[8:] != b"{":
        raise DamageError(f"no header of a safetensors file at the beginning (length {length}, then {head[8:]!r})")
    if 8 + length > size:
        raise DamageError(
            f"the header should end at offset {8 + length}, the file ends {8 + length - size} bytes before"
        )
    data = read_at(8, length)
    if len(data) < length:
        raise DamageError("the file shrank while it was read")
    try:
        entries = decode_object(data, brackets=_MOST_BRACKETS, commas=_MOST_COMMAS)
    except FormatError as error:
        raise DamageError(f"the header is unusable: {error}") from None
    metadata = entries.pop(METADATA, {})
    if not entries:
        raise DamageError("no tensor in the file")
    if len(entries) > MAX_RECORDS:
        raise DamageError(f"the header has more than {MAX_RECORDS} tensors")
    return 8 + length, list(entries.items()), _metadata(metadata)


def _metadata(value: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(value, dict) or len(value) > _MOST_METADATA:
        raise DamageError("the metadata are no object, or too many")
    if not all(is_text(part) for pair in value.items() for part in pair):
        raise DamageError("the metadata hold something else than texts")
    return tuple(value.items())


def _tensor(name: str, info: Any, int4: bool) -> tuple[int, int, Parameter]:
    """Return the begin and end of a tensor's contents, relative to the first contents, and the parameter."""
    if not name or not is_text(name) or len(name.encode()) > MAX_NAME:
        raise DamageError(f"no name of 1 to {MAX_NAME} bytes of UTF-8")
    if not isinstance(info, dict) or info.keys() != _FIELDS:
        raise DamageError("its entry must have dtype, shape and data_offsets, and nothing else")
    shape, offsets = info["shape"], info["data_offsets"]
    if not are_numbers(offsets, 2) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise DamageError(f"data_offsets {str(offsets)[:_SHOWN]} are invalid")
    if not are_numbers(shape, MAX_DIMS):
        raise DamageError(f"shape {str(shape)[:_SHOWN]} is invalid")
    code = info["dtype"]
    dtype = DTYPES.get(code) if isinstance(code, str) else None
    if dtype is None:
        raise DamageError(f"type {str(code)[:_SHOWN]!r} is unknown")
    if int4 and code != "I8":
        raise DamageError(f"the metadata call it {INT4}, its type is {code}")
    nbytes = offsets[1] - offsets[0]
    takes = prod(shape) * ITEM_SIZES[dtype]
    if nbytes != takes:
        raise DamageError(f"contents have {nbytes} bytes, {dtype} {shape} takes {takes}: the header is damaged")
    return offsets[0], offsets[1], Parameter(name, INT4 if int4 else dtype, tuple(shape), nbytes)


def _coverage(tensors: list[tuple[int, int, Parameter]], length: int) -> list[str]:
    """Return where contents do not begin where those listed before end, or do not end where the file does."""
    problems: list[str] = []
    at = 0
    for start, end, parameter in tensors:
        if start != at and len(problems) < MAX_PROBLEMS:
            what = "they overlap" if start < at else "a gap"
            problems.append(
                f"{show(parameter.name)}: contents begin at {start}, those listed before end at {at}: {what}"
            )
        at = max(at, end)
    if at > length:
        cut = [parameter.name for _, end, parameter in tensors if end > length]
        others = f" ({len(cut) - 1} more are cut or missing)" if len(cut) > 1 else ""
        short = f"which is {at - length} bytes too short{others}"
        problems.append(f"{show(cut[0])}: contents end behind the end of the file, {short}")
    elif at < length:
        problems.append(f"{length - at} bytes follow the contents of the last tensor: junk, or a damaged header")
    return problems


def _crc(metadata: tuple[tuple[str, str], ...]) -> tuple[int | None, tuple[str, ...]]:
    text = dict(metadata).get(CRC_NUM)
    if text is None:
        return None, ()
    if len(text) > 10 or not text.isascii() or not text.isdigit() or int(text) >> 32:
        return None, (f"{CRC_NUM} is {text[:_SHOWN]!r}, no 32-bit number",)
    return int(text), ()
