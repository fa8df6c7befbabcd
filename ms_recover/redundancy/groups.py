"""Who holds the same slice by rank group: put every surviving ``group_info.pb`` together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ms_recover.errors import ContradictionError
from ms_recover.model.groups import GroupInfo
from ms_recover.model.inventory import GroupFile, SliceFile
from ms_recover.model.manifest import MANIFEST_SUFFIX

_MOST_NAMED = 5


@dataclass(frozen=True)
class GroupMap:
    """For every rank that some list names, the ranks that hold the same slice.

    Parameters
    ----------
    members : dict of int to tuple of int
        Rank to its group, ascending, itself included.
    sources : dict of int to str
        Rank to the path of a list that names it, its own first.
    """

    members: dict[int, tuple[int, ...]]
    sources: dict[int, str]

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the group of `rank`; itself alone when no list names it."""
        return self.members.get(rank, (rank,))

    def knows(self, rank: int) -> bool:
        """Whether some list names `rank`."""
        return rank in self.members


def merge_groups(files: Iterable[GroupFile], manifests: Iterable[SliceFile] = ()) -> GroupMap:
    """Merge rank lists; a lost rank's group comes from its peers' lists.

    Holding the same contents is an equivalence, so all lists that name a rank must be the same list.

    Parameters
    ----------
    files : iterable of GroupFile
        Malformed ones are passed over.
    manifests : iterable of SliceFile
        Slices whose manifests tell the group of ranks that no list names, the newest step first.

    Raises
    ------
    ContradictionError
        When lists cannot all be true; the ranks are named.
    """
    claims: dict[int, list[tuple[frozenset[int], GroupFile]]] = {}
    faults = []
    for file in files:
        if file.info is None:
            continue
        ranks = frozenset(file.info.restore_ranks)
        if file.rank is not None and file.rank not in ranks:
            faults.append(
                f"{file.path} lies with rank {file.rank} but lists {sorted(ranks)}, so it belongs to another rank"
            )
            continue
        for rank in ranks:
            claims.setdefault(rank, []).append((ranks, file))
    for slice_file in sorted(manifests, key=lambda file: (file.step, file.rank), reverse=True):
        told = slice_file.manifest
        if told is not None and not any(rank in claims for rank in told.group):
            info = GroupInfo(told.group)
            file = GroupFile(slice_file.rank, slice_file.path + MANIFEST_SUFFIX, None, info)
            for rank in told.group:
                claims[rank] = [(frozenset(told.group), file)]
    members, sources = {}, {}
    for rank, said in sorted(claims.items()):
        first, source = min(said, key=lambda claim: (claim[1].rank != rank, claim[1].path))
        members[rank], sources[rank] = tuple(sorted(first)), source.path
        faults += [_disagreement(rank, source, other) for ranks, other in said if ranks != first]
    if faults:
        unique = list(dict.fromkeys(faults))
        more = f"; and {len(unique) - _MOST_NAMED} more" if len(unique) > _MOST_NAMED else ""
        raise ContradictionError(
            f"the rank lists contradict each other: {'; '.join(unique[:_MOST_NAMED])}{more}. "
            "They are from different runs or in the wrong directories: remove the wrong ones, or name the right ones "
            "with --group-info"
        )
    return GroupMap(members, sources)


def _disagreement(rank: int, one: GroupFile, other: GroupFile) -> str:
    assert one.info is not None
    assert other.info is not None
    ours, theirs = sorted(one.info.restore_ranks), sorted(other.info.restore_ranks)
    if one.rank is not None and other.rank is not None and other.rank not in ours:
        return (
            f"rank {other.rank} lists rank {rank} ({other.path}: {theirs}), "
            f"rank {one.rank} does not list rank {other.rank} ({one.path}: {ours})"
        )
    return f"{other.path} lists {theirs}, {one.path} lists {ours}"
