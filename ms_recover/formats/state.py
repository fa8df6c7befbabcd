"""State files: the state of a training that is in no parameter, in ``<slice file name>.state``.

A safetensors file (see `ms_recover.formats.safetensors`) whose metadata are ``{"ms_recover": "state 1"}``. The tensor
``state``, of bytes, is a JSON object; the other tensors are named by a number. JSON stands for itself, but that an
object of one member whose name begins with ``$`` stands for a value that JSON does not have:

::

    {"$float": "nan"}                 "nan", "inf" or "-inf"
    {"$bytes": "aGk="}                base 64
    {"$tuple": [value, ...]}          also $set
    {"$dict": [[key, value], ...]}    names that are no text, or begin with $
    {"$tensor": "3"}                  a tensor of the file; also $array and $scalar, of numpy

Nothing in it is executed when it is read.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from math import isfinite
from typing import Any, get_args

from ms_recover.bounded_json import decode_object
from ms_recover.errors import FormatError
from ms_recover.formats.image import safetensors_image
from ms_recover.formats.safetensors import DTYPES, parse_header
from ms_recover.model.slices import Parameter
from ms_recover.model.state import StateKind, StateTensor, StateValue

MARK = ("ms_recover", "state 1")
"""The metadata of a state file; the number is the version."""

MAX_DEPTH = 64
MAX_JSON = 64 << 20
MAX_ENTRIES = 4 << 20
"""Where values are refused: depth of nesting, bytes of the JSON object, brackets or commas in it."""

STATE_DTYPES = frozenset(DTYPES.values()) - {"Complex64"}
"""Types of tensors in a state file."""

_OBJECT = "state"
_PLAIN = (bool, int, float, str, bytes, type(None))
_KINDS: tuple[StateKind, ...] = get_args(StateKind)
_FLOATS = {"nan": float("nan"), "inf": float("inf"), "-inf": float("-inf")}


def encode_state(values: Mapping[str, StateValue]) -> bytes:
    """Return the contents of a state file.

    Raises
    ------
    ValueError
        When a value is none of `StateValue`, or exceeds a limit of the format; the text begins with its place.
    """
    tensors: list[StateTensor] = []
    text = json.dumps(_node(dict(values), "", 0, tensors), allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_JSON or max(text.count(b"{") + text.count(b"["), text.count(b",")) > MAX_ENTRIES:
        raise ValueError(f"{len(text)} bytes of JSON; large values must be tensors or arrays")
    contents = {str(number): tensor.data for number, tensor in enumerate(tensors)} | {_OBJECT: text}
    parameters = [
        Parameter(str(number), tensor.dtype, tensor.shape, len(tensor.data)) for number, tensor in enumerate(tensors)
    ]
    image = safetensors_image([*parameters, Parameter(_OBJECT, "UInt8", (len(text),), len(text))], [MARK])
    data = bytearray(image.size)
    for offset, literal in image.literals:
        data[offset : offset + len(literal)] = literal
    for parameter, (place,) in zip(image.parameters, image.contents, strict=True):
        data[place.start : place.end] = contents[parameter.name]
    return bytes(data)


def fingerprint(value: StateValue) -> bytes:
    """Return 16 bytes that are equal for equal values, whatever the order of sets and of the members of mappings."""
    found = hashlib.blake2b(type(value).__name__.encode() + b"\0", digest_size=16)
    if isinstance(value, StateTensor):
        found.update(repr((value.kind, value.dtype, value.shape)).encode())
        found.update(value.data)
    elif isinstance(value, Mapping):
        for pair in sorted(fingerprint(key) + fingerprint(item) for key, item in value.items()):
            found.update(pair)
    elif isinstance(value, (list, tuple)) and all(type(item) in _PLAIN for item in value):
        found.update(repr(list(value)).encode("utf-8", "surrogatepass"))
    elif isinstance(value, (list, tuple, set)):
        parts = [fingerprint(item) for item in value]
        found.update(b"".join(sorted(parts) if isinstance(value, set) else parts))
    else:
        found.update(repr(value).encode("utf-8", "surrogatepass"))
    return found.digest()


def decode_state(data: bytes) -> dict[str, StateValue]:
    """Return the values of a state file; a FormatError, which names no file, when it is none."""
    header = parse_header(lambda at, length: data[at : at + length], len(data))
    if header.problems:
        raise FormatError(header.problems[0])
    if header.metadata != (MARK,):
        raise FormatError(f"its metadata are not {MARK[0]}: {MARK[1]!r}")
    contents = {
        parameter.name: (parameter, data[place.start : place.end])
        for parameter, (place,) in zip(header.parameters, header.contents, strict=True)
    }
    _, text = contents.pop(_OBJECT, (None, b""))
    if len(text) > MAX_JSON:
        raise FormatError(f"its JSON has {len(text)} bytes")
    found = decode_object(text, brackets=MAX_ENTRIES, commas=MAX_ENTRIES, fractions=True)
    values = _value(found, contents, 0)
    if not isinstance(values, dict) or not all(isinstance(name, str) for name in values):
        raise FormatError("its JSON is no object")
    return values


def _node(value: StateValue, place: str, depth: int, tensors: list[StateTensor]) -> Any:
    """Return the JSON of a value; tensors are appended to the list."""
    if depth > MAX_DEPTH:
        raise ValueError(f"{place}: nested more than {MAX_DEPTH} deep")
    if value is None or type(value) in (bool, int, str):
        return value
    if type(value) is float:
        return value if isfinite(value) else {"$float": str(value)}
    if type(value) is bytes:
        return {"$bytes": b64encode(value).decode()}
    if type(value) is StateTensor:
        if value.dtype not in STATE_DTYPES:
            raise ValueError(f"{place}: tensors of {value.dtype} cannot be saved")
        tensors.append(value)
        return {f"${value.kind}": str(len(tensors) - 1)}
    if type(value) in (list, tuple, set):
        items = [_node(item, f"{place}[{index}]", depth + 1, tensors) for index, item in enumerate(value)]
        return items if type(value) is list else {f"${type(value).__name__}": items}
    if type(value) is dict:
        places = [f"{place}.{key}" if place else str(key) for key in value]
        items = [_node(item, at, depth + 1, tensors) for item, at in zip(value.values(), places, strict=True)]
        if all(type(key) is str and not key.startswith("$") for key in value):
            return dict(zip(value, items, strict=True))
        keys = [_node(key, at, depth + 1, tensors) for key, at in zip(value, places, strict=True)]
        return {"$dict": [[key, item] for key, item in zip(keys, items, strict=True)]}
    raise ValueError(f"{place}: {type(value).__name__} cannot be saved")


def _value(node: Any, contents: Mapping[str, tuple[Parameter, bytes]], depth: int) -> StateValue:
    """Return the value that JSON stands for."""
    if depth > 2 * MAX_DEPTH + 2:
        raise FormatError("its JSON is nested too deeply")
    if isinstance(node, list):
        return [_value(item, contents, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    mark = next(iter(node), "")
    if not mark.startswith("$"):
        return {key: _value(item, contents, depth + 1) for key, item in node.items()}
    try:
        ((_, body),) = node.items()
        return _special(mark[1:], body, contents, depth)
    except (KeyError, TypeError, ValueError):
        raise FormatError(f"{str(node)[:40]!r} in its JSON stands for no value") from None


def _special(mark: str, body: Any, contents: Mapping[str, tuple[Parameter, bytes]], depth: int) -> StateValue:
    """Return the value that an object of one member stands for; KeyError, TypeError or ValueError where it is wrong."""
    if mark == "float":
        return _FLOATS[body]
    if mark == "bytes":
        return b64decode(body, validate=True)
    if mark in _KINDS:
        parameter, data = contents[body]
        return StateTensor(mark, parameter.dtype, parameter.shape, data)
    if not isinstance(body, list):
        raise TypeError
    if mark == "tuple":
        return tuple(_value(item, contents, depth + 1) for item in body)
    if mark == "set":
        return {_value(item, contents, depth + 1) for item in body}
    if mark == "dict":
        pairs = [(_value(key, contents, depth + 1), _value(item, contents, depth + 1)) for key, item in body]
        return dict(pairs)
    raise KeyError(mark)
