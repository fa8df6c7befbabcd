"""Send bytes to a client that may be slow, or gone."""

from __future__ import annotations

import asyncio
import os
import time

from aiohttp import web

from ms_recover.model.actions import FileState

SEND_S = 60.0
"""Seconds for the next `LEAST_PIECE` bytes to be taken."""
LEAST_PIECE = 1 << 20
_MOST_PIECE = 32 << 20
_QUICK_S = 0.5
_CHUNK = 1 << 20
_READ = 4 << 20
"""Bytes that are read at a time for TLS: each reading is a turn of a thread, which costs more than the copying."""
_RECORDS = 128 << 10
"""Bytes that are encrypted at a time: eight records, which stay in the processor's cache until they are sent."""


async def send_bytes(request: web.BaseRequest, response: web.StreamResponse, data: bytes) -> None:
    """Send an answer whose bytes are at hand, or the rest of one that has begun."""
    if not response.prepared:
        response.content_length = len(data)
        await response.prepare(request)
    if request.method != "HEAD":
        for start in range(0, len(data), _CHUNK):
            await asyncio.wait_for(response.write(data[start : start + _CHUNK]), SEND_S)
    await asyncio.wait_for(response.write_eof(), SEND_S)


async def send_file(
    request: web.BaseRequest, response: web.StreamResponse, descriptor: int, start: int, end: int, state: FileState
) -> int:
    """Send bytes of an open file, and return their number; by sendfile, except over TLS.

    Raises
    ------
    ConnectionError, TimeoutError
        When the client is gone, or takes too few bytes; also when the file is not in this state any more, so that the
        client sees the answer end early.
    """
    response.content_length = end - start
    await response.prepare(request)
    if request.method == "HEAD":
        await response.write_eof()
        return 0
    transport = request.transport
    if transport is None:
        raise ConnectionResetError
    secured = transport.get_extra_info("ssl_object") is not None
    offset, piece = start, LEAST_PIECE
    with open(os.dup(descriptor), "rb", buffering=0) as file:
        while offset < end:
            count, began = min(piece, end - offset), time.monotonic()
            if offset + count == end:
                _check(descriptor, state)
            if secured:
                try:
                    data = await asyncio.to_thread(os.pread, descriptor, min(count, _READ), offset)
                except OSError as error:
                    raise ConnectionResetError(f"the file cannot be read: {error.strerror}") from error
                await asyncio.wait_for(_encrypt(response, data), SEND_S)
                sent = len(data)
            else:
                sending = asyncio.get_running_loop().sendfile(transport, file, offset, count, fallback=False)
                sent = await asyncio.wait_for(sending, SEND_S)
            if not sent:
                raise ConnectionResetError("the file ends too early")
            offset += sent
            quick = time.monotonic() - began < _QUICK_S
            piece = min(2 * piece, _MOST_PIECE) if quick else LEAST_PIECE
    await response.write_eof()
    return end - start


async def _encrypt(response: web.StreamResponse, data: bytes) -> None:
    """Send bytes over TLS."""
    view = memoryview(data)
    for start in range(0, len(data), _RECORDS):
        await response.write(view[start : start + _RECORDS])


def _check(descriptor: int, state: FileState) -> None:
    """Raise a ConnectionError when a file changed while it was sent."""
    status = os.fstat(descriptor)
    if FileState(status.st_size, status.st_mtime_ns) != state:
        raise ConnectionResetError("the file changes while it is sent")
