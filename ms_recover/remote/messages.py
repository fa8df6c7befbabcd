"""The messages of client and server, as JSON: every message is checked before it is used (pure).

The client asks ``{"ask": "inventory"}``, ``{"ask": "digests", "slices": [{"path", "bytes", "mtime_ns"}, ...]}`` or
``{"ask": "slice", "path", "bytes", "mtime_ns", "offset", "end"}``. The server answers with ``{"inventory": ...}``, any
number of ``{"working": bytes}`` and then ``{"digests": ..., "problems": ...}``, or with chunks and then
``{"mode": ...}``; and with ``{"refused": why}`` where it does not do that. ``{"ask": "leave"}`` is not
answered. Without ``"end"`` a slice is asked for up to its end.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from ms_recover.errors import FormatError
from ms_recover.formats.bounded_json import decode_object
from ms_recover.formats.codec import UNSET, Digest, Fields, Meta, Path, Size, UnsetType, convert, to_json
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests

VERSION = 1
MAX_REQUEST = 16 << 20
"""Longest request, in bytes."""
MAX_REPLY = 256 << 20
"""Longest answer, in bytes."""
_MOST_ENTRIES = 8 << 20
_SHOWN = 500
_T = TypeVar("_T")


class _Versioned(Fields):
    version: int


class _AskInventory(_Versioned, tag_field="ask", tag="inventory"):
    pass


class _AskToLeave(_Versioned, tag_field="ask", tag="leave"):
    pass


class _Asked(Fields):
    path: Path
    bytes: Size
    mtime_ns: int


class _AskDigests(_Versioned, tag_field="ask", tag="digests"):
    slices: tuple[_Asked, ...]


class _AskSlice(_Versioned, tag_field="ask", tag="slice"):
    path: Path
    bytes: Size
    mtime_ns: int
    offset: Size
    end: Size | None = None


_Question = _AskInventory | _AskToLeave | _AskDigests | _AskSlice


class _Refused(Fields):
    refused: str


class _Working(Fields):
    working: Size


class _Mode(Fields):
    mode: Annotated[int, Meta(ge=0, le=0o777)]


class _Contents(Fields):
    digests: dict[str, Annotated[tuple[Digest, ...], Meta(min_length=1)]]
    problems: dict[str, str]
    states: dict[str, str] | UnsetType = UNSET


class _Inventory(_Versioned):
    inventory: dict[str, Any]


class RefusedError(Exception):
    """The server refuses a request; the text is the reason."""


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """A request for bytes of one slice, up to `end` or the end of the file, as long as it has this state."""

    path: str
    state: FileState
    offset: int = 0
    end: int | None = None

    @property
    def stop(self) -> int:
        """The byte behind the last one."""
        return self.state.bytes if self.end is None else self.end


@dataclass(frozen=True, slots=True)
class Request:
    """A client's request: ``"inventory"``, ``"digests"``, the bytes of one ``"slice"``, or to ``"leave"``."""

    ask: str
    slices: tuple[SliceRequest, ...] = ()


def ask_inventory() -> bytes:
    """Return the question for the inventory of a server."""
    return _encode(_AskInventory(VERSION))


def ask_to_leave() -> bytes:
    """Return the message that no question follows."""
    return _encode(_AskToLeave(VERSION))


def ask_digests(files: Iterable[SliceFile]) -> bytes:
    """Return the question for the digests of slices."""
    return _encode(_AskDigests(VERSION, tuple(_Asked(file.path, file.size, file.mtime_ns) for file in files)))


def ask_slice(path: str, state: FileState, offset: int, end: int | None = None) -> bytes:
    """Return the request for the bytes of a slice, up to its end or to another."""
    return _encode(_AskSlice(VERSION, path, state.bytes, state.mtime_ns, offset, end))


def read_request(data: bytes) -> Request:
    """Read a request; a FormatError when it is none."""

    def read(sent: Mapping[str, Any]) -> Request:
        _check_version(sent)
        asked: _Question = convert(sent, _Question)  # type: ignore[arg-type]
        if isinstance(asked, _AskDigests):
            slices = tuple(SliceRequest(one.path, FileState(one.bytes, one.mtime_ns)) for one in asked.slices)
            return Request("digests", slices)
        if isinstance(asked, _AskSlice):
            wanted = SliceRequest(asked.path, FileState(asked.bytes, asked.mtime_ns), asked.offset, asked.end)
            if not wanted.offset <= wanted.stop <= asked.bytes:
                raise ValueError(f"bytes {wanted.offset} to {wanted.stop} of {asked.bytes}")
            return Request("slice", (wanted,))
        return Request("inventory" if isinstance(asked, _AskInventory) else "leave")

    return _checked(data, "a client", read)


def say_refused(why: str) -> bytes:
    """Return the answer that a question is refused."""
    return _encode(_Refused(why[:_SHOWN]))


def say_working(count: int) -> bytes:
    """Return the message that reading goes on: the bytes read since the last one."""
    return _encode(_Working(count))


def say_mode(mode: int) -> bytes:
    """Return the end of a slice: the permissions of the file."""
    return _encode(_Mode(mode & 0o777))


def say_contents(contents: Contents) -> bytes:
    """Return the digests of slices."""
    digests = {path: (found.file, *found.parameters) for path, found in contents.digests.items()}
    return _encode(_Contents(digests, dict(contents.problems), dict(contents.states) or UNSET))


def say_inventory(inventory: Mapping[str, Any]) -> bytes:
    """Return the inventory of a server, see `ms_recover.remote.inventories`."""
    return _encode(_Inventory(VERSION, dict(inventory)))


def read_mode(data: bytes, where: str) -> int:
    """Read the message that ends a slice.

    Raises
    ------
    FormatError
        When it is something else; so for all answers.
    RefusedError
        When the server refuses; so for all answers.
    """
    return _checked(data, where, lambda sent: convert(sent, _Mode).mode)


def read_contents(data: bytes, where: str, files: Iterable[SliceFile]) -> Contents | int:
    """Read the digests of these slices, or the number of bytes read meanwhile; errors as for `read_mode`."""

    def read(sent: Mapping[str, Any]) -> Contents | int:
        if "working" in sent:
            return convert(sent, _Working).working
        found = convert(sent, _Contents)
        digests: dict[str, Digests] = {}
        problems: dict[str, str] = {}
        states: dict[str, str] = {}
        for file in files:
            if found.states and file.path in found.states:
                states[file.path] = found.states[file.path][:_SHOWN]
            if file.path in found.digests:
                first, *rest = found.digests[file.path]
                if file.encryption is None and len(rest) != len(file.parameters):
                    raise ValueError(f"{len(rest)} digests for {len(file.parameters)} parameters of {file.path}")
                digests[file.path] = Digests(first, tuple(rest))
            elif file.path in found.problems:
                problems[file.path] = found.problems[file.path][:_SHOWN]
            else:
                raise ValueError(f"nothing about {file.path}")
        return Contents(digests, problems, states)

    return _checked(data, where, read)


def read_inventory(data: bytes, where: str, read: Callable[[Mapping[str, Any]], _T]) -> _T:
    """Read the inventory of a server with `read`, which makes nouns of it; errors as for `read_mode`."""

    def versioned(sent: Mapping[str, Any]) -> _T:
        _check_version(sent)
        return read(convert(sent, _Inventory).inventory)

    return _checked(data, where, versioned)


def _checked(data: bytes, where: str, read: Callable[[Mapping[str, Any]], _T]) -> _T:
    try:
        sent = decode_object(data, brackets=_MOST_ENTRIES, commas=4 * _MOST_ENTRIES)
        if "refused" in sent:
            raise RefusedError(convert(sent, _Refused).refused[:_SHOWN])
        return read(sent)
    except ValueError as error:
        raise FormatError(
            f"{where} sent an invalid message ({str(error)[:_SHOWN]}): does it run the same version?"
        ) from None


def _check_version(sent: Mapping[str, Any]) -> None:
    version = convert(sent, _Versioned).version
    if version != VERSION:
        raise ValueError(f"version {version}, this side has version {VERSION}")


def _encode(fields: Fields) -> bytes:
    return json.dumps(to_json(fields), separators=(",", ":")).encode()
