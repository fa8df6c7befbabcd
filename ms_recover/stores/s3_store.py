"""The objects below a prefix of an S3 bucket (AWS, MinIO, OBS), by the client that s3fs makes.

An object is pinned by its ETag: each range is asked for with ``If-Match``. Format and meaning of the calls are those of
the Amazon S3 API reference (``ListObjectsV2``, ``HeadObject``, ``GetObject``).
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import aiohttp
import botocore.exceptions
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from fsspec.asyn import get_loop
from fsspec.config import conf
from s3fs import S3FileSystem

from ms_recover.errors import MissingInputError, MsRecoverError, StorageError, UsageError, VerificationError
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.fsspec_store import nanoseconds, pinned_time
from ms_recover.stores.network_store import NetworkStore
from ms_recover.stores.paths import check_path, is_name
from ms_recover.stores.ranged_file import RangedFile
from ms_recover.stores.store import Entry, FileInfo, NewFile
from ms_recover.stores.url_parts import UrlParts

_PASSING = (
    botocore.exceptions.ConnectionError,
    botocore.exceptions.HTTPClientError,
    botocore.exceptions.IncompleteReadError,
    botocore.exceptions.ResponseStreamingError,
    aiohttp.ClientError,
)

PART = 8 << 20
"""Bytes of a part; S3 takes no fewer than 5 MiB but in the last, and no more than 10,000 parts."""
_LARGE_PART, _SMALL_PARTS = 128 << 20, 4096
_IN_FLIGHT = 3


class _SentElsewhereError(Exception):
    """A redirect that names no region."""

    def __init__(self, status: int) -> None:
        super().__init__(f"HTTP status {status}")
        self.response = {"ResponseMetadata": {"HTTPStatusCode": status}}


class _NoRedirects(AIOHTTPSession):  # type: ignore[misc]
    """Follows no redirect: headers with credentials would go along, and bytes would come from anywhere."""

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        return SimpleNamespace(request=partial(_ask_once, session))


async def _ask_once(session: Any, method: str, **arguments: Any) -> Any:
    """Send a request; botocore asks for a region by HEAD, and once more for each answer to it that names none."""
    answer = await session.request(method, allow_redirects=False, **arguments)
    if method == "HEAD" and answer.status in (301, 302, 307) and "x-amz-bucket-region" not in answer.headers:
        answer.close()
        raise _SentElsewhereError(answer.status)
    return answer


class S3Store(NetworkStore):
    """The objects below ``s3://BUCKET/PREFIX``.

    Endpoint and credentials are those of AWS's environment variables and files, and of fsspec's configuration.
    """

    has_folders = False

    def __init__(self, url: str) -> None:
        parts = UrlParts.of(url)
        super().__init__(f"{parts.scheme}://{parts.shown.partition('://')[2].rpartition('@')[2]}")
        if parts.user is not None or not parts.host:
            raise UsageError(
                f"{self.url}: the URL of a bucket is s3://BUCKET/PREFIX; keys come from AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or from the files of AWS"
            )
        self.bucket, self._prefix = parts.given.partition("://")[2].partition("/")[0], parts.path.strip("/")
        once = {"connect_timeout": 10, "read_timeout": 25, "retries": {"total_max_attempts": 1}}
        given = conf.get("s3", {}).get("config_kwargs", {})
        settings = {**once, **given, "max_pool_connections": 64, "http_session_cls": _NoRedirects}
        session = _session(tuple(sorted(one for one in os.environ.items() if one[0].startswith(("AWS_", "HOME")))))
        self._fs = S3FileSystem(
            use_listings_cache=False, skip_instance_cache=True, config_kwargs=settings, session=session
        )
        self._fs.retries = 1  # repeated here, where Ctrl-C arrives

    def close(self) -> None:
        """Close the connections."""
        client, self._fs._s3 = self._fs._s3, None
        if client is not None:
            S3FileSystem.close_session(get_loop(), client)

    def key(self, path: str) -> str:
        """Return the key of a path."""
        check_path(path)
        return f"{self._prefix}/{path}" if self._prefix and path else self._prefix or path

    def begin(self, call: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Future[Any]:
        """Begin a call on fsspec's loop."""
        return asyncio.run_coroutine_threadsafe(call(*arguments), get_loop())

    async def ask(self, method: str, **arguments: Any) -> Any:
        """Call a method of the client of the bucket."""
        return await self._fs._call_s3(method, Bucket=self.bucket, **arguments)

    def lasts(self, error: Exception) -> bool:
        """Whether the same call would fail again."""
        status = _status(error)
        if status is not None and status >= 300:
            return status < 500 and status not in (408, 429)
        if isinstance(error, _PASSING):
            return False
        return isinstance(error, botocore.exceptions.BotoCoreError) or super().lasts(error)

    def explain(self, error: Exception, doing: str, path: str) -> MsRecoverError:
        """Return the error to raise in place of the client's."""
        if isinstance(error, (botocore.exceptions.NoCredentialsError, botocore.exceptions.PartialCredentialsError)):
            return UsageError(
                f"{self.url}: no credentials are set: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; "
                "docs/stores.md has all ways"
            )
        if _code(error) == "NoSuchBucket":
            return MissingInputError(
                f"{doing} {self.name(path)}: there is no bucket {self.bucket!r}: make it, or check the URL, the "
                "endpoint and the region"
            )
        if _status(error) == 412:
            return VerificationError(f"{self.name(path)} is not what the plan saw (its ETag differs): plan again")
        if 300 <= (_status(error) or 0) < 400:
            return StorageError(
                f"{doing} {self.name(path)}: the server sends this elsewhere; check endpoint and region"
            )
        return super().explain(error, doing, path)

    def list(self, folder: str) -> list[Entry]:
        """List what lies directly below a prefix; one without objects gives nothing."""
        prefix = self.key(folder)
        prefix = f"{prefix}/" if prefix else ""
        found: dict[str, Entry] = {}
        token: str | None = None
        while True:
            page = self.call("listing", folder, self._page, prefix, token)
            for one in page.get("CommonPrefixes", ()):
                name = one["Prefix"][len(prefix) :].rstrip("/")
                found.setdefault(name, Entry(name=name, kind="folder"))
            for one in page.get("Contents", ()):
                name = one["Key"][len(prefix) :]
                info = self._info(one["Size"], one["LastModified"], one["ETag"])
                found[name] = Entry(name=name, kind="file", info=info)
            if not page.get("IsTruncated"):
                break
            if page.get("NextContinuationToken") in (None, token):
                raise StorageError(f"listing {self.name(folder)}: the list ends early; nothing is concluded from it")
            token = page["NextContinuationToken"]
        return [found[name] for name in sorted(found) if is_name(name)]  # "" marks an empty folder

    async def _page(self, prefix: str, token: str | None) -> Any:
        more = {} if token is None else {"ContinuationToken": token}
        return await self.ask("list_objects_v2", Prefix=prefix, Delimiter="/", **more)

    def stat(self, path: str) -> FileInfo:
        """Return the state of an object."""
        head = self.call("reading", path, self._head, path)
        return self._info(head["ContentLength"], head["LastModified"], head["ETag"])

    async def _head(self, path: str) -> Any:
        key = self.key(path)
        if not key:
            raise MissingInputError(f"{self.url} is a bucket, not an object")
        return await self.ask("head_object", Key=key)

    @staticmethod
    def _info(size: int, moment: object, etag: str) -> FileInfo:
        return FileInfo(size=size, mtime_ns=pinned_time(nanoseconds(moment), etag), version=etag)

    def open(self, path: str, expected: FileState | None = None) -> S3File:
        """Open an object for reading in ranges."""
        return S3File(self, path, self.stat(path), expected)

    def create(self, path: str) -> S3NewFile:
        """Return an object to write: put whole, or in parts that are put together at the commit."""
        return S3NewFile(self, path)

    def remove(self, path: str) -> None:
        """Remove an object."""
        self.call("removing", path, self._delete, path)

    async def _delete(self, path: str) -> None:
        await self.ask("delete_object", Key=self.key(path))


class S3File(RangedFile):
    """An object, each range of it from the version that was opened."""

    block = 8 << 20
    """As AWS's own tools ask for, and its guide to performance ("Use byte-range fetches")."""

    _store: S3Store

    @property
    def fetch(self) -> Callable[[int, int], Coroutine[Any, Any, bytes]]:
        """Get a range, if the ETag still matches."""
        return self._fetch

    async def _fetch(self, start: int, end: int) -> bytes:
        etag = self._info.version
        answer = await self._store.ask(
            "get_object", Key=self._store.key(self._path), Range=f"bytes={start}-{end - 1}", IfMatch=etag
        )
        try:
            expected = f"bytes {start}-{end - 1}/{self.size}"
            if answer.get("ETag") != etag or answer.get("ContentRange") != expected:
                raise VerificationError(f"{self.name}: the server sends another version or range than asked for")
            data: bytes = await answer["Body"].read()
        finally:
            answer["Body"].close()
        if len(data) != end - start:
            raise ConnectionError(f"{len(data)} bytes came instead of {end - start}")
        return data


@lru_cache(maxsize=4)
def _session(environment: tuple[tuple[str, str], ...]) -> AioSession:
    """Return the session of an environment: making one reads many files, and a command opens several stores."""
    return AioSession(profile=conf.get("s3", {}).get("profile"))


def _status(error: BaseException) -> int | None:
    """Return the HTTP status of a client's error, also behind the error that s3fs or the session made of it."""
    status = _answer(error).get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status if isinstance(status, int) else None


def _code(error: BaseException) -> str | None:
    """Return the code of S3's own that the same error carries."""
    code = _answer(error).get("Error", {}).get("Code")
    return code if isinstance(code, str) else None


def _answer(error: BaseException) -> dict[str, Any]:
    for one in (error, error.__cause__, error.__context__):
        response = getattr(one, "response", None)
        if isinstance(response, dict):
            return response
    return {}


class S3NewFile(NewFile):
    """An object that nobody sees before its commit: one ``PutObject``, or a multipart upload."""

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
