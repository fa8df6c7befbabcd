"""Write an S3 object: one ``PutObject``, or a multipart upload, completed at the commit and aborted otherwise."""

from __future__ import annotations

import hashlib
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ms_recover.errors import MissingInputError, MsRecoverError, StorageError
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.store import NewFile

if TYPE_CHECKING:
    from ms_recover.stores.s3_store import S3Store

PART = 8 << 20
"""Bytes of a part; S3 takes no fewer than 5 MiB but in the last, and no more than 10,000 parts."""

_LARGE_PART, _SMALL_PARTS = 128 << 20, 4096
_IN_FLIGHT = 3


class S3NewFile(NewFile):
    """An object that nobody sees before its commit."""

    def __init__(self, store: S3Store, path: str) -> None:
        self._store, self._path, self._key = store, path, store.key(path)
        self._left = bytearray()
        self._upload: str | None = None
        self._begun: deque[tuple[int, bytes, Future[Any]]] = deque()
        self._etags: list[str] = []
        self._parts = self._size = 0

    def __enter__(self) -> S3NewFile:
        return self

    def __exit__(self, *_: object) -> None:
        for _number, _data, future in self._begun:
            future.cancel()
        if self._upload is not None:
            with suppress(MsRecoverError):
                self._store.call("writing", self._path, self._abort)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes; whole parts are sent."""
        self._left += data
        self._size += len(data)
        while len(self._left) > (length := PART if self._parts < _SMALL_PARTS else _LARGE_PART):
            self._send(bytes(self._left[:length]))
            del self._left[:length]

    def _send(self, data: bytes) -> None:
        if self._upload is None:
            self._upload = self._store.call("writing", self._path, self._start)
        while len(self._begun) >= _IN_FLIGHT:
            self._receive()
        self._parts += 1
        self._begun.append((self._parts, data, self._store.begin(self._put_part, self._parts, data)))

    def _receive(self) -> None:
        number, data, future = self._begun.popleft()
        self._etags.append(self._store.finish(future, "writing", self._path, self._put_part, number, data))

    def commit(self, form: FileForm | None = None) -> None:
        """Put the object, or its parts together; permissions and time are not kept."""
        if self._upload is None:
            self._store.call("writing", self._path, self._put)
        else:
            if self._left:
                self._send(bytes(self._left))
            while self._begun:
                self._receive()
            try:
                self._store.call("writing", self._path, self._complete)
            except MissingInputError:  # completed, and the answer was lost, or aborted by others
                etags = b"".join(bytes.fromhex(etag.strip('"')) for etag in self._etags)
                together = f'"{hashlib.md5(etags, usedforsecurity=False).hexdigest()}-{len(self._etags)}"'
                if self._store.stat(self._path).version != together:
                    raise StorageError(f"{self._store.name(self._path)} was not put together: write it again") from None
            self._upload = None
        self._left.clear()
        if (size := self._store.stat(self._path).size) != self._size:
            raise StorageError(
                f"{self._store.name(self._path)} has {size} bytes instead of {self._size}: write it again"
            )

    async def _put(self) -> None:
        await self._store.ask("put_object", Key=self._key, Body=bytes(self._left))

    async def _start(self) -> str:
        answer = await self._store.ask("create_multipart_upload", Key=self._key)
        return str(answer["UploadId"])

    async def _put_part(self, number: int, data: bytes) -> str:
        answer = await self._store.ask(
            "upload_part", Key=self._key, UploadId=self._upload, PartNumber=number, Body=data
        )
        return str(answer["ETag"])

    async def _complete(self) -> None:
        parts = [{"ETag": etag, "PartNumber": number} for number, etag in enumerate(self._etags, 1)]
        await self._store.ask(
            "complete_multipart_upload", Key=self._key, UploadId=self._upload, MultipartUpload={"Parts": parts}
        )

    async def _abort(self) -> None:
        await self._store.ask("abort_multipart_upload", Key=self._key, UploadId=self._upload)
