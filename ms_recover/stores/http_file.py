"""One file of a web server, read range by range, all of one version."""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPMessage
from typing import TYPE_CHECKING

from ms_recover.errors import AnswerError, VerificationError
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.distant_file import DistantFile
from ms_recover.stores.http_client import Response
from ms_recover.stores.local import StoppedError
from ms_recover.stores.patience import BreakError
from ms_recover.stores.store import Stop, changed_error

if TYPE_CHECKING:
    from ms_recover.stores.http_store import HttpStore

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
        return self._store.client.ask_once(method, self._store.quoted(self._path), headers, stop=stop)

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
