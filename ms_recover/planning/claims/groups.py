"""Who holds the same slice by rank group: put every surviving ``group_info.pb`` together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ms_recover.errors import ContradictionError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.groups import GroupInfo, each_once, rank_list
from ms_recover.model.inventory import GroupFile, SliceFile
from ms_recover.model.steps import Step

_MOST_NAMED = 5


@dataclass(frozen=True)
class GroupMap:
    """For every rank that some list names, the ranks that hold the same slice, ascending, itself included.

    `sources` has the path of a list that names it, its own first. `claimed` has the ranks that the operator alone
    groups, each with the option that does. `contested` has the ranks whose list names more ranks than are in their
    group here, because layouts contradict it, each with the reason.
    """

    members: dict[int, tuple[int, ...]]
    sources: dict[int, str]
    claimed: Mapping[int, str] = field(default_factory=dict)
    contested: Mapping[int, str] = field(default_factory=dict)

    def of(self, rank: int) -> tuple[int, ...]:
        """Return the group of `rank`; itself alone when no list names it."""
        return self.members.get(rank, (rank,))

    def knows(self, rank: int) -> bool:
        """Whether some list names `rank`."""
        return rank in self.members


def merge_groups(files: Iterable[GroupFile], manifests: Iterable[SliceFile] = ()) -> GroupMap:
    """Merge rank lists; a lost rank's group comes from its peers' lists.

    Holding the same contents is an equivalence, so all lists that name a rank must be the same list. Malformed lists
    are passed over. Manifests state the group of ranks that no list names, those of the newest step first.

    Raises
    ------
    ContradictionError
        When lists cannot all be true; the ranks are named.
    """
    lists: dict[tuple[int, ...], list[GroupFile]] = {}
    faults = []
    for file in files:
        if file.info is None:
            continue
        ranks = file.info.sorted_ranks
        if file.rank is not None and file.rank not in ranks:
            faults.append(f"{file.path} lies with rank {file.rank} but lists {list(ranks)}, so it is another rank's")
        else:
            lists.setdefault(ranks, []).append(file)
    # A manifest is saved with the list that lay there: it stands for a list that is lost, never against one.
    named = {rank for ranks in lists for rank in ranks}
    for run in _stated_by_manifests(manifests):
        new = {ranks: file for ranks, file in run.items() if named.isdisjoint(ranks)}
        named.update(rank for ranks in new for rank in ranks)
        lists |= {ranks: [file] for ranks, file in new.items()}
    members: dict[int, tuple[int, ...]] = {}
    sources: dict[int, str] = {}
    by: dict[int, GroupFile] = {}
    for ranks, tellers in sorted(lists.items()):
        first = min(tellers, key=lambda file: file.path)
        own = {file.rank: file for file in tellers}
        for rank in ranks:
            teller = own.get(rank, first)
            if rank in members:
                faults.append(_disagreement(by[rank], teller))
            else:
                members[rank], sources[rank], by[rank] = ranks, teller.path, teller
    if faults:
        unique = list(dict.fromkeys(faults))
        more = f"; and {len(unique) - _MOST_NAMED} more" if len(unique) > _MOST_NAMED else ""
        raise ContradictionError(
            f"the rank lists contradict each other: {'; '.join(unique[:_MOST_NAMED])}{more}. "
            "They are from different runs or in the wrong directories: remove the wrong ones, or name the right ones "
            "with --group-info"
        )
    return GroupMap(members, sources)


def _stated_by_manifests(slices: Iterable[SliceFile]) -> list[dict[tuple[int, ...], GroupFile]]:
    """Return the lists that the manifests of each run hold, the run of the newest step first.

    Of runs with the same newest step that one goes first which has more manifests of it: a slice that another run left
    does not say who holds the same in this one. Of lists that exclude each other the one stands that more of the run's
    manifests hold, both when as many do.
    """
    votes: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    newest: dict[tuple[str, tuple[int, ...]], SliceFile] = {}
    last: dict[str, Counter[Step]] = defaultdict(Counter)
    ordered: dict[tuple[int, ...], tuple[int, ...]] = {}
    for file in sorted(slices, key=lambda file: (file.step.epoch, file.step.step, file.rank)):
        if file.manifest is not None:
            run, listed = file.manifest.run_id, file.manifest.group
            ranks = ordered.get(listed) or ordered.setdefault(listed, each_once(rank_list(listed)))
            votes[run][ranks] += 1
            last[run][file.step] += 1
            newest[run, ranks] = file
    lists = []
    for run, count in votes.items():
        most: dict[int, int] = {}
        standing = {}
        for ranks in sorted(count, key=lambda ranks: (-count[ranks], ranks)):
            if all(count[ranks] >= most.get(rank, 0) for rank in ranks):
                most |= dict.fromkeys(ranks, count[ranks])
                file = newest[run, ranks]
                standing[ranks] = GroupFile(file.rank, file.path + MANIFEST_SUFFIX, None, GroupInfo(ranks))
        step = max(last[run])
        lists.append((step, last[run][step], run, standing))
    return [standing for *_, standing in sorted(lists, key=lambda item: item[:3], reverse=True)]


def _disagreement(first: GroupFile, second: GroupFile) -> str:
    for a, b in ((first, second), (second, first)):
        assert a.info is not None
        assert b.info is not None
        ours, theirs = list(a.info.sorted_ranks), list(b.info.sorted_ranks)
        if a.rank is not None and b.rank in ours and a.rank not in theirs:
            return (
                f"rank {a.rank} lists rank {b.rank} ({a.path}: {ours}), "
                f"rank {b.rank} does not list rank {a.rank} ({b.path}: {theirs})"
            )
    return f"{a.path} lists {ours}, {b.path} lists {theirs}"
