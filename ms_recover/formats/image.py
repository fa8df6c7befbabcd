"""Slices that are to be written: the bytes around the contents, exactly as MindSpore would write them.

An image names where the contents of each parameter go and holds everything else. With the contents filled in, and for a
``.ckpt`` with CRC the trailer, it is byte for byte the file that ``save_checkpoint`` makes of the same parameters.

Source: ``mindspore/train/checkpoint_pb2.py``, ``_exec_save`` in ``serialization.py`` of MindSpore 2.10, and files that
the ``safetensors`` package 0.8 wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from ms_recover.errors import UsageError
from ms_recover.formats.ckpt import TRAILER
from ms_recover.formats.dtypes import ITEM_SIZES, shape_of
from ms_recover.formats.records import MAP, show
from ms_recover.formats.safetensors import CRC_NUM, DTYPES, INT4, MAX_HEADER, METADATA
from ms_recover.formats.wire import encode_field, encode_varint
from ms_recover.model.slices import ByteRange, Parameter, SliceHeader, SliceImage

PIECE = 1 << 29
"""Bytes of the contents in one record of a ``.ckpt``, but for the last (``SLICE_SIZE`` in ``serialization.py``)."""

_CODES = {name: code for code, name in DTYPES.items()} | {INT4: "I8"}
_ORDER = {code: place for place, code in enumerate(DTYPES)}


def make_image(parameters: Iterable[Parameter], model: SliceHeader, *, crc_num: int | None = None) -> SliceImage:
    """Return the image of a slice that is written the way another one, the `model`, was.

    Parameters
    ----------
    parameters : iterable of Parameter
        In file order for a ``.ckpt``; a safetensors file orders them itself.
    model : SliceHeader
        The image has its format and metadata, a CRC trailer if it has one, and cuts a parameter of the same name and
        size into the same pieces.
    crc_num : int, optional
        For a safetensors file whose model has a CRC in its metadata, the number: see
        `ms_recover.formats.safetensors.update_crc`. Its digits are part of the header, so that it must be known before
        anything can be written. Without it the image has none, which MindSpore takes for a file without CRC.

    Raises
    ------
    UsageError
        When the model is encrypted, or a parameter cannot be written in that format.
    """
    wanted = tuple(parameters)
    if model.encryption is not None:
        raise UsageError(f"encrypted slices ({model.encryption}) cannot be put together: that needs their key")
    if model.kind == "safetensors":
        return safetensors_image(wanted, _metadata(wanted, model.metadata, crc_num))
    known = {p.name: (p, ranges) for p, ranges in zip(model.parameters, model.contents, strict=True)}
    pieces = []
    for parameter in wanted:
        there = known.get(parameter.name)
        if there is not None and there[0].nbytes == parameter.nbytes:
            pieces.append([piece.length for piece in there[1]])
        else:
            pieces.append(default_pieces(parameter.nbytes))
    return ckpt_image(wanted, pieces, crc=model.crc is not None)


def default_pieces(nbytes: int) -> list[int]:
    """Return the lengths of the pieces into which MindSpore cuts ``nbytes`` of a tensor."""
    full, rest = divmod(nbytes, PIECE)
    return [PIECE] * full + ([rest] if rest or not full else [])


def ckpt_image(parameters: Sequence[Parameter], pieces: Sequence[Sequence[int]], crc: bool = False) -> SliceImage:
    """Return the image of a ``.ckpt`` with parameters in file order, cut into pieces of these lengths.

    A piece may be empty, and a parameter has at least one.

    Raises
    ------
    UsageError
        When a parameter is a map, of unknown type, not of the size that its shape takes, there twice, or the pieces do
        not make up its contents.
    """
    _check(parameters)
    literals: list[tuple[int, bytes]] = []
    contents: list[tuple[ByteRange, ...]] = []
    at = 0
    for parameter, lengths in zip(parameters, pieces, strict=True):
        if not lengths or min(lengths) < 0 or sum(lengths) != parameter.nbytes:
            raise UsageError(f"{show(parameter.name)}: pieces of {list(lengths)[:8]} bytes are not {parameter.nbytes}")
        ranges = []
        for length in lengths:
            head = _record_head(parameter, length)
            literals.append((at, head))
            ranges.append(ByteRange(at + len(head), length))
            at += len(head) + length
        contents.append(tuple(ranges))
    size = at + TRAILER if crc else at
    return SliceImage(size, tuple(literals), tuple(contents), crc, tuple(parameters))


def safetensors_image(parameters: Iterable[Parameter], metadata: Sequence[tuple[str, str]]) -> SliceImage:
    """Return the image of a safetensors file: the widest types first, parameters of one type sorted by name.

    The metadata stand in the order given, which the ``safetensors`` package leaves to chance. Parameters of type
    ``Int4`` must be marked in them.

    Raises
    ------
    UsageError
        When a parameter is a string, a map, of a type that the format does not have, not of the size that its shape
        takes, there twice, or called ``__metadata__``.
    """
    given = tuple(parameters)
    _check(given)
    marks = {name for name, value in metadata if value == INT4}
    for parameter in given:
        if parameter.dtype not in _CODES or parameter.name == METADATA:
            raise UsageError(f"{show(parameter.name)}: {parameter.dtype} cannot be written to a safetensors file")
        if (parameter.dtype == INT4) != (parameter.name in marks):
            raise UsageError(f"{show(parameter.name)}: {parameter.dtype}, which the metadata say otherwise")
    ordered = tuple(sorted(given, key=lambda p: (_ORDER[_CODES[p.dtype]], p.name)))
    starts = tuple(accumulate((p.nbytes for p in ordered), initial=0))
    header: dict[str, object] = {METADATA: dict(metadata)} if metadata else {}
    for p, (start, end) in zip(ordered, pairwise(starts), strict=True):
        header[p.name] = {"dtype": _CODES[p.dtype], "shape": list(p.shape), "data_offsets": [start, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER:
        raise UsageError(f"{len(given)} parameters make a header of {len(text)} bytes, the format allows {MAX_HEADER}")
    literal = len(text).to_bytes(8, "little") + text
    contents = tuple((ByteRange(len(literal) + start, p.nbytes),) for p, start in zip(ordered, starts, strict=False))
    return SliceImage(len(literal) + starts[-1], ((0, literal),), contents, False, ordered)


def _metadata(
    parameters: Sequence[Parameter], metadata: Sequence[tuple[str, str]], crc_num: int | None
) -> list[tuple[str, str]]:
    """Return a model's metadata as they fit other parameters and another CRC."""
    int4 = {parameter.name: INT4 for parameter in parameters if parameter.dtype == INT4}
    kept: dict[str, str] = {}
    for key, value in metadata:
        if key == CRC_NUM:
            if crc_num is not None:
                kept[key] = str(crc_num)
        elif value != INT4 or key in int4:
            kept[key] = value
    return list((kept | int4).items())


def _check(parameters: Sequence[Parameter]) -> None:
    names: set[str] = set()
    for parameter in parameters:
        name, dtype = show(parameter.name), parameter.dtype
        if dtype.startswith(MAP):
            raise UsageError(f"{name}: map parameters cannot be put together")
        if dtype not in ITEM_SIZES:
            raise UsageError(f"{name}: type {dtype!r} is unknown")
        if not parameter.name or parameter.name in names:
            raise UsageError(f"{name}: {'twice in one slice' if parameter.name else 'a parameter without a name'}")
        names.add(parameter.name)
        if shape_of(dtype, parameter.shape, parameter.nbytes) != (parameter.shape, None):
            raise UsageError(f"{name}: {parameter.nbytes} bytes are no {dtype} {list(parameter.shape)}")


def _record_head(parameter: Parameter, length: int) -> bytes:
    """Return a record up to the ``length`` bytes of contents that end it."""
    dims = (0,) if parameter.dtype == "str" else parameter.shape
    tensor = b"".join(encode_field(1, dim) for dim in dims)
    tensor += encode_field(2, parameter.dtype.encode()) + b"\x1a" + encode_varint(length)
    value = encode_field(1, parameter.name.encode()) + b"\x12" + encode_varint(len(tensor) + length) + tensor
    return b"\x0a" + encode_varint(len(value) + length) + value
