"""The files below a folder of an SFTP server, by asyncssh.

A file stays open while it is read: its handle is the file that was opened, whatever gets its name. The keys of hosts
are those of ``known_hosts``, never added. The protocol is version 3 with OpenSSH's extensions
(draft-ietf-secsh-filexfer-02, OpenSSH ``PROTOCOL``): times are whole seconds.
"""

from __future__ import annotations

import asyncio
import errno
import posixpath
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import asyncssh
import xxhash
from fsspec.asyn import get_loop
from fsspec.config import conf

from ms_recover.errors import (
    FormatError,
    MissingInputError,
    MsRecoverError,
    StorageError,
    UsageError,
    VerificationError,
)
from ms_recover.file_names import temporary_name
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.digest import name_digest
from ms_recover.stores.leftovers import remove_leftovers
from ms_recover.stores.network_store import NetworkStore, without_secrets
from ms_recover.stores.paths import check_path, is_name, join
from ms_recover.stores.ranged_file import BLOCK, IN_FLIGHT, RangedFile
from ms_recover.stores.store import Entry, EntryKind, FileInfo, NewFile, changed_error, never
from ms_recover.stores.url_parts import UrlParts

_R = TypeVar("_R")

_KINDS: Mapping[int, EntryKind] = {
    asyncssh.FILEXFER_TYPE_REGULAR: "file",
    asyncssh.FILEXFER_TYPE_DIRECTORY: "folder",
    asyncssh.FILEXFER_TYPE_SYMLINK: "link",
}
_BROKEN = (asyncssh.SFTPConnectionLost, asyncssh.SFTPNoConnection, asyncssh.SFTPBadMessage, asyncssh.DisconnectError)
_NO_LOGIN = (asyncssh.PermissionDenied, asyncssh.HostKeyNotVerifiable, asyncssh.KeyExchangeFailed)
_CLIENT = {"connect_timeout": 10, "login_timeout": 20, "keepalive_interval": 10, "keepalive_count_max": 2}
_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
"""Tried first where nothing is configured: asyncssh's first choice takes a third more time."""


@dataclass(eq=False, slots=True)
class Session:
    """One connection and its SFTP channel."""

    connection: asyncssh.SSHClientConnection
    sftp: asyncssh.SFTPClient


class SftpStore(NetworkStore):
    """The files below ``sftp://[USER[:PASSWORD]@]HOST[:PORT]/PATH``.

    What the URL leaves open is that of ``~/.ssh/config``; keys are those of the agent and of ``~/.ssh``.
    """

    def __init__(self, url: str) -> None:
        parts = UrlParts.of(url)
        super().__init__(parts.shown)
        if not parts.host:
            raise UsageError(f"{self.url} names no host: write sftp://HOST/PATH")
        self._root = parts.path
        self._options: dict[str, Any] = {**_CLIENT, **conf.get("sftp", {}), "host": parts.host}
        given = {"port": parts.port, "username": parts.user, "password": parts.password}
        self._options |= {key: value for key, value in given.items() if value is not None}
        if self._options.get("known_hosts", ()) is None:
            raise UsageError(
                "fsspec's configuration of sftp turns the check of host keys off: remove known_hosts there"
            )
        self._ciphers: dict[str, str] | None = None
        self._session: Session | None = None
        self._lock: asyncio.Lock | None = None

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(self._drop(self._session), get_loop()).result(5)

    def at(self, path: str) -> str:
        """Return the absolute path on the server."""
        return f"{self._root}/{check_path(path)}" if path else self._root or "/"

    def begin(self, call: Callable[..., Coroutine[Any, Any, _R]], *arguments: Any) -> Future[_R]:
        """Begin a call on fsspec's loop."""
        return asyncio.run_coroutine_threadsafe(call(*arguments), get_loop())

    def renew(self, error: Exception) -> None:
        """Give up a connection that does not answer."""
        if isinstance(error, TimeoutError):
            self.close()

    async def session(self) -> Session:
        """Return the connection, made where there is none."""
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._session is None:
                if self._ciphers is None:
                    self._ciphers = self._quick_ciphers()
                connection = await asyncssh.connect(**self._options, **self._ciphers)
                try:
                    sftp = await connection.start_sftp_client(path_errors="surrogateescape")
                except BaseException:
                    connection.abort()
                    raise
                self._session = Session(connection, sftp)
            return self._session

    def _quick_ciphers(self) -> dict[str, str]:
        """Return the option for `_CIPHERS`; none where ``Ciphers`` in ``~/.ssh/config``, or an option, says others."""
        given = asyncssh.SSHClientConnectionOptions(**{"config": (), **self._options}).encryption_algs
        usual = asyncssh.SSHClientConnectionOptions(config=None, client_keys=None).encryption_algs
        return {"encryption_algs": _CIPHERS} if list(given) == list(usual) else {}

    async def _drop(self, session: Session | None) -> None:
        if session is not None and self._session is session:
            self._session = None
            session.connection.abort()

    async def ask(self, act: Callable[[Session], Awaitable[_R]]) -> _R:
        """Do something on the connection; one that breaks is made anew by the next call."""
        session = await self.session()
        try:
            return await act(session)
        except _BROKEN:
            await self._drop(session)
            raise
        except asyncssh.SFTPError as error:
            raise _system_error(error) from error

    def lasts(self, error: Exception) -> bool:
        """Whether the same call would fail again."""
        if isinstance(error, _NO_LOGIN):
            return True
        return not isinstance(error, asyncssh.Error) and super().lasts(error)

    def explain(self, error: Exception, doing: str, path: str) -> MsRecoverError:
        """Return the error to raise in place of asyncssh's."""
        host = self._options["host"]
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            return StorageError(
                f"{self.url}: the host key of {host} is not the one in known_hosts ({without_secrets(error.reason)}); "
                f"where it is new, connect once with ssh {host} and compare its fingerprint"
            )
        if isinstance(error, asyncssh.PermissionDenied):
            error = PermissionError(error.reason)
        if isinstance(error, OSError) and error.errno == errno.ENOTSUP:
            return StorageError(f"{doing} {self.name(path)}: the server cannot do that ({without_secrets(str(error))})")
        return super().explain(error, doing, path)

    def list(self, folder: str) -> list[Entry]:
        """List a folder."""
        at = self.at(folder)

        async def act(session: Session) -> list[Entry]:
            return [self._entry(folder, one) async for one in session.sftp.scandir(at) if is_name(str(one.filename))]

        return sorted(self.call("listing", folder, self.ask, act), key=lambda entry: entry.name)

    def _entry(self, folder: str, found: asyncssh.SFTPName) -> Entry:
        name, kind = str(found.filename), _KINDS.get(found.attrs.type, "other")
        return Entry(
            name=name, kind=kind, info=self.info_of(join(folder, name), found.attrs) if kind == "file" else None
        )

    def stat(self, path: str) -> FileInfo:
        """Return the state of a file."""
        at = self.at(path)

        async def act(session: Session) -> FileInfo:
            return self.info_of(path, await session.sftp.stat(at))

        info: FileInfo = self.call("reading", path, self.ask, act)
        return info

    def info_of(self, path: str, found: asyncssh.SFTPAttrs) -> FileInfo:
        """Return the state that attributes are."""
        if found.type != asyncssh.FILEXFER_TYPE_REGULAR:
            raise FormatError(f"{self.name(path)} is no regular file: name the file itself")
        if found.size is None or found.mtime is None:
            raise StorageError(f"{self.name(path)}: the server names no size or time; it cannot be read safely")
        return FileInfo(size=found.size, mtime_ns=found.mtime * 10**9 + (found.mtime_ns or 0))

    def open(self, path: str, expected: FileState | None = None) -> SftpFile:
        """Open a file; it stays open on the server."""
        return SftpFile(self, path, expected)

    def create(self, path: str) -> SftpNewFile:
        """Return a file to write."""
        return SftpNewFile(self, path)

    def remove(self, path: str) -> None:
        """Remove a file."""
        at = self.at(path)

        async def act(session: Session) -> None:
            await session.sftp.remove(at)

        with suppress(MissingInputError):
            self.call("removing", path, self.ask, act)


class SftpFile(RangedFile):
    """A file that is open on the server; after a break the file of that name is opened again, and compared."""

    _store: SftpStore

    def __init__(self, store: SftpStore, path: str, expected: FileState | None) -> None:
        self._session: Session | None = None
        self._handle: asyncssh.SFTPClientFile | None = None
        self._lock: asyncio.Lock | None = None
        self._permissions = 0
        self._at = store.at(path)
        self._first: FileInfo | None = None
        info = store.call("reading", path, store.ask, lambda session: self._state(session, store, path))
        self._first = info
        super().__init__(store, path, info, None)
        if expected is not None and info.state != expected:
            self.close()
            raise changed_error(self.name, info.state, expected)

    async def _state(self, session: Session, store: SftpStore, path: str) -> FileInfo:
        """Open the file on this connection where it is not, and return its state."""
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._session is not session or self._handle is None:
                self._session, self._handle = session, None
                handle = await session.sftp.open(self._at, "rb")
                try:
                    found = store.info_of(path, await handle.stat())
                    if self._first is not None:
                        self.compare(found)
                except BaseException:
                    with suppress(Exception):
                        await handle.close()
                    raise
                self._handle = handle
            attributes = await self._handle.stat()
            self._permissions = attributes.permissions or 0
            return store.info_of(path, attributes)

    def close(self) -> None:
        """Close the file on the server."""
        handle, self._handle = self._handle, None
        if handle is not None and self._session is not None and not self._session.connection.is_closed():
            with suppress(Exception):
                asyncio.run_coroutine_threadsafe(handle.close(), get_loop()).result(5)

    @property
    def fetch(self) -> Callable[[int, int], Coroutine[Any, Any, bytes]]:
        """Read a range of the open file."""
        return self._fetch

    async def _fetch(self, start: int, end: int) -> bytes:
        async def act(session: Session) -> bytes:
            if self._session is not session or self._handle is None:
                await self._state(session, self._store, self._path)
            assert self._handle is not None
            data: bytes = await self._handle.read(end - start, start)
            if len(data) != end - start:
                self.compare(self._store.info_of(self._path, await self._handle.stat()))
                raise ConnectionError(f"{len(data)} bytes came instead of {end - start}")
            return data

        return await self._store.ask(act)

    def check_unchanged(self) -> None:
        """Compare the state of the open file, and that of the file that has the name now."""
        self.compare(self._opened())
        super().check_unchanged()

    def _opened(self) -> FileInfo:
        store, path = self._store, self._path
        info: FileInfo = store.call("reading", path, store.ask, lambda session: self._state(session, store, path))
        return info

    def form(self) -> FileForm:
        """Return permissions and time of the open file."""
        info = self._opened()
        return FileForm(self._permissions & 0o777, info.mtime_ns)


def _system_error(error: asyncssh.SFTPError) -> OSError:
    """Return the system error that an answer of the server means."""
    if isinstance(error, (asyncssh.SFTPNoSuchFile, asyncssh.SFTPNoSuchPath)):
        return FileNotFoundError(errno.ENOENT, error.reason)
    if isinstance(error, (asyncssh.SFTPPermissionDenied, asyncssh.SFTPWriteProtect)):
        return PermissionError(errno.EACCES, error.reason)
    if isinstance(error, asyncssh.SFTPNotADirectory):
        return NotADirectoryError(errno.ENOTDIR, error.reason)
    if isinstance(error, (asyncssh.SFTPNoSpaceOnFilesystem, asyncssh.SFTPQuotaExceeded)):
        return OSError(errno.ENOSPC, error.reason)
    if isinstance(error, asyncssh.SFTPOpUnsupported):
        return OSError(errno.ENOTSUP, error.reason)
    return OSError(errno.EINVAL, f"the server answers: {error.reason}")


class SftpNewFile(NewFile):
    """A file that is written in blocks under a temporary name, synced, and then renamed.

    One that was written over a broken connection is read back.
    """

    def __init__(self, store: SftpStore, path: str) -> None:
        folder, name = posixpath.split(path)
        self._store, self._path, self._target = store, path, store.at(path)
        self._temporary = posixpath.join(folder, temporary_name(f"{name}.{secrets.token_hex(4)}"))
        self._at = store.at(self._temporary)
        self._session: Session | None = None
        self._handle: asyncssh.SFTPClientFile | None = None
        self._lock: asyncio.Lock | None = None
        self._opened = self._size = 0
        self._left = bytearray()
        self._begun: deque[tuple[int, bytes, Future[None]]] = deque()
        self._digest = xxhash.xxh3_128()
        self._committed = False

    def __enter__(self) -> SftpNewFile:
        self._store.call("writing", self._path, self._store.ask, self._open)
        return self

    def __exit__(self, *_: object) -> None:
        for _offset, _data, future in self._begun:
            future.cancel()
        if not self._committed:
            with suppress(MsRecoverError):
                self._store.call("writing", self._path, self._store.ask, self._close)
            with suppress(MsRecoverError):
                self._store.remove(self._temporary)

    async def _open(self, session: Session) -> asyncssh.SFTPClientFile:
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if self._session is not session or self._handle is None:
                self._session, self._handle = session, None
                if not self._opened and (folder := posixpath.dirname(self._at)).strip("/"):
                    await session.sftp.makedirs(folder, exist_ok=True)
                self._handle = await session.sftp.open(self._at, "r+b" if self._opened else "wb")
                self._opened += 1
            return self._handle

    async def _close(self, session: Session) -> None:
        handle, self._handle = self._handle, None
        if handle is not None and self._session is session:
            await handle.close()

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; whole blocks are sent."""
        self._digest.update(data)
        self._left += data
        while len(self._left) >= BLOCK:
            self._send(bytes(self._left[:BLOCK]))
            del self._left[:BLOCK]

    def _send(self, data: bytes) -> None:
        while len(self._begun) >= IN_FLIGHT:
            self._receive()
        self._begun.append((self._size, data, self._store.begin(self._put, self._size, data)))
        self._size += len(data)

    def _receive(self) -> None:
        offset, data, future = self._begun.popleft()
        self._store.finish(future, "writing", self._path, self._put, offset, data)

    async def _put(self, offset: int, data: bytes) -> None:
        async def act(session: Session) -> None:
            handle = await self._open(session)
            await handle.write(data, offset)

        await self._store.ask(act)

    def commit(self, form: FileForm | None = None) -> None:
        """Sync the file where the server can, give it permissions and time, and its name."""
        if self._left:
            self._send(bytes(self._left))
            self._left.clear()
        while self._begun:
            self._receive()
        self._call(self._sync)
        if self._opened > 1:
            self._check()
        remove_leftovers(self._store, self._temporary)
        if form is not None:
            self._call(lambda session: self._shape(session, form))
        self._call(self._rename)
        self._committed = True

    def _call(self, act: Any) -> None:
        self._store.call("writing", self._path, self._store.ask, act)

    async def _sync(self, session: Session) -> None:
        handle = await self._open(session)
        with suppress(asyncssh.SFTPOpUnsupported):
            await handle.fsync()
        size = (await handle.stat()).size
        await self._close(session)
        if size != self._size:
            raise StorageError(
                f"{self._store.name(self._path)} has {size} bytes instead of {self._size}: write it again"
            )

    def _check(self) -> None:
        with self._store.open(self._temporary) as file:
            if file.digest(never) != name_digest(self._digest):
                raise VerificationError(f"{file.name} does not hold the bytes that were written: write it again")

    async def _shape(self, session: Session, form: FileForm) -> None:
        seconds = form.mtime_ns // 10**9
        shape = asyncssh.SFTPAttrs(permissions=form.mode & 0o777, atime=seconds, mtime=seconds)
        await session.sftp.setstat(self._at, shape)

    async def _rename(self, session: Session) -> None:
        sftp = session.sftp
        try:
            await sftp.posix_rename(self._at, self._target)
        except asyncssh.SFTPOpUnsupported:  # cannot replace: for a moment the name has no file
            with suppress(asyncssh.SFTPNoSuchFile):
                await sftp.remove(self._target)
            await sftp.rename(self._at, self._target)
        except asyncssh.SFTPNoSuchFile:
            if not await sftp.exists(self._target) or await sftp.getsize(self._target) != self._size:
                raise  # otherwise it was renamed, and the answer was lost
