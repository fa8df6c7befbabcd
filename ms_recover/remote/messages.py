"""What client and server say to each other, as JSON: nothing that comes from the other end is believed (pure).

The client asks ``{"ask": "inventory"}``, ``{"ask": "digests", "slices": [{"path", "bytes", "mtime_ns"}, ...]}`` or
``{"ask": "slice", "path", "bytes", "mtime_ns", "offset", "end"}``. The server answers with ``{"inventory": ...}``, any
number of ``{"working": bytes}`` and then ``{"digests": ..., "problems": ...}``, or with chunks and then
``{"mode": ...}``; and with ``{"refused": why}`` where it does not do what it is asked. ``{"ask": "leave"}`` is not
answered. Without ``"end"`` a slice is asked for up to its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ms_recover.errors import FormatError
from ms_recover.formats.bounded_json import decode_object
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import SliceFile
from ms_recover.model.json_values import as_kind, count, get, inside
from ms_recover.model.manifest import DIGEST, Digests

VERSION = 1
MAX_REQUEST = 16 << 20
"""Longest request, in bytes."""
MAX_REPLY = 256 << 20
"""Longest answer, in bytes."""
MOST_BYTES = 1 << 63
_MOST_ENTRIES = 8 << 20
_SHOWN = 500
_DIGEST = re.compile(rf"{DIGEST}:[0-9a-f]{{32}}\Z", re.ASCII)
_T = TypeVar("_T")


class RefusedError(Exception):
    """The server does not do what it is asked; the text says why."""


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """One slice that is asked for.

    Parameters
    ----------
    path : str
        Relative to the root that is served.
    state : FileState
        What it must still be.
    offset : int
        First byte.
    end : int or None
        The byte behind the last one; None for the end of the file.
    """

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
    """What a client asks for: ``"inventory"``, ``"digests"``, the bytes of one ``"slice"``, or to ``"leave"``."""

    ask: str
    slices: tuple[SliceRequest, ...] = ()


def ask_inventory() -> bytes:
    """Return the question what a server has."""
    return _encode({"version": VERSION, "ask": "inventory"})


def ask_to_leave() -> bytes:
    """Return the word that nothing more is asked."""
    return _encode({"version": VERSION, "ask": "leave"})


def ask_digests(files: Iterable[SliceFile]) -> bytes:
    """Return the question what slices contain."""
    slices = [{"path": file.path, "bytes": file.size, "mtime_ns": file.mtime_ns} for file in files]
    return _encode({"version": VERSION, "ask": "digests", "slices": slices})


def ask_slice(path: str, state: FileState, offset: int, end: int | None = None) -> bytes:
    """Return the request for the bytes of a slice, up to its end or to another."""
    told = {"path": path, "bytes": state.bytes, "mtime_ns": state.mtime_ns, "offset": offset}
    told |= {} if end is None else {"end": end}
    return _encode({"version": VERSION, "ask": "slice", **told})


def read_request(data: bytes) -> Request:
    """Read a question.

    Raises
    ------
    FormatError
        When it is none.
    """

    def read(told: Mapping[str, Any]) -> Request:
        ask = get(told, "ask", str)
        if get(told, "version", int) != VERSION:
            raise ValueError(f"version {told['version']}, this side speaks {VERSION}")
        if ask == "digests":
            slices = tuple(_slice(as_kind(item, dict)) for item in get(told, "slices", list))
        elif ask == "slice":
            end = count(told, "end", MOST_BYTES) if "end" in told else None
            slices = (_slice(told, count(told, "offset", MOST_BYTES), end),)
        elif ask in ("inventory", "leave"):
            slices = ()
        else:
            raise ValueError(f"no such question: {ask[:_SHOWN]!r}")
        return Request(ask, slices)

    return _checked(data, "a client", read)


def say_refused(why: str) -> bytes:
    """Return the answer that something is not done."""
    return _encode({"refused": why[:_SHOWN]})


def say_working(count: int) -> bytes:
    """Return the word that reading goes on; so many bytes since the last."""
    return _encode({"working": count})


def say_mode(mode: int) -> bytes:
    """Return what ends a slice: the permissions of the file."""
    return _encode({"mode": mode & 0o777})


def say_contents(contents: Contents) -> bytes:
    """Return what slices contain."""
    digests = {path: [found.file, *found.parameters] for path, found in contents.digests.items()}
    return _encode({"digests": digests, "problems": dict(contents.problems)})


def say_inventory(told: Mapping[str, Any]) -> bytes:
    """Return what a server has, see `ms_recover.remote.inventories`."""
    return _encode({"version": VERSION, "inventory": told})


def read_mode(data: bytes, where: str) -> int:
    """Read what ends a slice.

    Raises
    ------
    FormatError
        When it is something else.
    RefusedError
        When the server refuses; so for all answers.
    """
    return _checked(data, where, lambda told: count(told, "mode", 0o1000))


def read_contents(data: bytes, where: str, files: Iterable[SliceFile]) -> Contents | int:
    """Read what these slices contain, or how many bytes were read meanwhile; errors as for `read_mode`."""

    def read(told: Mapping[str, Any]) -> Contents | int:
        if "working" in told:
            return count(told, "working", MOST_BYTES)
        digests, problems = get(told, "digests", dict), get(told, "problems", dict)
        read_digests: dict[str, Digests] = {}
        read_problems: dict[str, str] = {}
        for file in files:
            if file.path in digests:
                first, *rest = (_digest(value) for value in as_kind(digests[file.path], list))
                if file.encryption is None and len(rest) != len(file.parameters):
                    raise ValueError(f"{len(rest)} digests for {len(file.parameters)} parameters of {file.path}")
                read_digests[file.path] = Digests(first, tuple(rest))
            else:
                read_problems[file.path] = get(problems, file.path, str)[:_SHOWN]
        return Contents(read_digests, read_problems)

    return _checked(data, where, read)


def read_inventory(data: bytes, where: str, read: Callable[[Mapping[str, Any]], _T]) -> _T:
    """Read what a server has, with what makes nouns of it; errors as for `read_mode`."""

    def versioned(told: Mapping[str, Any]) -> _T:
        if get(told, "version", int) != VERSION:
            raise ValueError(f"version {told['version']}, this side speaks {VERSION}")
        return read(get(told, "inventory", dict))

    return _checked(data, where, versioned)


def _checked(data: bytes, where: str, read: Callable[[Mapping[str, Any]], _T]) -> _T:
    try:
        told = decode_object(data, brackets=_MOST_ENTRIES, commas=4 * _MOST_ENTRIES)
        if "refused" in told:
            raise RefusedError(get(told, "refused", str)[:_SHOWN])
        return read(told)
    except (KeyError, TypeError, ValueError) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"{where} sent what cannot be ({detail[:_SHOWN]}): does it run the same version?") from None


def _slice(told: Mapping[str, Any], offset: int = 0, end: int | None = None) -> SliceRequest:
    size = count(told, "bytes", MOST_BYTES)
    if not offset <= (size if end is None else end) <= size:
        raise ValueError(f"bytes {offset} to {end} of {size}")
    return SliceRequest(inside(told, "path"), FileState(size, get(told, "mtime_ns", int)), offset, end)


def _digest(value: object) -> str:
    text = as_kind(value, str)
    if not _DIGEST.match(text):
        raise ValueError(f"{text[:_SHOWN]!r} is no {DIGEST} digest")
    return text


def _encode(told: Mapping[str, Any]) -> bytes:
    return json.dumps(told, separators=(",", ":")).encode()
