"""Rank lists, layouts and the operator's word compared: all claim which ranks hold the same slice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from ms_recover.errors import ContradictionError
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.groups import ascending, each_once
from ms_recover.model.inventory import GroupFile, SliceFile
from ms_recover.planning.claims.contested import find_contested
from ms_recover.planning.claims.groups import GroupMap, merge_groups
from ms_recover.planning.claims.manifest_check import uncompared_groups
from ms_recover.planning.claims.stages import Stages
from ms_recover.planning.claims.word import NO_WORD, Word, add_word

Group = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The groups and layouts that are used, and the rank lists that are not, each path with the reason.

    `trials` are the slices that show whether lists or layouts are right, where these contradict each other.
    """

    groups: GroupMap
    stages: Stages
    rejected_lists: dict[str, str]
    trials: tuple[SliceFile, ...] = ()


def settle_claims(
    lists: Sequence[GroupFile],
    slices: Sequence[SliceFile],
    stages: Stages,
    word: Word = NO_WORD,
    contents: Contents = NOTHING_READ,
) -> Claims:
    """Merge the rank lists, settle the contradictions between them and the layouts, and add the operator's word.

    A list that the layouts contradict is rejected when more lists, and manifests of training and recovery, name exactly
    the ranks that the layouts do, and no manifest states it. Otherwise, where no manifest and no operator states the
    list, contents decide: it is rejected where they show the layouts, the layouts are not used where they show the
    lists; where they show neither, the layouts are not used, and only ranks are together that the layouts call the same
    as well. Sealed manifests do not count: sealing takes its groups from the lists. Where the operator says something,
    manifests that rest on an earlier word do not count either.

    Raises
    ------
    ContradictionError
        When rank lists contradict each other, or they, manifests or layouts the operator's word.
    """
    if word.groups:
        slices = [file for file in slices if file.manifest is None or file.manifest.provenance.evidence != "operator"]
    # What training stated goes before what layouts say: the lists that its manifests contradict are left out first.
    unstated = _against_manifests(lists, slices)
    lists = [file for file in lists if file.path not in unstated]
    alike = stages.families
    listed = (file.info.sorted_ranks for file in lists if file.info is not None)
    wrong = _contradictions(listed, stages, alike, slices)
    rejected = _outvoted(lists, wrong, alike, slices) if wrong else {}
    groups = merge_groups([file for file in lists if file.path not in rejected], slices)
    if not wrong or rejected:
        wrong = _contradictions({ranks[0]: ranks for ranks in groups.members.values()}.values(), stages, alike)
    trials: tuple[SliceFile, ...] = ()
    settled = {rank for ranks in word.groups for rank in ranks}
    settled.update(rank for file in lists if file.place is None and file.info for rank in file.info.sorted_ranks)
    # Neither votes nor manifests decided: the contents of slices may, else neither side is believed.
    if wrong:
        contested = find_contested(wrong, stages, slices, contents, settled)
        groups, trials = contested.split(groups), contested.trials
        if contested.reasons.keys() == wrong.keys() and contested.shows_layouts:
            against = [(file.path, file.info.sorted_ranks) for file in lists if file.info is not None]
            rejected |= {path: f"{wrong[of]} and the contents of slices" for path, of in against if of in wrong}
            groups = merge_groups([file for file in lists if file.path not in rejected], slices)
        else:
            group, problem = min(wrong.items())
            stage = next(stages.of(rank) for rank in group if rank in alike)
            stages = Stages(problem=problem, contradicts=stages.paths[stage])
    groups = _without_uncompared(groups, slices, alike, settled)
    if stages.problem is None:
        named = slices if word.complete else ()
        for group, why in sorted(_contradictions(word.groups, stages, alike, named, by="the operator's word").items()):
            option = word.groups[group]
            raise ContradictionError(
                f"{option} is contradicted: {why}; leave it out, because layouts say more, correct it, or name the "
                "right --strategy if that file is of another run"
            )
    return Claims(groups=add_word(word, groups), stages=stages, rejected_lists=unstated | rejected, trials=trials)


def _without_uncompared(
    groups: GroupMap, slices: Sequence[SliceFile], alike: Mapping[int, Group], settled: Collection[int]
) -> GroupMap:
    """Return the groups without those that came after slices were sealed, and that nothing shows to be theirs.

    Layouts that name the same ranks do, and so does the operator, who settles the lists of some ranks.
    """
    uncompared = uncompared_groups(slices, groups.members.values(), alike)
    lone = [group for group in uncompared if not set(group).intersection(settled)]
    why = "slices of it were sealed before a rank list named it, and no slices show whether the list is theirs"
    alone = {rank: (rank,) for group in lone for rank in group}
    return replace(
        groups, members={**groups.members, **alone}, contested={**groups.contested, **dict.fromkeys(alone, why)}
    )


def _against_manifests(lists: Sequence[GroupFile], slices: Sequence[SliceFile]) -> dict[str, str]:
    """Return the lists that the manifests of their ranks contradict, several of them and more than agree.

    Manifests of recovered slices that do not rest on others, and those that name their own rank alone, say nothing
    here.
    """
    stated: dict[int, set[Group]] = defaultdict(set)
    for file in slices:
        manifest = file.manifest
        if manifest is None or len(manifest.group) < 2 or manifest.rank != file.rank:
            continue
        if not manifest.recovered or manifest.provenance.evidence == "manifest":
            stated[file.rank].add(each_once(manifest.group))
    contradicted: dict[str, str] = {}
    verdicts: dict[Group, str | None] = {}
    for listing in lists:
        ranks = listing.info.sorted_ranks if listing.info is not None else ()
        if ranks not in verdicts:
            others = [group for rank in ranks for group in stated.get(rank, ()) if group != ranks]
            same = sum(ranks in stated.get(rank, ()) for rank in ranks)
            verdicts[ranks] = (
                f"it names ranks {list(ranks)}, and {len(others)} manifests of these name others, such as "
                f"{list(others[0])}"
                if len(others) > max(same, 1)
                else None
            )
        why = verdicts[ranks]
        if why is not None:
            contradicted[listing.path] = why
    return contradicted


def _outvoted(
    lists: Sequence[GroupFile], wrong: dict[Group, str], alike: dict[int, Group], slices: Sequence[SliceFile]
) -> dict[str, str]:
    """Return the lists that layouts contradict, each path with the reason, when more evidence is for the layouts.

    What a recovery wrote is evidence only where it rests on manifests of training: manifests of recovered slices, and
    the lists of ranks that have no others. One that names its own rank alone was written where no list was believed.
    """
    stated: set[Group] = set()
    saved: set[tuple[int, Group]] = set()
    own: set[int] = set()
    for file in slices:
        manifest = file.manifest
        if manifest is not None:
            group = ascending(manifest.group)
            by_training = manifest.recovered and manifest.provenance.evidence == "manifest"
            if not manifest.recovered or (by_training and len(group) > 1):
                stated.add(group)
            if by_training or manifest.provenance.kind == "saved":
                saved.add((file.rank, group))
        if manifest is None or by_training or not manifest.recovered:
            own.add(file.rank)
    rewritten = {file.rank for file in slices} - own
    listed = [(file, file.info.sorted_ranks) for file in lists if file.info is not None]
    against = [(file.path, ranks) for file, ranks in listed if ranks in wrong]
    agreeing = sum(alike.get(ranks[0]) == ranks for file, ranks in listed if file.rank not in rewritten)
    agreeing += sum(alike.get(rank) == ranks for rank, ranks in saved)
    if agreeing <= len(against) or not stated.isdisjoint(wrong):
        return {}
    return {path: f"{wrong[ranks]} and {agreeing} rank lists or manifests" for path, ranks in against}


def _contradictions(
    groups: Iterable[Group],
    stages: Stages,
    alike: dict[int, Group],
    slices: Sequence[SliceFile] = (),
    by: str = "their rank lists",
) -> dict[Group, str]:
    """Return the groups that layouts contradict, each with the reason.

    A group of fewer ranks than the layouts name contradicts them where they name every parameter of the slices; those
    that they leave out may differ. Without slices it does not: a manifest that was written where no rank list was
    names its own rank only.
    """
    reasons: dict[Group, str] = {}
    names_all = cache(lambda stage: stages.names_all(stage, slices))
    for group in dict.fromkeys(groups):
        if alike.keys().isdisjoint(group):
            continue
        first = next(rank for rank in group if rank in alike)
        path = stages.paths[stages.of(first)]
        same = frozenset(alike[first])
        odd = next((rank for rank in group if rank not in same), None)
        if odd is not None:
            parameter = stages.cuts_between(first, odd)[0].layout.parameter
            reasons[group] = (
                f"ranks {first} and {odd} hold the same slice by {by}, but different parts of {parameter!r} by {path}"
            )
        elif slices and len(group) < len(same) and names_all(stages.of(first)):
            other = min(same.difference(group))
            reasons[group] = f"ranks {first} and {other} hold different slices by {by}, but the same one by {path}"
    return reasons
