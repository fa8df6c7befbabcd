"""Sources that prove bad while an action is carried out, so that another may serve."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ms_recover.errors import MsRecoverError


class BadSourceError(Exception):
    """A slice turned out to be no source, so that another may serve; `number` is its index in the action."""

    def __init__(self, error: MsRecoverError, number: int = 0) -> None:
        super().__init__(str(error))
        self.error, self.number = error, number


@contextmanager
def blaming_source(number: int = 0) -> Iterator[None]:
    """Raise errors of ms_recover in a block as `BadSourceError`."""
    try:
        yield
    except MsRecoverError as error:
        raise BadSourceError(error, number) from error
