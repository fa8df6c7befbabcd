"""The slices that an action may take its bytes from: one that proves bad is dropped, and the next takes its place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from ms_recover.errors import MsRecoverError

_log = logging.getLogger(__name__)
_R = TypeVar("_R")


class BadSourceError(Exception):
    """A slice turned out to be no source, so that another may serve; `number` is its index in the action."""

    def __init__(self, error: MsRecoverError, number: int = 0) -> None:
        super().__init__(str(error))
        self.error, self.number = error, number


@contextmanager
def blaming_source(number: int) -> Iterator[None]:
    """Raise errors of ms_recover in a block as `BadSourceError`."""
    try:
        yield
    except MsRecoverError as error:
        raise BadSourceError(error, number) from error


@contextmanager
def without_others() -> Iterator[None]:
    """Raise a `BadSourceError` of a block as its own error, where no other source may serve."""
    try:
        yield
    except BadSourceError as failure:
        raise failure.error from failure


def _go_on(failure: BadSourceError) -> None:
    pass


class Sources:
    """The sources of one file that is written, by their numbers; `names` are those in messages.

    Attributes
    ----------
    dropped : list of str
        The sources that proved bad, and why.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._labels = names
        self.dropped: list[str] = []
        self._bad: dict[int, MsRecoverError] = {}

    def attempt(self, work: Callable[[], _R], again: Callable[[BadSourceError], None] = _go_on) -> _R:
        """Return the result of `work`, which is called again after each source that it finds bad.

        `again` is called before, to undo what was done. A MsRecoverError of `work` ends this, such as that of `first`.
        """
        while True:
            try:
                return work()
            except BadSourceError as failure:
                self.drop(failure)
                again(failure)

    def first(self, numbers: Sequence[int]) -> int:
        """Return the first of some sources that is not dropped; when all are, the error of the first is raised."""
        for number in numbers:
            if number not in self._bad:
                return number
        raise self._bad[numbers[0]]

    def drop(self, failure: BadSourceError) -> None:
        """Use a source no more; others with the same contents take its place."""
        self._bad[failure.number] = failure.error
        self.dropped.append(f"{self._labels[failure.number]}: {failure.error}")
        _log.debug("source dropped: %s", self.dropped[-1])

    def try_again(self) -> None:
        """Use dropped sources again: one parameter of them may be right where another is not."""
        self._bad.clear()
