"""The answers of a server to requests."""

from __future__ import annotations

import asyncio
import errno
import hmac
import json
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote

from aiohttp import web

from ms_recover.bounded_json import decode_object
from ms_recover.errors import (
    FormatError,
    MissingInputError,
    MsRecoverError,
    PermissionDeniedError,
    UsageError,
)
from ms_recover.formats.codec import Fields, Path, Size, convert
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.serving.conditions import answer_to, http_time
from ms_recover.serving.connections import SERVER, Connection, abort
from ms_recover.serving.metrics import Metrics
from ms_recover.serving.pages import listing_html, listing_json, wants_json
from ms_recover.serving.sending import send_bytes, send_file
from ms_recover.serving.tree import ServedTree
from ms_recover.stores.http_digests import VERSION, Wanted
from ms_recover.stores.local import StoppedError
from ms_recover.stores.paths import check_path
from ms_recover.system_errors import DENIED

_log = logging.getLogger(__name__)
_BEAT_S = 1.0
BODY_S = 30.0
"""Seconds for the body of a request."""
MOST_BODY = 16 << 20
"""Bytes of the body of a request."""
_SCAN_BEAT_S = 2.0
_MOST_DIGESTING = 8
"""Requests for digests that are worked on at a time; more wait."""


class App:
    """Answers requests for one tree.

    Parameters
    ----------
    token : bytes
        That every client shows; none where it is empty.
    jobs : int
        Threads that digest.
    stop : threading.Event
        Set when the server ends.
    names : collection of str, optional
        Of this host, beside those of loopback: without a token only requests to them are answered, so that no page of
        another site that a browser on this host shows can read the tree by a name of its own (DNS rebinding).
    """

    def __init__(
        self,
        tree: ServedTree,
        token: bytes,
        jobs: int,
        metrics: Metrics,
        stop: threading.Event,
        names: Collection[str] | None = None,
    ) -> None:
        self._tree, self._token, self._jobs, self._metrics, self._stop = tree, token, jobs, metrics, stop
        self._names = names
        self._digesting = ThreadPoolExecutor(_MOST_DIGESTING, thread_name_prefix="digests")
        self.active = 0
        self.last_seen = 0.0

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin()
        self.active += 1
        status = 0
        try:
            response = await self._answer(request)
            status = response.status
            return response
        except (ConnectionError, asyncio.TimeoutError, StoppedError) as error:
            _log.info("a client is gone, or too slow: %s", error or type(error).__name__)
            if request.transport is not None:
                abort(request.transport)
            raise ConnectionResetError from None
        finally:
            self.active -= 1
            if connection.is_client:
                self.last_seen = asyncio.get_running_loop().time()
            connection.end()
            self._metrics.requests[request.method if request.method in _METHODS else "other", status] += 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await self._routed(request)
        except MissingInputError as error:
            return await self._text(request, 404, str(error))
        except (UsageError, FormatError) as error:
            return await self._text(request, 400, str(error))
        except PermissionDeniedError as error:
            return await self._text(request, 403, str(error))
        except (MsRecoverError, OSError) as error:
            if isinstance(error, ConnectionError | TimeoutError):
                raise
            if isinstance(error, MsRecoverError):
                return await self._text(request, 500, str(error))
            status = 404 if error.errno in _GONE else 403 if error.errno in DENIED else 500
            return await self._text(request, status, error.strerror or "cannot be read")

    async def _routed(self, request: web.BaseRequest) -> web.StreamResponse:
        raw, _, query = request.raw_path.partition("?")
        host = request.headers.get("Host")
        if (absolute := _ABSOLUTE.match(raw)) is not None:  # RFC 9112, section 3.2.2: its host counts
            host, raw = absolute[1], absolute[2] or "/"
        if not raw.startswith("/"):
            raise UsageError("a path begins with a slash")
        if not self._token and self._names is not None and not is_own_name(host, self._names):
            return await self._text(request, 421, f"{_OTHER_HOST}; or give it a token")
        path = unquote(raw[1:], errors="surrogateescape")
        if path == "healthz":
            return await self._text(request, 200, "ok") if request.method in _READING else await self._not(request)
        if not self._may(request):
            headers = {"WWW-Authenticate": 'Bearer realm="ms_recover"'}
            return await self._text(request, 401, "a token is needed: give --token-file", headers)
        if path == "metrics":
            self._metrics.scans, self._metrics.digested_bytes = self._tree.scans, self._tree.digested_bytes
            kind = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
            return await self._text(request, 200, self._metrics.text().rstrip("\n"), kind)
        assert isinstance(request.protocol, Connection)
        request.protocol.is_client = True
        _log.info("a client asks: %s %.200s", request.method, raw)
        if path == "v1/digests":
            return await self._digest(request) if request.method == "POST" else await self._not(request, "POST")
        if request.method not in _READING:
            return await self._not(request)
        if path == "v1/inventory":
            return await self._inventory(request)
        folder = path.endswith("/") or not path
        check_path(path.removesuffix("/"))
        if folder:
            return await self._list(request, path.removesuffix("/"), query)
        return await self._file(request, path)

    def _may(self, request: web.BaseRequest) -> bool:
        """Whether a request shows the token."""
        if not self._token:
            return True
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        shown = given.strip().encode(errors="surrogateescape")
        return scheme.lower() == "bearer" and hmac.compare_digest(shown, self._token)

    async def _text(
        self, request: web.BaseRequest, status: int, text: str, headers: dict[str, str] | None = None
    ) -> web.StreamResponse:
        response = _response(status, {"Content-Type": "text/plain; charset=utf-8", **(headers or {})})
        await send_bytes(request, response, f"{text}\n".encode(errors="replace"))
        return response

    async def _not(self, request: web.BaseRequest, allowed: str = "GET, HEAD") -> web.StreamResponse:
        return await self._text(request, 405, f"only {allowed} is possible here", {"Allow": allowed})

    async def _list(self, request: web.BaseRequest, folder: str, query: str) -> web.StreamResponse:
        if not await asyncio.to_thread(self._tree.is_folder, folder):
            raise MissingInputError(f"{folder} is no folder of the tree that is served")
        rows = await asyncio.to_thread(self._tree.list, folder)
        if wants_json(request.headers.get("Accept", ""), query):
            response, data = _response(200, {"Content-Type": "application/json"}), listing_json(rows)
        else:
            response, data = _response(200, {"Content-Type": "text/html; charset=utf-8"}), listing_html(folder, rows)
        response.headers["Vary"] = "Accept"
        await send_bytes(request, response, data)
        return response

    async def _file(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if await asyncio.to_thread(self._tree.is_folder, path):
            last = quote(path.rpartition("/")[2], errors="surrogateescape")
            return await self._text(request, 301, "this is a folder", {"Location": f"./{last}/"})
        descriptor, status = await asyncio.to_thread(self._tree.open, path)
        try:
            state = FileState(status.st_size, status.st_mtime_ns)
            etag, modified = self._tree.etag(path, status), status.st_mtime_ns // 10**9
            answer = answer_to(request.headers, size=state.bytes, etag=etag, modified=modified)
            headers = {
                "ETag": etag,
                "Last-Modified": http_time(modified),
                "Accept-Ranges": "bytes",
                "Content-Type": "application/json" if path.endswith(".json") else "application/octet-stream",
                "X-Ms-Recover-Modified-Ns": str(state.mtime_ns),
                "X-Ms-Recover-Mode": f"{status.st_mode & 0o777:03o}",
            }
            if (digest := self._tree.worked_out(path, state)) is not None:
                headers["X-Ms-Recover-Digest"] = digest
            if answer.status == 206:
                headers["Content-Range"] = f"bytes {answer.start}-{answer.end - 1}/{state.bytes}"
            elif answer.status == 416:
                headers["Content-Range"] = f"bytes */{state.bytes}"
            response = _response(answer.status, headers)
            if answer.status == 304:
                await response.prepare(request)
                await response.write_eof()
                return response
            sent = await send_file(request, response, descriptor, answer.start, answer.end, state)
            self._metrics.sent_bytes += sent
            return response
        finally:
            os.close(descriptor)

    async def _inventory(self, request: web.BaseRequest) -> web.StreamResponse:
        """Scan, and send the inventory; line breaks meanwhile, which JSON may begin with, say that work goes on."""
        scanning = asyncio.ensure_future(asyncio.to_thread(self._tree.encoded, self._stop.is_set))
        response = _response(200, {"Content-Type": "application/json"})
        if (await asyncio.wait([scanning], timeout=_SCAN_BEAT_S))[0] or request.method == "HEAD":
            await send_bytes(request, response, await scanning)
            return response
        await response.prepare(request)
        while not (await asyncio.wait([scanning], timeout=_SCAN_BEAT_S))[0]:
            await response.write(b"\n")
        try:
            data = scanning.result()
        except MsRecoverError as error:
            data = json.dumps({"refused": str(error)}).encode()
        await send_bytes(request, response, data)
        return response

    async def _digest(self, request: web.BaseRequest) -> web.StreamResponse:
        """Digest files, and send how far it is meanwhile; that fails when the client is gone, which ends the work."""
        body = await asyncio.wait_for(_body(request), BODY_S)
        if body is None:
            return await self._text(request, 413, f"a request has at most {MOST_BODY} bytes")
        wanted = read_wanted(body)
        response = _response(200, {"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        read, gone = 0, threading.Event()

        def progress(count: int) -> None:
            nonlocal read
            if self._stop.is_set() or gone.is_set():
                raise StoppedError
            read += count

        loop = asyncio.get_running_loop()
        reading = loop.run_in_executor(self._digesting, self._tree.digests, wanted, progress, self._jobs)
        reported = 0
        try:
            while not (await asyncio.wait([reading], timeout=_BEAT_S))[0]:
                now = read
                await _write_line(response, {"working": now - reported})
                reported = now
            try:
                found = reading.result()
            except (MsRecoverError, OSError) as error:
                raise ConnectionResetError(str(error)) from error
            await _write_line(response, {"working": max(0, read - reported)})
            for one in wanted:
                await _write_line(response, _line(found, one.path))
            await _write_line(response, {"done": True})
            await response.write_eof()
        finally:
            gone.set()
            reading.cancel()
        self._metrics.digested_files += len(found.digests)
        return response


_METHODS = ("GET", "HEAD", "POST")
_READING = ("GET", "HEAD")
_ABSOLUTE = re.compile(r"https?://([^/?#]*)(/.*)?\Z", re.IGNORECASE | re.DOTALL)
_OTHER_HOST = "this server answers only requests to this host by its own name or localhost: ask for that"
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP)


def _response(status: int, headers: dict[str, str]) -> web.StreamResponse:
    common = {"X-Ms-Recover": "1", "Server": SERVER, "Cache-Control": "no-cache"}
    return web.StreamResponse(status=status, headers={**common, "X-Content-Type-Options": "nosniff", **headers})


async def _body(request: web.BaseRequest) -> bytes | None:
    """Return the body of a request; None when it is too long."""
    body = bytearray()
    if (request.content_length or 0) <= MOST_BODY:
        async for data in request.content.iter_any():
            body += data
            if len(body) > MOST_BODY:
                return None
        return bytes(body)
    return None


async def _write_line(response: web.StreamResponse, line: dict[str, Any]) -> None:
    data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
    await asyncio.wait_for(response.write(data), BODY_S)


def _line(found: Contents, path: str) -> dict[str, Any]:
    if path not in found.digests:
        return {"path": path, "problem": found.problems.get(path, "was not read")[:500]}
    digests = found.digests[path]
    line: dict[str, Any] = {"path": path, "digests": [digests.file, *digests.parameters]}
    return {**line, "state": found.states[path][:500]} if path in found.states else line


_MOST_ENTRIES = 1 << 18
_PORT = re.compile(r":\d*\Z", re.ASCII)


class _File(Fields):
    path: Path
    bytes: Size
    mtime_ns: int


class _Digests(Fields):
    version: int
    files: tuple[_File, ...]


def read_wanted(data: bytes) -> list[Wanted]:
    """Return the files to digest.

    Raises
    ------
    FormatError
        When the body is not such a request.
    """
    try:
        asked = convert(decode_object(data, brackets=_MOST_ENTRIES, commas=4 * _MOST_ENTRIES), _Digests)
        if asked.version != VERSION:
            raise ValueError(f"version {asked.version}, this side has version {VERSION}")
        paths = Counter(one.path for one in asked.files)
        if len(paths) < len(asked.files):
            raise ValueError(f"{paths.most_common(1)[0][0]} is asked for twice")
    except ValueError as error:
        raise FormatError(f"this is no request for digests: {str(error)[:500]}") from None
    return [Wanted(one.path, one.bytes, one.mtime_ns, None) for one in asked.files]


def is_own_name(host: str | None, names: Collection[str]) -> bool:
    """Whether a request's Host is this host: an address or a name of loopback, or one of `names`.

    Browsers always send one; a program of before HTTP/1.1 may leave it out.
    """
    if host is None:
        return True
    name = (_PORT.sub("", host.strip()).removeprefix("[").removesuffix("]")).rstrip(".").lower()
    if name in names or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False
