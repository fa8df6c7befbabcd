"""Steps at which ``remove_redundancy=True`` dealt parameters out, although the slices that are left do not show it.

Two replicas with different parameters show it by themselves (`structure`). Where one of each group is left, its slice
looks like a whole one, and a copy of it would silently lack what was dealt to the others.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ms_recover.file_names import ANY_ORDER
from ms_recover.model.grouped import grouped
from ms_recover.model.inventory import OrphanManifest, SliceFile
from ms_recover.model.slices import ParameterList
from ms_recover.model.steps import Step
from ms_recover.model.texts import name_some
from ms_recover.planning.claims.layouts import NOT_SHARDED
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.structure import is_misread
from ms_recover.planning.tree.facts import Facts, SliceFacts

Names = frozenset[str]
_ByStage = Mapping[int, Mapping[Names, SliceFacts]]
"""The slices of each stage by their lists, one of each."""

_STATE = re.compile(r"(?:moments?\d?|adam_[mv]|lamb_[mv]|exp_avg\w*)\.(.+)\Z")
"""Names of optimizer states that nothing but the optimizers of MindSpore have, and the weight."""


def find_dealt(compared: Comparison) -> Comparison:
    """Add the steps at which parameters were dealt out, or may have been, to those that replicas show.

    It shows in the metadata of safetensors files, in manifests and other steps of ranks without a slice, in other steps
    that were dealt out alike, in states without their weight, and in trainable parameters that layouts name and slices
    lack. Two replicas that list the same prove the contrary. Where only all states of the optimizer are lacking, it is
    in doubt: a checkpoint of weights alone looks the same.
    """
    facts, structure = compared.facts, compared.structure
    if facts.kind is not None:  # documents state the list of each file
        return compared
    dealt = dict(structure.deduplicated)
    shown = frozenset(dealt)
    layouts = facts.stages.layouts
    trainable = {stage: frozenset[str]().union(*families(named).values()) for stage, named in layouts.items()}
    doubtful: dict[Step, str] = {}
    for step in facts.steps:
        slices = [
            slice_ for slice_ in facts.counted_at(step) if _is_usable(slice_) and slice_.path not in structure.damaged
        ]
        if step in shown:
            continue
        alike, unlike = _compare_replicas(facts, slices, trainable)
        if alike:
            continue
        why = (
            unlike
            or _by_metadata(slices)
            or _by_lost(facts, step, slices)
            or _by_other_steps(facts, shown, slices)
            or _by_names(slices)
        )
        lists = {} if why is not None else _by_stage(facts, slices)
        why = why or _by_layouts(facts, lists)
        if why is not None:
            dealt[step] = why
        elif (doubt := _doubt(facts, lists)) is not None:
            doubtful[step] = doubt
    return replace(compared, structure=replace(structure, deduplicated=dealt, doubtful=doubtful))


def families(layouts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return trainable parameters by kind: weights under "", the states of the optimizer by the word before the dot.

    A weight is trainable when some state of it is there.
    """
    known = frozenset(layouts)
    by_kind: dict[str, set[str]] = defaultdict(set)
    for name in known:
        kind, _, weight = name.partition(".")
        if weight in known:
            by_kind[kind].add(name)
            by_kind[""].add(weight)
    return {kind: frozenset(names) for kind, names in by_kind.items()}


def _is_usable(one: SliceFacts) -> bool:
    return one.file.problem is None and one.file.encryption is None and one.manifest_problem is None


def _compare_replicas(
    facts: Facts, slices: Sequence[SliceFacts], trainable: Mapping[int, Names]
) -> tuple[bool, str | None]:
    """Return whether two slices that hold the same list the same, and if none do, two that list different parameters.

    Those that list the same have trainable parameters where layouts name these; of those that do not neither lists the
    other's and more. A copy is no witness for its source.
    """
    unlike = None
    seen: dict[tuple[int, ...], dict[Names, SliceFacts]] = defaultdict(dict)
    for slice_ in slices:
        listed, theirs = slice_.listed.names, trainable.get(facts.stages.of(slice_.rank))
        if slice_.recovered:
            continue
        replicas = seen[facts.stages.families.get(slice_.rank, facts.groups.of(slice_.rank))]
        other = replicas.setdefault(listed, slice_)
        if other.rank != slice_.rank and (not theirs or not theirs.isdisjoint(listed)):
            return True, None
        if len(replicas) > 1 and unlike is None:
            unlike = _unlike(slice_, replicas.values())
    return False, unlike


def _unlike(slice_: SliceFacts, others: Iterable[SliceFacts]) -> str | None:
    """Return a slice that lists others than one of some that should list the same; one that is cut off is none."""
    for other in others:
        local = slice_.rank_local | other.rank_local
        ours, theirs = ([name for name in each.listed.index if name not in local] for each in (slice_, other))
        short = min(len(ours), len(theirs))
        if ours[:short] != theirs[:short] and set(ours) != set(theirs) and not is_misread(slice_.listed, other.listed):
            return f"{other.path} and {slice_.path} should list the same parameters and do not"
    return None


def _by_metadata(slices: Iterable[SliceFacts]) -> str | None:
    dealt = next((slice_ for slice_ in slices if slice_.file.dealt), None)
    return None if dealt is None else f"{dealt.path} was saved with remove_redundancy=True, as its metadata says"


def _by_lost(facts: Facts, step: Step, slices: Iterable[SliceFacts]) -> str | None:
    """Compare with what ranks without a slice had: by the manifest that is left, or by their slice of another step."""
    members: dict[tuple[int, ...], dict[Names, SliceFacts]] = defaultdict(dict)
    present = set[int]()
    for slice_ in slices:
        members[slice_.group].setdefault(slice_.listed.names, slice_)
        present.add(slice_.rank)
    for group, lists in members.items():
        for rank in group:
            if rank in present or rank in facts.lost:
                continue
            for path, listed in _lists_of(facts, step, rank):
                slice_ = next(iter(lists.values()))
                if not any(listed.issubset(other) or listed.issuperset(other) for other in lists):
                    return f"{path} and {slice_.path} should hold the same slice but list different parameters"
    return None


def _lists_of(facts: Facts, step: Step, rank: int) -> Iterator[tuple[str, Names]]:
    """Yield the lists in a rank's manifests of a step, and those of its slices of other steps without a replica."""
    described: list[SliceFile | OrphanManifest] = [item.file for item in facts.at(step, rank)]
    for stating in (*described, *facts.orphans.get((rank, step), ())):
        if stating.manifest is not None and (stating.manifest.rank, stating.manifest.step) == (rank, step):
            yield f"the manifest of {stating.path}", frozenset(item.name for item in stating.manifest.parameters)
    for other in facts.steps:
        for item in facts.at(other, rank) if other != step else ():
            replicas = (replica for peer in item.group if peer != rank for replica in facts.at(other, peer))
            if _is_usable(item) and all(replica.listed.names != item.listed.names for replica in replicas):
                yield item.path, item.listed.names


def _by_other_steps(facts: Facts, dealt: Collection[Step], slices: Iterable[SliceFacts]) -> str | None:
    """Look for a slice that lists what it listed at a step that was dealt out."""
    for slice_ in slices:
        for step in dealt:
            for other in facts.at(step, slice_.rank):
                if other.file.prefix == slice_.file.prefix and other.listed.names == slice_.listed.names:
                    return f"{slice_.path} lists what {other.path} lists, and that step was dealt out"
    return None


def _by_names(slices: Iterable[SliceFacts]) -> str | None:
    """Look for slices which all have a state of the optimizer without its weight."""
    first: tuple[SliceFacts, str] | None = None
    for listed, slice_ in {slice_.listed.names: slice_ for slice_ in slices}.items():
        states = ((name, _STATE.match(name)) for name in slice_.listed.index)
        alone = next((name for name, state in states if state is not None and state[1] not in listed), None)
        if alone is None:
            return None
        first = first or (slice_, alone)
    return None if first is None else f"{first[0].path} has {first[1]!r} without its weight"


def _by_stage(facts: Facts, slices: Iterable[SliceFacts]) -> _ByStage:
    """Return the lists of each stage; not those without any parameter that layouts of the stage name."""
    by_stage: dict[int, dict[Names, SliceFacts]] = defaultdict(dict)
    for slice_ in slices if facts.stages.problem is None else ():
        layouts = facts.stages.layouts.get(facts.stages.of(slice_.rank))
        if facts.stages.covers(slice_.file) and (layouts is None or not slice_.listed.names.isdisjoint(layouts)):
            by_stage[facts.stages.of(slice_.rank)].setdefault(slice_.listed.names, slice_)
    return by_stage


def _by_layouts(facts: Facts, lists: _ByStage) -> str | None:
    """Look for a stage whose slices list different parameters, or all lack trainable ones that layouts name.

    Layouts may name those of all stages. What other stages have, by their layouts or their slices, says nothing.
    """
    named = Counter(name for layouts in facts.stages.layouts.values() for name in layouts)
    saved = saved_kinds(facts.stages.layouts, lists)
    for stage in sorted(lists.keys() & facts.stages.layouts.keys()):
        lists_of_stage = lists[stage]
        elsewhere = frozenset[str]().union(
            *(listed for other, theirs in lists.items() if other != stage for listed in theirs)
        )
        own = (name for name in facts.stages.layouts[stage] if named[name] == 1 and name not in elsewhere)
        kinds = families(own)
        lacking = [lacking_names(kinds, listed, saved) for listed in lists_of_stage]
        first, *others = lists_of_stage.values()
        if (why := _unlike(first, others)) is not None:
            return why
        if all(lacking):
            slice_, path = next(iter(lists_of_stage.values())), facts.stages.paths[stage]
            return f"{slice_.path} lacks {min(lacking[0])!r}, which {path} names beside parameters that it has"
    return None


def saved_kinds(layouts: Mapping[int, Collection[str]], lists: Mapping[int, Iterable[Names]]) -> frozenset[str]:
    """Return the kinds of trainable parameters, as `families` has them, of which slices of any stage list one."""
    saved = set[str]()
    for stage in layouts.keys() & lists.keys():
        listed = frozenset[str]().union(*lists[stage])
        saved.update(kind for kind, names in families(layouts[stage]).items() if not names.isdisjoint(listed))
    return frozenset(saved)


def lacking_names(kinds: Mapping[str, Names], listed: Collection[str], saved: Collection[str]) -> Names:
    """Return the weights that a list lacks, and the states of `saved` kinds; no checkpoint leaves these out."""
    found = [names.difference(listed) for kind, names in kinds.items() if not kind or kind in saved]
    return frozenset[str]().union(*found)


def _doubt(facts: Facts, lists: _ByStage) -> str | None:
    """Return what layouts of a stage name, and no slice of any stage lists."""
    everywhere = frozenset[str]().union(*(listed for lists_of_stage in lists.values() for listed in lists_of_stage))
    for stage in sorted(lists.keys() & facts.stages.layouts.keys()):
        unlisted = [name for name in sorted(facts.stages.layouts[stage]) if name not in everywhere]
        unlisted = [name for name in unlisted if not name.startswith(NOT_SHARDED)]
        if unlisted:
            return f"{facts.stages.paths[stage]} names {name_some(unlisted, 2)}, and no slice lists that"
    return None


def forgive_dealt(compared: Comparison) -> Comparison:
    """Return the findings without damage to slices of which all that they lack lies with ranks that hold the same.

    Slices that listed something else at another step stay damaged, and so do those without layouts.
    """
    facts, structure = compared.facts, compared.structure
    forgiven: set[str] = set()
    for step in structure.deduplicated:
        by_stage: dict[int, list[SliceFacts]] = defaultdict(list)
        for slice_ in facts.counted_at(step):
            known = facts.stages.why_unknown(slice_.rank) is None and facts.stages.covers(slice_.file)
            if known and _is_usable(slice_):
                by_stage[facts.stages.of(slice_.rank)].append(slice_)
        for slices in by_stage.values():
            whole = [slice_ for slice_ in slices if slice_.path not in structure.damaged]
            cut = [slice_ for slice_ in slices if slice_.path in structure.damaged and _is_usual(facts, slice_)]
            while cut and (less := [slice_ for slice_ in cut if _has_all(facts, slice_, [*whole, *cut])]) != cut:
                cut = less  # one that is damaged may be what another one needs
            forgiven.update(slice_.path for slice_ in cut)
    damaged = {path: why for path, why in structure.damaged.items() if path not in forgiven}
    return replace(compared, structure=replace(structure, damaged=damaged))


def _has_all(facts: Facts, slice_: SliceFacts, slices: Sequence[SliceFacts]) -> bool:
    """Whether another slice that lists it holds the same part of each parameter that a slice lacks."""
    stages = facts.stages
    cuts = {name: cut for cut in stages.cuts[stages.of(slice_.rank)] for name in cut.names}
    for name in dict.fromkeys(name for other in slices for name in other.listed.index):
        if name in slice_.listed.index:
            continue
        cut = cuts.get(name)
        if cut is None:
            return False
        part = cut.parts[slice_.rank % stages.devices]
        if not any(cut.parts[other.rank % stages.devices] == part for other in slices if name in other.listed.index):
            return False
    return any(other.listed != slice_.listed == other.listed[: len(slice_.listed)] for other in slices)


def _is_usual(facts: Facts, one: SliceFacts) -> bool:
    """Whether a rank's slices of other steps list the same."""
    others = [other for step in facts.steps for other in facts.at(step, one.rank) if step != one.file.step]
    same_run = (other for other in others if other.file.prefix == one.file.prefix and other.file.problem is None)
    return all(other.listed == one.listed for other in same_run)


@dataclass(frozen=True, kw_only=True)
class _Undamaged:
    """The slices of a step and a prefix that may be whole, by stage, and the parameters that a stage must list as well.

    These are the trainable ones of each kind of which a stage lists nothing, and other stages something. Layouts may
    name those of all stages; they are none of one stage alone.
    """

    step: Step
    slices: Mapping[int, Sequence[SliceFacts]]
    unlisted: Mapping[int, Names]


def find_cut_off(compared: Comparison) -> Comparison:
    """Return the findings with damage to slices that end before parameters which no other slice has instead.

    These are parts of parameters that the stage lists, of which every holder is there, and whole kinds of trainable
    parameters that other stages list. Where nothing was dealt out, two slices were not cut off at the same place, and
    what is left of one is the beginning of another.
    """
    facts, structure = compared.facts, compared.structure
    damaged = dict(structure.damaged)
    for at in _undamaged_steps(compared):
        for stage in sorted(at.slices.keys() & facts.stages.layouts.keys()):
            slices, unlisted = at.slices[stage], at.unlisted.get(stage, frozenset())
            lists = {slice_.listed for slice_ in slices}
            names = frozenset[str]().union(*(listed.names for listed in lists))
            if at.step in structure.deduplicated:
                damaged |= _cut_among(facts, stage, slices, names | unlisted)
                continue
            begun = {short for short in lists if any(_is_begun(short, other) for other in lists)}
            cut = _cut_among(facts, stage, slices, names) if begun else {}
            if unlisted and len(lists) == len(slices):
                begun, cut = lists, _ending_before(facts, slices, slices, min(unlisted))
            damaged |= {item.path: cut[item.path] for item in slices if item.listed in begun and item.path in cut}
    return replace(compared, structure=replace(structure, damaged=damaged))


def _is_begun(short: ParameterList, other: ParameterList) -> bool:
    return len(short) < len(other) and short == other[: len(short)]


def lacks_kinds(compared: Comparison) -> bool:
    """Whether a stage lists nothing of a kind of trainable parameters that others list, at some step.

    Where one slice of such a stage is left, it is cut off.
    """
    return any(at.unlisted for at in _undamaged_steps(compared))


def _undamaged_steps(compared: Comparison) -> Iterator[_Undamaged]:
    """Yield the steps at which layouts may show that a slice without manifest is cut off, each prefix by itself."""
    facts, damaged, layouts = compared.facts, compared.structure.damaged, compared.facts.stages.layouts
    if facts.kind is not None or facts.stages.problem is not None:
        return
    covers = facts.stages.covers
    named = Counter(name for names in layouts.values() for name in names)
    kinds = {stage: families(names) for stage, names in layouts.items()}
    own = {stage: families(name for name in names if named[name] == 1) for stage, names in layouts.items()}
    for step in facts.steps:
        every = facts.counted_at(step)
        if all(slice_.manifest is not None for slice_ in every):
            continue
        usable = [item for item in every if _is_usable(item) and item.path not in damaged and covers(item.file)]
        prefixes = dict.fromkeys(slice_.file.prefix for slice_ in usable)
        for prefix in prefixes:
            slices = usable if len(prefixes) == 1 else [item for item in usable if item.file.prefix == prefix]
            by_stage = grouped(slices, lambda slice_: facts.stages.of(slice_.rank))
            saved = {stage: _kinds_in(kinds[stage], by_stage[stage]) for stage in by_stage.keys() & kinds.keys()}
            lacking = {stage: frozenset[str]().union(*saved.values()) - kinds_of for stage, kinds_of in saved.items()}
            unlisted = {
                stage: frozenset[str]().union(*(names for kind, names in own[stage].items() if kind in lacking[stage]))
                for stage in lacking
            }
            unlisted = {stage: names for stage, names in unlisted.items() if names}
            yield _Undamaged(step=step, slices=by_stage, unlisted=unlisted)


def _kinds_in(kinds: Mapping[str, Names], slices: Iterable[SliceFacts]) -> frozenset[str]:
    """Return the kinds of which slices list a parameter."""
    lists = {one.listed for one in slices}
    return frozenset(kind for kind, names in kinds.items() if any(not names.isdisjoint(one.names) for one in lists))


def _cut_among(facts: Facts, stage: int, slices: Sequence[SliceFacts], names: Names) -> dict[str, str]:
    """Find the slices that may have ended with a part of a parameter of which every holder is there and none has it."""
    damaged: dict[str, str] = {}
    of_rank = grouped(slices, lambda slice_: slice_.rank)
    for cut in facts.stages.cuts[stage]:
        wanted = frozenset(name for name in cut.names & names if not name.startswith(NOT_SHARDED))
        holders: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank, part in zip(facts.stages.ranks(stage), cut.parts, strict=True) if wanted else ():
            holders[part].append(rank)
        for ranks in holders.values():
            if not of_rank.keys() >= set(ranks):
                continue
            alike = [slice_ for rank in ranks for slice_ in of_rank[rank]]
            for name in sorted(wanted.difference(*(slice_.listed.names for slice_ in alike))):
                damaged |= _ending_before(facts, alike, slices, name)
    return damaged


def _ending_before(
    facts: Facts, holders: Iterable[SliceFacts], slices: Sequence[SliceFacts], name: str
) -> dict[str, str]:
    """Return those of the holders of a parameter that may have been cut off before it.

    One with a manifest was saved as it is, and so was one that lists what it did at another step, or what comes after.
    """
    listing = {slice_.listed for slice_ in slices if name in slice_.listed.index}
    later_names = frozenset(later.name for listed in listing for later in listed[listed.index[name] :])
    why = f"ends too early: {facts.stages.paths[facts.stages.of(slices[0].rank)]} names {name!r}, which no slice has"
    return {
        holder.path: f"{why} that holds the same part"
        for holder in holders
        if holder.manifest is None and not holder.path.endswith(ANY_ORDER)
        if later_names.isdisjoint(holder.listed.names) and not _was_listed(facts, holder)
    }


def _was_listed(facts: Facts, one: SliceFacts) -> bool:
    """Whether a rank's slice of another step lists the same."""
    others = (other for step in facts.steps for other in facts.at(step, one.rank) if step != one.file.step)
    return any(other.listed == one.listed and other.file.prefix == one.file.prefix for other in others)
