"""Write a file over SFTP: under a temporary name beside it, synced, then renamed over the name."""

from __future__ import annotations

import asyncio
import posixpath
import secrets
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import asyncssh
import xxhash

from ms_recover.errors import MsRecoverError, StorageError, VerificationError
from ms_recover.file_names import temporary_name
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.digest import name_digest
from ms_recover.stores.leftovers import remove_leftovers
from ms_recover.stores.ranged_file import BLOCK, IN_FLIGHT
from ms_recover.stores.store import NewFile, never

if TYPE_CHECKING:
    from ms_recover.stores.sftp_store import Session, SftpStore


class SftpNewFile(NewFile):
    """A file that is written in blocks; one that was written over a broken connection is read back."""

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
