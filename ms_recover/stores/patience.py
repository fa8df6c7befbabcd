"""How often, and for how long, a connection that breaks is tried again."""

from __future__ import annotations

import time

from ms_recover.errors import StorageError
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import Stop

PAUSE_S = 0.2
_TRIES = 5


class BreakError(Exception):
    """The connection broke, or the server was busy; it may be tried again, after `pause` seconds.

    `met` says whether a server was there and did something.
    """

    def __init__(self, text: str, *, met: bool = True, pause: float = PAUSE_S) -> None:
        super().__init__(text)
        self.met, self.pause = met, pause


class Patience:
    """How often, and for how long, something that breaks is tried again: see `broke`."""

    def __init__(self, name: str, timeout: float) -> None:
        self._name, self._timeout = name, timeout
        self._breaks, self._deadline = 0, 0.0

    def progress(self) -> None:
        """Begin anew: some bytes came."""
        self._breaks = 0

    def broke(self, error: BreakError, stop: Stop) -> None:
        """Wait a little before the next try.

        Raises
        ------
        StorageError
            At the fifth break in a row, or when no server was there for the time limit.
        StoppedError
            When `stop` returns True.
        """
        now = time.monotonic()
        if self._breaks == 0:
            self._deadline = now + self._timeout
        self._breaks += error.met or self._breaks == 0
        if self._breaks >= _TRIES or now + (0 if error.met else PAUSE_S) > self._deadline:
            raise StorageError(
                f"{self._name} cannot be reached, or is gone ({error}): see that recover-ckpt serve, or the web "
                "server, runs there and the port is open, then run this again"
            ) from error
        until = min(now + error.pause * self._breaks, self._deadline)
        while (left := until - time.monotonic()) > 0:
            if stop():
                raise StoppedError
            time.sleep(min(left, PAUSE_S))
