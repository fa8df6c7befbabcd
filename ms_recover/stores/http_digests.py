"""The request for digests that recover-ckpt serve works out, and its answer: one JSON object a line.

``{"version": 1, "files": [{"path", "bytes", "mtime_ns"}]}`` is answered with any number of ``{"working": bytes}``, for
each file one ``{"path", "digests": [file, parameters ...]}`` or ``{"path", "problem"}``, the former with ``"state"``
where the state file is wrong, and ``{"done": true}``.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ms_recover.bounded_json import decode_object, is_text
from ms_recover.errors import AnswerError, FormatError, MsRecoverError, StorageError
from ms_recover.model.contents import Contents
from ms_recover.model.manifest import DIGEST, Digests
from ms_recover.stores.http_client import Response
from ms_recover.stores.patience import BreakError, Pace

VERSION = 1
_LINE = 32 << 20
_MOST_DIGESTS = 1 << 20
_MOST_LINES, _LINES_PER_SECOND = 4096, 64
_SHOWN = 500
_DIGEST = re.compile(rf"{DIGEST}:[0-9a-f]{{32}}\Z", re.ASCII)


class Wanted(NamedTuple):
    """A file to digest, as it has to be; `parameters` is how many digests more it has, None for any number."""

    path: str
    bytes: int
    mtime_ns: int
    parameters: int | None


def request_digests(wanted: Sequence[Wanted]) -> bytes:
    """Return the body of a request."""
    files = [{"path": one.path, "bytes": one.bytes, "mtime_ns": one.mtime_ns} for one in wanted]
    return json.dumps({"version": VERSION, "files": files}, separators=(",", ":")).encode()


def read_digests(response: Response, wanted: Sequence[Wanted], progress: Callable[[int], None], pace: Pace) -> Contents:
    """Read an answer while it comes.

    A line about work counts as the bytes that it reports, up to those that were asked for: the server has to read, or
    to send, as quickly as any has to send.

    Raises
    ------
    StorageError
        When it breaks off, or the server is too slow.
    AnswerError
        When it is no possible answer.
    """
    digests: dict[str, Digests] = {}
    problems: dict[str, str] = {}
    states: dict[str, str] = {}
    left = {one.path: one for one in wanted}
    work = sum(one.bytes for one in wanted)
    try:
        for line in _lines(response, pace, len(wanted)):
            sent = decode_object(line, brackets=2, commas=_MOST_DIGESTS)
            if sent.get("done") is True:
                break
            if isinstance(working := sent.get("working"), int) and 0 <= working < 1 << 60:
                counted = min(working, work)
                work -= counted
                progress(counted)
                pace.came(counted)
                continue
            one = left.pop(_text(sent.get("path")), None)
            if one is None:
                raise ValueError("something that was not asked for")
            pace.came(len(line))
            if "problem" in sent:
                problems[one.path] = _text(sent["problem"])[:_SHOWN]
                continue
            digests[one.path] = _digests(sent.get("digests"), one)
            if "state" in sent:
                states[one.path] = _text(sent["state"])[:_SHOWN]
        else:
            raise BreakError("the answer is cut off")
        if left:
            raise ValueError(f"nothing about {next(iter(left))}")
    except BreakError as error:
        raise StorageError(f"{pace.name} is gone while it works out digests ({error}): run this again") from error
    except AnswerError:
        raise
    except ValueError as error:
        if isinstance(error, MsRecoverError) and not isinstance(error, FormatError):
            raise
        raise AnswerError(
            f"{pace.name} sent an invalid answer ({str(error)[:_SHOWN]}): does it run the same version?"
        ) from None
    return Contents(digests, problems, states)


def _lines(response: Response, pace: Pace, files: int) -> Iterator[bytes]:
    """Yield the lines of an answer; a ValueError where one has no end, or too many come."""
    rest, count, began = bytearray(), 0, time.monotonic()
    while data := response.read(1 << 16):
        pace.came(0)
        searched = len(rest)
        rest += data
        while (end := rest.find(b"\n", searched)) >= 0:
            line, rest, searched = bytes(rest[:end]), rest[end + 1 :], 0
            count += 1
            if count > files + _MOST_LINES + _LINES_PER_SECOND * (time.monotonic() - began):
                raise ValueError("one line about its work follows the other")
            yield line
        if len(rest) > _LINE:
            raise ValueError("a line without end")


def _text(value: object) -> str:
    if not is_text(value):
        raise ValueError("something that is no text")
    assert isinstance(value, str)
    return value


def _digests(value: object, one: Wanted) -> Digests:
    if not isinstance(value, list) or not value or not all(isinstance(d, str) and _DIGEST.match(d) for d in value):
        raise ValueError(f"no digests of {one.path}")
    if one.parameters is not None and len(value) - 1 != one.parameters:
        raise ValueError(f"{len(value) - 1} digests for {one.parameters} parameters of {one.path}")
    return Digests(value[0], () if one.parameters is None else tuple(value[1:]))
