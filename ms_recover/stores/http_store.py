"""The files of a web server: recover-ckpt serve, or any that lists folders, such as nginx with ``autoindex on``."""

from __future__ import annotations

import base64
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage
from typing import TypeVar
from urllib.parse import quote, unquote, urlsplit

from ms_recover.errors import (
    AnswerError,
    FormatError,
    InputError,
    MissingInputError,
    PermissionDeniedError,
    StorageError,
    UsageError,
    VerificationError,
)
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import SliceFile
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.distant_file import DistantFile
from ms_recover.stores.http_access import TOKEN_FILE_VARIABLE, Access
from ms_recover.stores.http_client import HttpClient, Request, Response
from ms_recover.stores.http_digests import Wanted, read_digests, request_digests
from ms_recover.stores.http_listing import MOST_BYTES, parse_listing
from ms_recover.stores.local import StoppedError
from ms_recover.stores.paths import check_path
from ms_recover.stores.patience import BreakError, Limits
from ms_recover.stores.store import Entry, FileInfo, OpenFile, Stop, Store, changed_error, never

_log = logging.getLogger(__name__)
PIECE = 8 << 20
"""Bytes that are requested at a time where several connections read one file."""
QUICK = 250_000_000
"""Bytes a second above which one connection is enough."""
_CHUNK = 1 << 20
_LEAST_BUFFER = 64 << 10
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)\Z", re.ASCII)
_MODE = 0o600
MODIFIED, MODE, DIGEST = "X-Ms-Recover-Modified-Ns", "X-Ms-Recover-Mode", "X-Ms-Recover-Digest"
"""Headers of recover-ckpt serve: the modification time in nanoseconds, permissions in octal, a digest worked out."""

_T = TypeVar("_T")
_REDIRECTS = (301, 302, 307, 308)
_HELPERS = 4
_AHEAD = 3
_MOST_INVENTORY = 256 << 20
_PATIENT = 3.0
"""Times the time limit that recover-ckpt serve may be silent while it works on the bytes of its tree."""


@dataclass(frozen=True, slots=True)
class Version:
    """What a server says of a file; `exact` where its time is in nanoseconds, so that it changes with the contents."""

    size: int | None
    mtime_ns: int
    etag: str | None
    modified: str | None
    mode: int
    exact: bool = False

    @classmethod
    def of(cls, headers: HTTPMessage, size: int | None) -> Version:
        """Read the headers of an answer."""
        modified, exact, mode = headers.get("Last-Modified"), headers.get(MODIFIED, ""), headers.get(MODE, "")
        is_exact = re.fullmatch(r"-?\d{1,19}", exact, re.ASCII) is not None
        mtime_ns = int(exact) if is_exact else _nanoseconds(modified)
        permissions = int(mode, 8) if re.fullmatch(r"[0-7]{3}", mode, re.ASCII) else _MODE
        return cls(size, mtime_ns, headers.get("ETag"), modified, permissions, is_exact)

    def pins(self) -> dict[str, str]:
        """Return the headers of a request for bytes of this version and no other."""
        if self.etag is not None and not self.etag.startswith("W/"):
            return {"If-Match": self.etag}
        return {"If-Unmodified-Since": self.modified} if self.modified is not None else {}

    def is_like(self, other: Version) -> bool:
        """Whether two answers are about the same bytes, as far as they say.

        recover-ckpt serve may give a file another tag of the same state, once it knows the digest or has forgotten it.
        """
        if self.mtime_ns != other.mtime_ns or (None not in (self.size, other.size) and self.size != other.size):
            return False
        tags = (self.etag or "").removeprefix("W/"), (other.etag or "").removeprefix("W/")
        return tags[0] == tags[1] or "" in tags or (self.exact and other.exact)


def _nanoseconds(modified: str | None) -> int:
    try:
        return int(parsedate_to_datetime(modified or "").timestamp()) * 10**9
    except (ValueError, TypeError, OverflowError):
        return 0


class HttpFile(DistantFile):
    """A file of a web server."""

    def __init__(self, store: HttpStore, path: str, size: int, version: Version | None, expected: FileState | None):
        super().__init__(store.shown(path), size)
        self._store, self._path, self._version, self._expected = store, path, version, expected

    def read_range(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Request a range of bytes; see `OpenFile.read_range`.

        The rest of a long one comes over several connections where the first piece came slowly: a network, not a
        processor, is then what limits one connection.
        """
        end = min(end, self.size)
        first = min(start + PIECE, end) if end - start >= 2 * PIECE else end
        began = time.monotonic()
        self._stream(start, first, take, stop)
        if first == end:
            return
        quick = time.monotonic() - began < PIECE / QUICK
        with self._store.helpers(wanted=not quick) as submit:
            if submit is None:
                self._stream(first, end, take, stop)
            else:
                self._in_pieces(first, end, take, stop, submit)

    def _in_pieces(
        self,
        start: int,
        end: int,
        take: Callable[[memoryview], None],
        stop: Stop,
        submit: Callable[[Callable[[], memoryview]], Future[memoryview]],
    ) -> None:
        """Request pieces ahead of the one that is taken."""
        ended = False

        def fetch(first: int) -> memoryview:
            found = memoryview(bytearray(min(PIECE, end - first)))
            done = 0

            def keep(data: memoryview) -> None:
                nonlocal done
                found[done : done + len(data)] = data
                done += len(data)

            self._stream(first, first + len(found), keep, lambda: ended or stop())
            return found

        coming: deque[Future[memoryview]] = deque()
        try:
            following = start
            while following < end or coming:
                while following < end and len(coming) < self._store.ahead:
                    coming.append(submit(lambda first=following: fetch(first)))  # type: ignore[misc]
                    following += PIECE
                take(coming.popleft().result())
        finally:
            ended = True
            for future in coming:
                future.cancel()
            for future in coming:
                if not future.cancelled():
                    future.exception()

    def _stream(self, start: int, end: int, take: Callable[[memoryview], None], stop: Stop) -> None:
        """Request bytes, and after a break those that did not come."""
        patience, pace = self._store.client.patience(), self._store.client.pace(self.name)
        buffer = memoryview(bytearray(min(_CHUNK, max(end - start, _LEAST_BUFFER))))
        while start < end:
            pinned = self._version  # other connections for this file may pin another one meanwhile
            try:
                with self._ask("GET", start, end, pinned, stop) as response:
                    skip = self._check(response, start, end, pinned)
                    while start < end and (count := response.read_into(buffer)):
                        if stop():
                            raise StoppedError
                        pace.came(count)
                        view = buffer[skip:count]
                        skip = max(0, skip - count)
                        if len(view) > end - start:
                            if response.status == 206:
                                raise AnswerError(f"{self.name}: more bytes come than were asked for: see the server")
                            view = view[: end - start]  # the rest of a file that came whole
                        if view:
                            take(view)
                            start += len(view)
                            patience.progress()
                            pace.resume()
                    if start < end:
                        raise BreakError("fewer bytes come than were announced")
                    if response.status == 206 and response.read(1):
                        raise AnswerError(f"{self.name}: more bytes come than were asked for: see the server")
            except BreakError as error:
                self._store.client.wait(patience, error, stop)
                pace.came(0)
                _log.warning("%s: %s: resuming at byte %d", self.name, error, start)

    def _ask(self, method: str, start: int, end: int, pinned: Version | None, stop: Stop) -> Response:
        headers = {} if pinned is None else pinned.pins()
        if method == "GET":
            headers["Range"] = f"bytes={start}-{end - 1}"
        return self._store.client.ask_once(
            Request(method=method, path=self._store.quoted(self._path), headers=headers), stop=stop
        )

    def _check(self, response: Response, start: int, end: int, pinned: Version | None) -> int:
        """Return how many bytes of an answer to pass over; check that it is what was asked for."""
        if response.status == 412 and self._has_new_tag(pinned):
            raise BreakError("the server gives the same file another tag", pause=0.0)
        self._store.check_status(response, self._path, (200, 206))
        if response.status == 200:  # a server that knows no ranges
            self._pin(Version.of(response.headers, response.length))
            return start
        found = _RANGE.match(response.headers.get("Content-Range", ""))
        if found is None or (int(found[1]), int(found[2])) != (start, end - 1):
            raise AnswerError(
                f"{self.name}: other bytes come than were asked for: the server does not know ranges well"
            )
        if response.length not in (None, end - start):
            raise AnswerError(f"{self.name}: its length is not what the header says: see the server")
        self._pin(Version.of(response.headers, None if found[3] == "*" else int(found[3])))
        return 0

    def _has_new_tag(self, pinned: Version | None) -> bool:
        """Whether only the tag is another one than was asked for, which counts from then on."""
        if pinned is None or not pinned.exact:
            return False
        now = self._store.head(self._path)
        if now.etag == pinned.etag or not now.is_like(pinned):
            return False
        self._version = now
        return True

    def _pin(self, version: Version) -> None:
        """Compare an answer with the version that was opened; the first one is compared with what was expected."""
        if self._version is None and self._expected is not None:
            state = FileState(self._expected.bytes if version.size is None else version.size, version.mtime_ns)
            if state != self._expected:
                raise self._changed(state)
            self._version = version
        elif self._version is not None and not version.is_like(self._version):
            raise self._changed(None)

    def _changed(self, state: FileState | None) -> VerificationError:
        if state is None or self._expected is None:
            return VerificationError(f"{self.name} changes while it is read: plan again")
        return changed_error(self.name, state, self._expected)

    def check_unchanged(self) -> None:
        """Ask for the headers again, and compare them; see `OpenFile.check_unchanged`."""
        version = self._store.head(self._path)
        if self._expected is not None and FileState(version.size or 0, version.mtime_ns) != self._expected:
            raise self._changed(FileState(version.size or 0, version.mtime_ns))
        self._pin(version)

    def form(self) -> FileForm:
        """Return the permissions that the server names, otherwise those of a private file, for the owner here."""
        if self._version is None:
            self.check_unchanged()
        assert self._version is not None
        return FileForm(self._version.mode, self._version.mtime_ns)

    def digest(self, stop: Stop) -> str:
        """Let the server read the file where it can; see `OpenFile.digest`."""
        if self._version is None:
            self.check_unchanged()
        assert self._version is not None
        found = self._store.digest_there(self._path, FileState(self.size, self._version.mtime_ns), stop)
        return super().digest(stop) if found is None else found


class HttpStore(Store):
    """The files below a URL; threads share it.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://``, to a folder. A user and password in it are for Basic authentication, and shown
        nowhere.
    access : Access, optional
        Token and TLS; by default those of the environment.
    timeout, min_rate : float, optional
        How long the server is waited for, as `Limits` says; by default as the environment says.

    Raises
    ------
    UsageError
        When the URL is invalid, or the token would cross a network without TLS.
    """

    ahead = _AHEAD

    def __init__(
        self,
        url: str,
        access: Access | None = None,
        timeout: float | None = None,
        min_rate: float | None = None,
    ) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise UsageError(f"the URL of a web server is invalid: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError("the URL of a web server is http://HOST:PORT/folder/ or https://HOST:PORT/folder/")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        netloc = host if port is None else f"{host}:{port}"
        base = parts._replace(netloc=netloc, path=quote(unquote(parts.path.rstrip("/"))) + "/")
        super().__init__(base.geturl().rstrip("/"))
        self.host = f"{host}:{port or (443 if parts.scheme == 'https' else 80)}"
        basic = None
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            basic = base64.b64encode(user.encode()).decode()
        access = Access.from_environment() if access is None else access
        self.client = HttpClient(base, self.url, access, Limits.from_environment(timeout, min_rate), basic)
        self._free = threading.BoundedSemaphore(_HELPERS)
        self._pool: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connections, and wait for the threads that read."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)
        self.client.close()

    def list(self, folder: str) -> list[Entry]:
        """Request the listing of a folder; see `Store.list`."""
        path = self.quoted(check_path(folder)) + "/" if folder else ""
        headers = {"Accept": "application/json, text/html;q=0.9"}
        with self.client.ask(Request(path=path, headers=headers)) as response:
            self.check_status(response, folder, (200,))
            data = self._read_all(response, path)
            try:
                return parse_listing(data, response.headers.get("Content-Type", ""))
            except ValueError as error:
                raise AnswerError(
                    f"{self.shown(folder)} has no listing that can be used ({error}): the server has to list folders "
                    "(nginx: autoindex on)"
                ) from None

    def _read_all(self, response: Response, path: str) -> bytearray:
        try:
            return response.read_all(MOST_BYTES, f"the listing of {self.shown(unquote(path))}")
        except BreakError as error:
            raise StorageError(
                f"{self.shown(unquote(path))}: its listing is cut off ({error}): run this again"
            ) from error

    def stat(self, path: str) -> FileInfo:
        """Ask for the headers of a file; see `Store.stat`."""
        with self._head(check_path(path)) as response:
            self.check_status(response, path, (200,))
            version = Version.of(response.headers, response.length)
            if version.size is None:
                raise AnswerError(f"{self.shown(path)}: the server does not say how long it is, so it cannot be read")
            digest = response.headers.get(DIGEST)
            return FileInfo(size=version.size, mtime_ns=version.mtime_ns, version=version.etag, digest=digest)

    def open(self, path: str, expected: FileState | None = None) -> OpenFile:
        """Open a file; one that is expected in some state is compared when it is read. See `Store.open`."""
        check_path(path)
        if expected is not None:
            return HttpFile(self, path, expected.bytes, None, expected)
        version = self.head(path)
        if version.size is None:
            raise AnswerError(f"{self.shown(path)}: the server does not say how long it is, so it cannot be read")
        return HttpFile(self, path, version.size, version, None)

    def read_small(self, path: str, what: str, limit: int) -> bytes:
        """Request a file with one request, or as others where that breaks; see `Store.read_small`."""
        request = Request(path=self.quoted(check_path(path)), accept=_REDIRECTS)
        with suppress(BreakError), self.client.ask_once(request) as response:
            if response.status not in _REDIRECTS and response.length is not None:
                self.check_status(response, path, (200,))
                if response.length <= limit:
                    return bytes(response.read_all(limit, self.shown(path)))
        return super().read_small(path, what, limit)

    def head(self, path: str) -> Version:
        """Return what the server says of a file; errors as for `stat`."""
        with self._head(path) as response:
            self.check_status(response, path, (200,))
            return Version.of(response.headers, response.length)

    def _head(self, path: str) -> Response:
        response = self.client.ask(Request(method="HEAD", path=self.quoted(path), accept=_REDIRECTS))
        if response.status != 200 and response.headers.get("Location", "").endswith("/"):
            with response:
                raise FormatError(f"{self.shown(path)} is no regular file but a folder: check the path")
        if response.status in _REDIRECTS:
            with response:
                pass
            return self.client.ask(Request(method="HEAD", path=self.quoted(path)))
        return response

    def inventory(self) -> bytes | bytearray | None:
        """Return the inventory that recover-ckpt serve makes of its tree, as JSON; None of another server.

        Raises
        ------
        MsRecoverError
            When it does not come, or is too large.
        """
        with self.client.ask(Request(path="v1/inventory", silence=_PATIENT * self.client.timeout)) as response:
            if not self.client.is_ours:
                return None
            self.check_status(response, "v1/inventory", (200,))
            try:
                return response.read_all(_MOST_INVENTORY, f"the inventory of {self.url}", after_spaces=True)
            except BreakError as error:
                raise StorageError(f"{self.url}: its inventory is cut off ({error}): run this again") from error

    def digests(self, files: Sequence[SliceFile], progress: Callable[[int], None]) -> Contents | None:
        """Let recover-ckpt serve digest slices; None of another server. See `Store.digests`."""
        wanted = [Wanted(file.path, file.size, file.mtime_ns, _parameters(file)) for file in files]
        return self._digests(wanted, progress, never)

    def digest_there(self, path: str, state: FileState, stop: Stop) -> str | None:
        """Return the digest of one file that recover-ckpt serve reads; None of another server.

        Raises
        ------
        VerificationError
            When it cannot be read there.
        MsRecoverError
            When the server is gone, or sends an invalid answer.
        """
        found = self._digests([Wanted(path, state.bytes, state.mtime_ns, None)], lambda count: None, stop)
        if found is None:
            return None
        if path not in found.digests:
            raise VerificationError(f"{self.shown(path)} cannot be read: {found.problems.get(path)}")
        return found.digests[path].file

    def _digests(self, wanted: Sequence[Wanted], progress: Callable[[int], None], stop: Stop) -> Contents | None:
        if self.client.is_ours is None:
            with self.client.ask(Request(method="HEAD", path="")):
                pass
        if not self.client.is_ours:
            return None
        request = Request(
            method="POST",
            path="v1/digests",
            headers={"Content-Type": "application/json"},
            body=request_digests(wanted),
            silence=_PATIENT * self.client.timeout,
        )
        with self.client.ask(request, stop=stop) as response:
            self.check_status(response, "v1/digests", (200,))
            return read_digests(response, wanted, progress, self.client.pace(self.url))

    def check_status(self, response: Response, path: str, right: tuple[int, ...]) -> None:
        """Raise the error that the status of an answer means, unless it is one of the right ones."""
        status, name = response.status, self.shown(path)
        if status in right:
            if response.encoding is not None:
                raise AnswerError(
                    f"{name} comes encoded ({response.encoding}), though nobody asked for that: turn it off"
                )
            return
        if status in (404, 410):
            raise MissingInputError(f"{name}: the server has no such file: plan again")
        if status == 401:
            raise InputError(
                f"{self.url} does not let this node in: give both sides the same token, with --token-file or in "
                f"{TOKEN_FILE_VARIABLE}"
            )
        if status == 403:
            raise PermissionDeniedError(
                f"{name}: the server may not, or will not, give it: check its permissions there"
            )
        if status in (409, 412, 416):
            raise VerificationError(f"{name} is not what it was: it changed on the server; plan again")
        raise AnswerError(f"{name}: the server refuses ({status} {response.reason[:100]}): see its log")

    def quoted(self, path: str) -> str:
        """Return a path as it stands in a request."""
        return quote(path, errors="surrogateescape")

    def shown(self, path: str) -> str:
        """Return the URL of a file for messages."""
        return f"{self.url}/{path}" if path else self.url

    @contextmanager
    def helpers(self, *, wanted: bool) -> Iterator[Callable[[Callable[[], _T]], Future[_T]] | None]:
        """Give a function that runs something in a thread; None where it is not wanted, or enough files use some."""
        if not wanted or not self._free.acquire(blocking=False):
            yield None
            return
        try:
            with self._lock:
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(_HELPERS * _AHEAD, thread_name_prefix="fetch")
            yield self._pool.submit
        finally:
            self._free.release()


def _parameters(file: SliceFile) -> int | None:
    """Return how many digests of parameters a slice has; None where they are not known."""
    return None if file.encryption is not None else len(file.parameters)
