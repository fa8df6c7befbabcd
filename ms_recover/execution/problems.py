"""What went wrong with one file of several, so that the others are written all the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from ms_recover.errors import MsRecoverError
from ms_recover.stores.local import StoppedError

_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Problem:
    """An error in words, and the exit code it owns."""

    text: str
    exit_code: int

    @classmethod
    def of(cls, error: Exception, ahead: str = "", place: str = "") -> Problem:
        """Return an error in words, with some `ahead`; `place` is of one of the operating system, which names none."""
        if isinstance(error, StoppedError):
            return cls(f"{ahead}stopped", MsRecoverError.exit_code)
        if isinstance(error, MsRecoverError):
            return cls(f"{ahead}{error}", error.exit_code)
        return cls(f"{ahead}{place}{error}", MsRecoverError.exit_code)


def attempted(work: Callable[[], _R], ahead: str = "", place: str = "") -> _R | Problem:
    """Return the result of `work`, or the error by which it ended; the words are those of `Problem.of`."""
    try:
        return work()
    except (MsRecoverError, OSError, StoppedError) as error:
        return Problem.of(error, ahead, place)
