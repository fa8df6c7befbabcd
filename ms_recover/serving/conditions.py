"""Ranges and preconditions of requests (pure), as RFC 9110 has them in its sections 13 and 14."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import format_datetime, parsedate_to_datetime
from typing import Literal

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})\Z", re.ASCII)
_TAG = re.compile(r'(?:W/)?"[^"]*"')


@dataclass(frozen=True, slots=True)
class Answer:
    """How to answer a request for a file: bytes `start` up to `end` with 200 or 206, or another status without."""

    status: Literal[200, 206, 304, 412, 416]
    start: int = 0
    end: int = 0


def http_time(seconds: int) -> str:
    """Return a time as headers have it."""
    return format_datetime(datetime.fromtimestamp(max(0, seconds), timezone.utc), usegmt=True)


def answer_to(headers: Mapping[str, str], *, size: int, etag: str, modified: int) -> Answer:
    """Return the answer to a GET or HEAD with these headers.

    Parameters
    ----------
    headers
        Of the request; names are looked up as written here.
    size : int
        Bytes of the file.
    etag : str
        Its strong tag, with quotes.
    modified : int
        Its modification time in whole seconds.
    """
    match, since = headers.get("If-Match"), headers.get("If-Unmodified-Since")
    if match is not None:
        if not _names(match, etag, weak=False):
            return Answer(412)
    elif since is not None and (before := _seconds(since)) is not None and modified > before:
        return Answer(412)
    none, newer = headers.get("If-None-Match"), headers.get("If-Modified-Since")
    if none is not None:
        if _names(none, etag, weak=True):
            return Answer(304)
    elif newer is not None and (after := _seconds(newer)) is not None and modified <= after:
        return Answer(304)
    wanted = headers.get("Range")
    if wanted is None or not _still(headers.get("If-Range"), etag, modified):
        return Answer(200, 0, size)
    return _range(wanted, size)


def _names(header: str, etag: str, *, weak: bool) -> bool:
    """Whether a list of tags has the file's; a weak one counts only with `weak`."""
    if header.strip() == "*":
        return True
    tags: list[str] = _TAG.findall(header)
    return any((tag.removeprefix("W/") if weak else tag) == etag for tag in tags)


def _still(header: str | None, etag: str, modified: int) -> bool:
    if header is None or header.strip() == etag:
        return True
    return _seconds(header) == modified


def _seconds(text: str) -> int | None:
    try:
        return int(parsedate_to_datetime(text).timestamp())
    except (ValueError, TypeError, OverflowError):
        return None


def _range(text: str, size: int) -> Answer:
    """Return one range of bytes; several, or another unit, are answered with the whole file."""
    found = _RANGE.match(text.strip())
    if found is None or found[1] == found[2] == "":
        return Answer(200, 0, size)
    if found[1] == "":
        last = min(int(found[2]), size)
        return Answer(206, size - last, size) if last else Answer(416)
    start = int(found[1])
    end = size if found[2] == "" else min(int(found[2]) + 1, size)
    if found[2] != "" and int(found[2]) < start:
        return Answer(200, 0, size)  # no valid range, which RFC 9110 lets a server ignore
    return Answer(206, start, end) if start < size else Answer(416)
