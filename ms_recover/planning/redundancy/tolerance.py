"""Parameters that may rightfully differ between ranks which otherwise hold the same slice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

DEFAULT_TOLERATED = (
    "*moving_mean",
    "*moving_variance",
    "*random_op*",
    "*rng_state*",
    "*random_state*",
    "*generator_state*",
)
"""Batch statistics are computed from each rank's own data, random states belong to each rank."""


@dataclass(frozen=True)
class Tolerance:
    """The parameters that may differ, by shell patterns of their names."""

    patterns: tuple[str, ...] = DEFAULT_TOLERATED

    @classmethod
    def with_more(cls, patterns: Iterable[str]) -> Tolerance:
        """Return the default tolerance and `patterns`."""
        return cls((*DEFAULT_TOLERATED, *patterns))

    def covers(self, name: str) -> bool:
        """Whether the parameter `name` may differ."""
        return any(fnmatchcase(name, pattern) for pattern in self.patterns)
