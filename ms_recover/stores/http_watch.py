"""Ends waiting for a socket when somebody wants it to end, or when it takes too long in all."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

from ms_recover.stores.store import Stop

_POLL_S = 0.2


class Watch:
    """A thread, from the first use on, that shuts down watched sockets; waiting for them ends with an error."""

    def __init__(self) -> None:
        self._watched: set[Watched] = set()
        self._lock = threading.Lock()
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def over(self, sock: socket.socket | None, stop: Stop, limit: float | None) -> Watched:
        """Return a context in which a socket is watched: until `stop` returns True, or for `limit` seconds."""
        return Watched(self, sock, stop, None if limit is None else time.monotonic() + limit)

    def close(self) -> None:
        """End the thread; a later use starts another one."""
        self._wanted.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def add(self, watched: Watched) -> None:
        """Begin to watch."""
        with self._lock:
            self._watched.add(watched)
            if self._thread is None or not self._thread.is_alive():
                self._wanted = threading.Event()
                self._thread = threading.Thread(target=self._run, args=(self._wanted,), name="http watch", daemon=True)
                self._thread.start()

    def remove(self, watched: Watched) -> None:
        """End watching."""
        with self._lock:
            self._watched.discard(watched)

    def _run(self, ended: threading.Event) -> None:
        while not ended.wait(_POLL_S):
            now = time.monotonic()
            with self._lock:
                due = [one for one in self._watched if one.is_due(now)]
            for one in due:
                one.end()


class Watched:
    """The context of `Watch.over`."""

    def __init__(self, watch: Watch, sock: socket.socket | None, stop: Stop, deadline: float | None) -> None:
        self._watch, self._sock, self._stop, self._deadline = watch, sock, stop, deadline

    def __enter__(self) -> None:
        self._watch.add(self)

    def __exit__(self, *_: object) -> None:
        self._watch.remove(self)

    def is_due(self, now: float) -> bool:
        """Whether waiting should end."""
        return (self._deadline is not None and now > self._deadline) or self._stop()

    def end(self) -> None:
        """Wake whoever waits for the socket."""
        if self._sock is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._sock, socket.SHUT_RDWR)  # also below TLS, whose state another thread has
