"""The request for digests that recover-ckpt serve works out, and its answer: one JSON object a line.

``{"version": 1, "files": [{"path", "bytes", "mtime_ns"}]}`` is answered with any number of ``{"working": bytes}``, for
each file one ``{"path", "digests": [file, parameters ...]}`` or ``{"path", "problem"}``, the former with ``"state"``
where the state file is wrong, and ``{"done": true}``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ms_recover.errors import FormatError, StorageError
from ms_recover.model.contents import Contents
from ms_recover.model.manifest import DIGEST, Digests
from ms_recover.stores.http_client import Response
from ms_recover.stores.patience import BreakError

VERSION = 1
_LINE = 32 << 20
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


def read_digests(
    response: Response, wanted: Sequence[Wanted], progress: Callable[[int], None], server: str
) -> Contents:
    """Read an answer while it comes.

    Raises
    ------
    StorageError
        When it breaks off.
    FormatError
        When it is no possible answer.
    """
    digests: dict[str, Digests] = {}
    problems: dict[str, str] = {}
    states: dict[str, str] = {}
    left = {one.path: one for one in wanted}
    try:
        for line in _lines(response):
            sent = _object(line)
            if sent.get("done") is True:
                break
            if isinstance(working := sent.get("working"), int) and 0 <= working < 1 << 60:
                progress(working)
                continue
            one = left.pop(_text(sent.get("path")), None)
            if one is None:
                raise ValueError("something that was not asked for")
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
        raise StorageError(f"{server} is gone while it works out digests ({error}): run this again") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{server} sent an invalid answer ({str(error)[:_SHOWN]}): does it run the same version?"
        ) from None
    return Contents(digests, problems, states)


def _lines(response: Response) -> Iterator[bytes]:
    rest = b""
    while data := response.read(1 << 16):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
        if len(rest) > _LINE:
            raise ValueError("a line without end")


def _object(line: bytes) -> dict[str, Any]:
    found = json.loads(line.decode())
    if not isinstance(found, dict):
        raise ValueError("a line that is no object")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("something that is no text")
    return value


def _digests(value: object, one: Wanted) -> Digests:
    if not isinstance(value, list) or not value or not all(isinstance(d, str) and _DIGEST.match(d) for d in value):
        raise ValueError(f"no digests of {one.path}")
    if one.parameters is not None and len(value) - 1 != one.parameters:
        raise ValueError(f"{len(value) - 1} digests for {one.parameters} parameters of {one.path}")
    return Digests(value[0], tuple(value[1:]))
