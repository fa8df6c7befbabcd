"""JSON in and out: typed fields with their bounds, and the two ways between JSON values and objects made of them.

The one module that knows the library (msgspec). Modules that describe a document import it when they are needed, so
that commands which read and print no JSON start without it.
"""

from __future__ import annotations

import json
import threading
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import field as field  # noqa: PLC0414 (a member with another name in JSON than its attribute has)

from ms_recover.model.manifest import DIGEST

_T = TypeVar("_T")
_FieldsT = TypeVar("_FieldsT", bound="Fields")

_BUILDING = threading.Lock()
_built: set[Any] = set()
"""Types that the library knows."""

Meta = msgspec.Meta
UNSET = msgspec.UNSET
UnsetType = msgspec.UnsetType

Rank = Annotated[int, Meta(ge=0, lt=1 << 24)]
"""A rank."""
Size = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A number of bytes, or an offset."""
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
"""A number of anything else, from 0."""
BigCount = Count | Annotated[str, Meta(pattern="^[0-9]{19,4000}$")]
"""A number; its digits where it is too large for most readers of JSON."""
Epoch = Annotated[int, Meta(ge=-1, le=(1 << 63) - 1)]
"""An epoch, from 1; -1 where the step is an iteration of MindFormers."""
Positive = Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]
"""A number from 1."""
Moment = Annotated[int, Meta(ge=0, lt=253_402_300_800_000)]
"""Milliseconds since 1970 in UTC, up to the year 9999."""
Port = Annotated[int, Meta(ge=1, lt=1 << 16)]
"""A port of TCP."""
Extent = tuple[Count, Count]
"""First index and the one behind the last, in one dimension."""
Loops = Annotated[tuple[tuple[Positive, Count, Count], ...], Meta(max_length=64)]
"""Repetitions of byte runs, outermost first: how often, source stride and target stride in bytes."""
Digest = Annotated[str, Meta(pattern=f"^{DIGEST}:[0-9a-f]{{32}}$", max_length=len(DIGEST) + 33)]
"""``xxh3_128:`` and 32 hexadecimal digits; the length rules out a line feed, which ``$`` would let pass."""
Path = Annotated[str, Meta(pattern=r"^(?!\.{1,2}(/|$))[^/\0]+(/(?!\.{1,2}(/|$))[^/\0]+)*$")]
"""A path that stays below its root: not absolute, no empty component, no ``.`` and ``..``, no NUL."""

AbsolutePath = Annotated[str, Meta(pattern=r"^(/|(/(?!\.{1,2}(/|$))[^/\0]+)+)$")]
"""The real path of a directory: absolute, without empty components, ``.`` and ``..``, no NUL."""

FileName = Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[^/\0]+$")]
"""The name of a file, without a path."""
HostName = Annotated[str, Meta(min_length=1, max_length=255)]
"""The name of a host."""


class Fields(msgspec.Struct):
    """A JSON object with these members, in this order; more members are ignored when it is read."""


class StepFields(Fields):
    """A step: epoch, and step in the epoch; of an iteration of MindFormers the epoch is -1."""

    epoch: Epoch
    step: Count


class ParameterFields(Fields):
    """A parameter of a slice."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
    bytes: Size


def fill(kind: type[_FieldsT], /, *nouns: Any, **members: object) -> _FieldsT:
    """Return fields with these members, and the others from the first noun that has an attribute of that name.

    A member that may be left out is, where the noun has its default value and that is empty.
    """
    optional = _optional(kind)
    for noun in nouns:
        for name in kind.__struct_fields__:
            value = getattr(noun, name, UNSET) if name not in members else UNSET
            if value is not UNSET and not (name in optional and not value and value == _default(noun, name)):
                members[name] = value
    return kind(**members)


@cache
def _optional(kind: type[Fields]) -> frozenset[str]:
    return frozenset(one.name for one in msgspec.structs.fields(kind) if one.default is UNSET)


def _default(noun: Any, name: str) -> object:
    return noun.__dataclass_fields__[name].default


def _build(kind: type[Any]) -> None:
    """Have the library look at a type, and at those in it, before it meets it among values.

    A thread that meets a type which another one is looking at for the first time ends the process (msgspec 0.22).
    """
    if kind not in _built:
        with _BUILDING:
            msgspec.json.Decoder(kind)
            _built.add(kind)


def make(kind: type[_T], fields: object) -> _T:
    """Return the nouns of type `kind` whose attributes are the members of `fields`, nouns within them included."""
    _build(kind)
    return msgspec.convert(fields, kind, from_attributes=True)


def make_with(kind: type[_T], fields: Fields, /, **members: object) -> _T:
    """Return the noun of type `kind` with these members, and the others from those of `fields` that are there."""
    for name in kind.__dataclass_fields__:  # type: ignore[attr-defined]
        if name not in members and (value := getattr(fields, name, UNSET)) is not UNSET:
            members[name] = value
    return kind(**members)


def to_json(fields: Fields) -> dict[str, Any]:
    """Return fields as plain JSON values, members in their order, arrays as tuples.

    A noun in a field stands for fields of the same names.
    """
    data: dict[str, Any] = msgspec.to_builtins(fields)
    return data


def convert(value: Any, kind: type[_T]) -> _T:
    """Check plain JSON values against a type, and build it; the text of a ValueError says where they do not fit."""
    _build(kind)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def decode(data: bytes | bytearray, kind: type[_T], *, halves: bool = True) -> _T:
    """Decode JSON whose length has been capped, check it against a type, and build that.

    Without `halves` of characters, with which file names that are not UTF-8 are written, nothing else is built on the
    way. The text of a ValueError says where it does not fit, or that it is no JSON.
    """
    _build(kind)
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if not halves:
            raise ValueError(str(error)) from None
        return convert(_loads(bytes(data)), kind)  # which only the standard library reads


def json_text(value: Any, indent: int = 2) -> str:
    """Return a JSON value as text, in ASCII: names that steer terminals are escaped; one line where `indent` is 0.

    Python's own encoder takes many times as long, which counts for thousands of ranks.
    """
    try:
        compact = msgspec.json.encode(value).decode()
        if not compact.isascii() or "\x7f" in compact:
            compact = json.dumps(value)
        return msgspec.json.format(compact, indent=indent)
    except (UnicodeEncodeError, msgspec.DecodeError):  # a name that is not UTF-8 has half a surrogate pair
        return json.dumps(value, indent=indent or None)


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
