"""Slices that hold what another slice holds: renamed, or put in the wrong place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.steps import Step
from ms_recover.redundancy.groups import GroupMap


class Origins:
    """Find what else holds the bytes of a slice.

    Parameters
    ----------
    slices : iterable of SliceFile
        All that count.
    groups : GroupMap
        Who holds the same.
    digests_of : callable
        What a slice contains, as far as it is known.
    """

    def __init__(
        self, slices: Iterable[SliceFile], groups: GroupMap, digests_of: Callable[[SliceFile], Digests | None]
    ) -> None:
        self._groups = groups
        self._digests_of = digests_of
        self._holders: dict[str, list[SliceFile]] = defaultdict(list)
        self._members: dict[tuple[tuple[int, ...], Step], list[SliceFile]] = defaultdict(list)
        for file in slices:
            digests = digests_of(file)
            if file.problem is None:
                self._members[groups.of(file.rank), file.step].append(file)
            if digests is not None:
                self._holders[digests.file].append(file)

    def why_stranger(self, file: SliceFile) -> str | None:
        """Return why a slice is not what its name and place say; None when nothing speaks against it.

        An older step's slice of its own group speaks against it when no other of that step holds anything else;
        another group's slice does when another of that group holds the same, or when its manifest says so.
        """
        digests = self._digests_of(file)
        for other in self._holders.get(digests.file, ()) if digests is not None else ():
            members = self._members[self._groups.of(other.rank), other.step]
            equal = [self._digests_of(member) == digests for member in members if member.path != other.path]
            if self._groups.of(other.rank) == self._groups.of(file.rank):
                speaks = other.step < file.step and (all(equal) or other.manifest is not None)
            else:
                speaks = any(equal) or other.manifest is not None
            if speaks:
                return f"holds the bytes of {other.path}: it was renamed or put in the wrong place"
        return None
