"""Slices that hold what another slice holds: renamed, or put in the wrong place."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.steps import Step
from ms_recover.planning.redundancy.groups import GroupMap


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
    are_alike : callable
        Whether two ranks hold the same by the layouts of their parameters.
    """

    def __init__(
        self,
        slices: Iterable[SliceFile],
        groups: GroupMap,
        digests_of: Callable[[SliceFile], Digests | None],
        are_alike: Callable[[int, int], bool] = lambda one, other: False,
    ) -> None:
        self._groups = groups
        self._are_alike = are_alike
        self._digests_of = digests_of
        self._holders: dict[str, list[SliceFile]] = defaultdict(list)
        self._members: dict[tuple[tuple[int, ...], Step], list[SliceFile]] = defaultdict(list)
        for file in slices:
            digests = digests_of(file)
            if file.problem is None:
                self._members[groups.of(file.rank), file.step].append(file)
            if digests is not None:
                self._holders[digests.file].append(file)

    def why_stranger(self, file: SliceFile, *, confirmed: bool = False) -> str | None:
        """Return why a slice is not what its name and place say; None when nothing speaks against it.

        An older step's slice of its own group speaks against it when no other of that step holds anything else, or
        when its manifest says so; another group's slice does when another of that group holds the same, or when its
        manifest says so, but for what was recovered from this very slice, and for ranks that are alike by layouts.

        Parameters
        ----------
        file : SliceFile
            The slice.
        confirmed : bool
            Another of its group holds the same; then only an older slice's manifest speaks against both.
        """
        digests = self._digests_of(file)
        for other in self._holders.get(digests.file, ()) if digests is not None else ():
            told = other.manifest
            backed = told is not None and (told.step, told.digests) == (other.step, digests)
            members = self._members[self._groups.of(other.rank), other.step]
            equal = [self._digests_of(member) == digests for member in members if member.path != other.path]
            if told is not None and file.path in (source.path for source in told.provenance.sources):
                continue  # a copy says no more than what it is a copy of
            own_group = self._groups.of(other.rank) == self._groups.of(file.rank)
            if own_group or self._are_alike(other.rank, file.rank):
                speaks = other.step < file.step and (backed or (all(equal) and not confirmed))
            else:
                speaks = (backed or any(equal)) and not confirmed
            if speaks:
                return f"holds the bytes of {other.path}: it was renamed or put in the wrong place"
        return None
