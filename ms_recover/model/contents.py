"""The result of reading slices from end to end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests


@dataclass(frozen=True, slots=True)
class Contents:
    """Digests of slices that were read."""

    digests: Mapping[str, Digests] = field(default_factory=lambda: MappingProxyType({}))
    """Path of a slice to the digests of its contents."""
    problems: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Path of a slice that could not be read to the reason."""
    states: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Path of a slice whose state file is missing or not the one that its manifest names, to what is wrong with it."""

    failing: frozenset[str] = frozenset()
    """Paths of the slices among `problems` that the device failed to give: their bytes need not be wrong."""
    nan: frozenset[str] = frozenset()
    """Paths of slices in which every floating-point value is NaN."""

    def knows(self, file: SliceFile) -> bool:
        """Whether reading `file` was tried."""
        return file.path in self.digests or file.path in self.problems

    def of(self, files: Iterable[SliceFile]) -> Contents:
        """Return what was read of some slices."""
        paths = frozenset(file.path for file in files)
        return Contents(
            {path: found for path, found in self.digests.items() if path in paths},
            {path: found for path, found in self.problems.items() if path in paths},
            {path: found for path, found in self.states.items() if path in paths},
            self.failing & paths,
            self.nan & paths,
        )

    def merged(self, more: Contents) -> Contents:
        """Return these contents and `more`; the newer reading of a slice counts."""
        return Contents(
            {**self.digests, **more.digests},
            {**self.problems, **more.problems},
            {**self.states, **more.states},
            self.failing | more.failing,
            self.nan - more.digests.keys() | more.nan,
        )


NOTHING_READ = Contents()

Reader = Callable[[Sequence[SliceFile]], Contents]
"""Reads whole slices, including those outside the inventory's root."""
