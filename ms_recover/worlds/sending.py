"""Frames into the kernel: what it takes at once in the event loop, large frames whole in a thread.

From the event loop a large frame goes in pieces of what fits into the socket's buffer, and each piece costs a turn of
the loop, with cold caches. A thread passes it in one call, in which the kernel itself waits for room, and the event
loop is free meanwhile.
"""

from __future__ import annotations

import asyncio
import queue
import select
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

from ms_recover.worlds.stream import AGAIN

Views = list[bytes | memoryview]
_WAIT_S = 0.03
"""So long the thread waits for room, and `LargeFrames.stop` for the thread, when the peer does not read."""


def send_part(sock: socket.socket, views: Views, flags: int, tls: bool = False) -> int:
    """Send what the kernel takes in one call; remove sent bytes from the views, and return their number."""
    rest = sent = sock.send(views[0], flags) if tls or len(views) == 1 else sock.sendmsg(views, (), flags)
    if sent == sum(map(len, views)):
        views.clear()
    while views and rest >= len(views[0]):
        rest -= len(views.pop(0))
    if views:
        views[0] = views[0][rest:]
    return sent


class LargeFrames:
    """A thread that sends frames on one connection, one at a time; it starts with the first.

    The socket is made a blocking one: every other call must say that it does not wait. `count` is called in the thread
    with the bytes that the kernel has taken, `ended` in the event loop with the views of a frame that was sent, or
    failed with `error`.
    """

    def __init__(self, sock: socket.socket, count: Callable[[int], object], ended: Callable[[Views], object]) -> None:
        self._sock = sock
        self._count = count
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._frames: queue.SimpleQueue[Views | None] = queue.SimpleQueue()
        self._at_work = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self.error: BaseException | None = None
        sock.setblocking(True)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, int(_WAIT_S * 1e6)))

    def send(self, views: Views) -> None:
        """Begin to send a frame; its views belong to the thread until it has ended or was stopped."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="large frames", daemon=True)
            self._thread.start()
        self._at_work.acquire()
        self._frames.put(views)

    def stop(self) -> None:
        """Stop sending; the views are what the kernel has not taken."""
        self._stopping = True
        with self._at_work:
            self._stopping = False

    def close(self) -> None:
        """End the thread. The connection was shut down before, so that no call waits."""
        if self._thread is not None:
            self.stop()
            self._frames.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        room = select.poll()
        room.register(self._sock.fileno(), select.POLLOUT)
        while (views := self._frames.get()) is not None:
            try:
                while views and not self._stopping:
                    try:
                        self._count(send_part(self._sock, views, 0))
                    except AGAIN:
                        room.poll(_WAIT_S * 1e3)  # an event loop such as uvloop has made the socket non-blocking again
            except BaseException as error:  # raised in the event loop
                self.error = error
            self._at_work.release()
            with suppress(RuntimeError):  # the event loop is closed
                self._loop.call_soon_threadsafe(self._ended, views)
