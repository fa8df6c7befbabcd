"""How often, and for how long, a connection that breaks is tried again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, nan

from ms_recover.errors import SlowSourceError, StorageError, UsageError
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import Stop

PAUSE_S = 0.2
TIMEOUT_VARIABLE, RATE_VARIABLE = "MS_RECOVER_TIMEOUT", "MS_RECOVER_MIN_RATE"
"""Environment variables with the limits of web servers that no option gives."""

_TRIES = 5
_WINDOW = 6.0
_IN_ALL = 60.0
"""Times the time limit of a silence over which a rate is taken, and that a listing or an inventory may last."""


Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long web servers are waited for.

    Attributes
    ----------
    timeout : float
        Seconds that one may be silent; a listing or an inventory has sixty times as long in all.
    min_rate : float
        Bytes a second that one has to send, on average over six times `timeout`.
    """

    timeout: float = 10.0
    min_rate: float = 1024.0

    @classmethod
    def from_environment(
        cls, timeout: float | None = None, min_rate: float | None = None, environment: Mapping[str, str] | None = None
    ) -> Limits:
        """Return what is given, and for None what the environment names; a UsageError when that is no number."""
        environment = os.environ if environment is None else environment
        return cls(
            timeout=_number(environment, TIMEOUT_VARIABLE, cls().timeout, 0.5) if timeout is None else timeout,
            min_rate=_number(environment, RATE_VARIABLE, cls().min_rate, 0) if min_rate is None else min_rate,
        )


def _number(environment: Mapping[str, str], variable: str, default: float, least: float) -> float:
    text = environment.get(variable)
    try:
        found = float(text) if text else default
    except ValueError:
        found = nan
    if not least <= found < inf:
        raise UsageError(f"{variable} is {text!r}: set it to a number from {least:g} on, or unset it")
    return found


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


class Pace:
    """How quickly bytes come from a server, over the time that is spent waiting for them alone.

    Parameters
    ----------
    name : str
        What sends them, in messages.
    limits : Limits
    whole : bool
        All of it has to come within the time in all.
    """

    def __init__(self, name: str, limits: Limits, *, whole: bool = False, clock: Clock = time.monotonic) -> None:
        self.name, self._rate, self._clock = name, limits.min_rate, clock
        self._window = _WINDOW * limits.timeout
        self._limit = _IN_ALL * limits.timeout if whole else None
        self._bytes, self._waited, self._in_all, self._since = 0, 0.0, 0.0, clock()

    def resume(self) -> None:
        """Wait again, after something else was done."""
        self._since = self._clock()

    def came(self, count: int, *, counted: bool = True) -> None:
        """Count bytes that came.

        Parameters
        ----------
        counted : bool
            Whether a rate is asked for now; where not, only the time in all counts.

        Raises
        ------
        SlowSourceError
            When they come too slowly, or all of it takes too long.
        """
        now = self._clock()
        waited, self._since = now - self._since, now
        self._in_all += waited
        if self._limit is not None and self._in_all > self._limit:
            raise SlowSourceError(
                f"{self.name} is not all there after {self._limit:g} s: try another source, or wait for longer, with "
                "--timeout"
            )
        if not counted:
            return
        self._waited += waited
        self._bytes += count
        if self._waited >= self._window:
            if self._bytes < self._rate * self._waited:
                raise SlowSourceError(
                    f"{self.name} comes too slowly, {self._bytes} bytes in {self._waited:.0f} s: try another source, "
                    "or allow less than it is with --min-rate"
                )
            self._bytes, self._waited = 0, 0.0
