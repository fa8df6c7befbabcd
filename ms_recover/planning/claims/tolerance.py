"""Parameters that may rightfully differ between ranks which otherwise hold the same slice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ms_recover.model.rank_local import STATISTICS

DEFAULT_TOLERATED = (
    *STATISTICS,
    "*random_op*",
    "*rng_state*",
    "*random_state*",
    "*generator_state*",
)
"""Batch statistics are computed from each rank's own data, random states belong to each rank."""


@dataclass(frozen=True)
class Tolerance:
    """The parameters that may differ: by shell patterns of their names, and by the names that manifests state."""

    patterns: tuple[str, ...] = DEFAULT_TOLERATED
    names: frozenset[str] = frozenset()

    @classmethod
    def with_more(cls, patterns: Iterable[str]) -> Tolerance:
        """Return the default tolerance and `patterns`."""
        return cls((*DEFAULT_TOLERATED, *patterns))

    def of_slices(self, rank_local: Iterable[frozenset[str]]) -> Tolerance:
        """Return the tolerance among slices whose manifests call these parameters rank-local."""
        names = self.names.union(*rank_local)
        return self if len(names) == len(self.names) else Tolerance(self.patterns, names)

    def covers(self, name: str) -> bool:
        """Whether the parameter `name` may differ."""
        return name in self.names or any(fnmatchcase(name, pattern) for pattern in self.patterns)
