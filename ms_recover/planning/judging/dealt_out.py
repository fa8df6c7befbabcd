"""Steps at which ``remove_redundancy=True`` dealt parameters out, although the slices that are left do not show it.

Two replicas with different parameters show it by themselves (`structure`). Where one of each group is left, its slice
looks like a whole one, and a copy of it would silently lack what was dealt to the others.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from ms_recover.model.inventory import OrphanManifest, SliceFile
from ms_recover.model.steps import Step
from ms_recover.model.texts import name_some
from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.structure import StructureFindings, is_misread
from ms_recover.planning.redundancy.layouts import NOT_SHARDED

Names = frozenset[str]
_ByStage = Mapping[int, Mapping[Names, SliceFacts]]
"""The slices of each stage by their lists, one of each."""

_STATE = re.compile(r"(?:moments?\d?|adam_[mv]|lamb_[mv]|exp_avg\w*)\.(.+)\Z")
"""Names of optimizer states that nothing but the optimizers of MindSpore have, and the weight."""


def find_dealt(facts: Facts, structure: StructureFindings) -> StructureFindings:
    """Add the steps at which parameters were dealt out, or may have been, to those that replicas show.

    It shows in the metadata of safetensors files, in manifests and other steps of ranks without a slice, in other steps
    that were dealt out alike, in states without their weight, and in trainable parameters that layouts name and slices
    lack. Two replicas that list the same prove the contrary. Where only all states of the optimizer are lacking, it is
    in doubt: a checkpoint of weights alone looks the same.
    """
    if facts.kind is not None:  # documents state the list of each file
        return structure
    dealt, names = dict(structure.deduplicated), _NamesOf()
    shown = frozenset(dealt)
    layouts = facts.stages.layouts
    trainable = {stage: frozenset[str]().union(*families(named).values()) for stage, named in layouts.items()}
    doubtful: dict[Step, str] = {}
    for step in facts.steps:
        held = [one for one in facts.counted_at(step) if _is_usable(one) and one.path not in structure.damaged]
        if step in shown or not held:
            continue
        replicas = _Replicas(facts, held, names, trainable)
        if replicas.alike:
            continue
        why = (
            replicas.unlike
            or _by_metadata(held)
            or _by_lost(facts, step, held, names)
            or _by_other_steps(facts, shown, held, names)
            or _by_names(held, names)
        )
        lists = {} if why is not None else _by_stage(facts, held, names)
        why = why or _by_layouts(facts, lists)
        if why is not None:
            dealt[step] = why
        elif (doubt := _doubt(facts, lists)) is not None:
            doubtful[step] = doubt
    return replace(structure, deduplicated=dealt, doubtful=doubtful)


def families(layouts: Iterable[str]) -> dict[str, frozenset[str]]:
    """Return trainable parameters by kind: weights under "", the states of the optimizer by the word before the dot.

    A weight is trainable when some state of it is there.
    """
    there = frozenset(layouts)
    found: dict[str, set[str]] = defaultdict(set)
    for name in there:
        kind, _, weight = name.partition(".")
        if weight in there:
            found[kind].add(name)
            found[""].add(weight)
    return {kind: frozenset(names) for kind, names in found.items()}


class _NamesOf:
    """The names that lists of parameters have, found once for each list."""

    def __init__(self) -> None:
        self._known: dict[int, Names] = {}

    def of(self, one: SliceFacts) -> Names:
        key = id(one.listed)
        if key not in self._known:
            self._known[key] = frozenset(one.listed.index)
        return self._known[key]


def _is_usable(one: SliceFacts) -> bool:
    return one.file.problem is None and one.file.encryption is None and one.manifest_problem is None


class _Replicas:
    """Slices that hold the same; a copy is no witness for its source.

    Parameters
    ----------
    alike : bool
        Two of them list the same, trainable parameters among it where layouts name these.
    unlike : str or None
        Two of them that list different parameters, neither the other's and more.
    """

    def __init__(
        self, facts: Facts, held: Sequence[SliceFacts], names: _NamesOf, trainable: Mapping[int, Names]
    ) -> None:
        self.alike, self.unlike = False, None
        seen: dict[tuple[int, ...], dict[Names, SliceFacts]] = defaultdict(dict)
        for one in held:
            listed, theirs = names.of(one), trainable.get(facts.stages.of(one.rank))
            if one.manifest is not None and one.manifest.recovered:
                continue
            there = seen[facts.stages.families.get(one.rank, facts.groups.of(one.rank))]
            other = there.setdefault(listed, one)
            if other.rank != one.rank and (not theirs or not theirs.isdisjoint(listed)):
                self.alike = True
                return
            if len(there) > 1 and self.unlike is None:
                self.unlike = _unlike(one, there.values())


def _unlike(one: SliceFacts, others: Iterable[SliceFacts]) -> str | None:
    """Return a slice that lists others than one of some that should list the same; one that is cut off is none."""
    for other in others:
        local = one.rank_local | other.rank_local
        ours, theirs = ([name for name in held.listed.index if name not in local] for held in (one, other))
        short = min(len(ours), len(theirs))
        if ours[:short] != theirs[:short] and set(ours) != set(theirs) and not is_misread(one.listed, other.listed):
            return f"{other.path} and {one.path} should list the same parameters and do not"
    return None


def _by_metadata(held: Iterable[SliceFacts]) -> str | None:
    one = next((one for one in held if one.file.dealt), None)
    return None if one is None else f"{one.path} was saved with remove_redundancy=True, as its metadata says"


def _by_lost(facts: Facts, step: Step, held: Iterable[SliceFacts], names: _NamesOf) -> str | None:
    """Compare with what ranks without a slice had: by the manifest that is left, or by their slice of another step."""
    members: dict[tuple[int, ...], dict[Names, SliceFacts]] = defaultdict(dict)
    there = set[int]()
    for one in held:
        members[one.group].setdefault(names.of(one), one)
        there.add(one.rank)
    for group, lists in members.items():
        for rank in group:
            if rank in there or rank in facts.lost:
                continue
            for path, listed in _lists_of(facts, step, rank, names):
                one = next(iter(lists.values()))
                if listed not in lists and not any(listed < other or other < listed for other in lists):
                    return f"{path} and {one.path} should hold the same slice but list different parameters"
    return None


def _lists_of(facts: Facts, step: Step, rank: int, names: _NamesOf) -> Iterator[tuple[str, Names]]:
    """Yield the lists in a rank's manifests of a step, and those of its slices of other steps without a replica."""
    described: list[SliceFile | OrphanManifest] = [one.file for one in facts.at(step, rank)]
    for held in (*described, *facts.orphans.get((rank, step), ())):
        if held.manifest is not None and (held.manifest.rank, held.manifest.step) == (rank, step):
            yield f"the manifest of {held.path}", frozenset(one.name for one in held.manifest.parameters)
    for other in facts.steps:
        for one in facts.at(other, rank) if other != step else ():
            peers = (facts.at(other, peer) for peer in one.group if peer != rank)
            if _is_usable(one) and not any(names.of(peer) == names.of(one) for held in peers for peer in held):
                yield one.path, names.of(one)


def _by_other_steps(facts: Facts, dealt: Collection[Step], held: Iterable[SliceFacts], names: _NamesOf) -> str | None:
    """Look for a slice that lists what it listed at a step that was dealt out."""
    for one in held:
        for step in dealt:
            for other in facts.at(step, one.rank):
                if other.file.prefix == one.file.prefix and names.of(other) == names.of(one):
                    return f"{one.path} lists what {other.path} lists, and that step was dealt out"
    return None


def _by_names(held: Iterable[SliceFacts], names: _NamesOf) -> str | None:
    """Look for slices which all have a state of the optimizer without its weight."""
    first: tuple[SliceFacts, str] | None = None
    for listed, one in {names.of(one): one for one in held}.items():
        states = ((name, _STATE.match(name)) for name in one.listed.index)
        alone = next((name for name, state in states if state is not None and state[1] not in listed), None)
        if alone is None:
            return None
        first = first or (one, alone)
    return None if first is None else f"{first[0].path} has {first[1]!r} without its weight"


def _by_stage(facts: Facts, held: Iterable[SliceFacts], names: _NamesOf) -> _ByStage:
    """Return the lists of each stage; not those without any parameter that layouts of the stage name."""
    found: dict[int, dict[Names, SliceFacts]] = defaultdict(dict)
    for one in held if facts.stages.problem is None else ():
        layouts = facts.stages.layouts.get(facts.stages.of(one.rank))
        if facts.stages.covers(one.file) and (layouts is None or not names.of(one).isdisjoint(layouts)):
            found[facts.stages.of(one.rank)].setdefault(names.of(one), one)
    return found


def _by_layouts(facts: Facts, lists: _ByStage) -> str | None:
    """Look for a stage whose slices list different parameters, or all lack trainable ones that layouts name.

    Layouts may name those of all stages. What other stages have, by their layouts or their slices, says nothing.
    """
    named = Counter(name for layouts in facts.stages.layouts.values() for name in layouts)
    for stage in sorted(lists.keys() & facts.stages.layouts.keys()):
        held = lists[stage]
        elsewhere = frozenset[str]().union(
            *(listed for other, theirs in lists.items() if other != stage for listed in theirs)
        )
        own = (name for name in facts.stages.layouts[stage] if named[name] == 1 and name not in elsewhere)
        kinds = families(own)
        lacking = [_lacking(kinds, listed) for listed in held]
        first, *others = held.values()
        if (why := _unlike(first, others)) is not None:
            return why
        if all(lacking):
            one, path = next(iter(held.values())), facts.stages.paths[stage]
            return f"{one.path} lacks {min(lacking[0])!r}, which {path} names beside parameters that it has"
    return None


def _lacking(kinds: Mapping[str, Names], listed: Names) -> Names:
    """Return the weights that a list lacks, and the states of which it has others; no checkpoint leaves these out."""
    found = [names - listed for kind, names in kinds.items() if not kind or not names.isdisjoint(listed)]
    return frozenset[str]().union(*found)


def _doubt(facts: Facts, lists: _ByStage) -> str | None:
    """Return what layouts of a stage name, and no slice of any stage lists."""
    everywhere = frozenset[str]().union(*(listed for held in lists.values() for listed in held))
    for stage in sorted(lists.keys() & facts.stages.layouts.keys()):
        unlisted = [name for name in sorted(facts.stages.layouts[stage]) if name not in everywhere]
        unlisted = [name for name in unlisted if not name.startswith(NOT_SHARDED)]
        if unlisted:
            return f"{facts.stages.paths[stage]} names {name_some(unlisted, 2)}, and no slice lists that"
    return None


def forgive_dealt(facts: Facts, structure: StructureFindings) -> StructureFindings:
    """Return the findings without damage to slices of which all that they lack lies with ranks that hold the same.

    Slices that listed something else at another step stay damaged, and so do those without layouts.
    """
    forgiven: set[str] = set()
    for step in structure.deduplicated:
        by_stage: dict[int, list[SliceFacts]] = defaultdict(list)
        for one in facts.counted_at(step):
            known = facts.stages.why_unknown(one.rank) is None and facts.stages.covers(one.file)
            if known and _is_usable(one):
                by_stage[facts.stages.of(one.rank)].append(one)
        for held in by_stage.values():
            whole = [one for one in held if one.path not in structure.damaged]
            cut = [one for one in held if one.path in structure.damaged and _is_usual(facts, one)]
            while cut and (less := [one for one in cut if _has_all(facts, one, [*whole, *cut])]) != cut:
                cut = less  # one that is damaged may be what another one needs
            forgiven.update(one.path for one in cut)
    if not forgiven:
        return structure
    return replace(structure, damaged={path: why for path, why in structure.damaged.items() if path not in forgiven})


def _has_all(facts: Facts, one: SliceFacts, held: Sequence[SliceFacts]) -> bool:
    """Whether another slice that lists it holds the same part of each parameter that a slice lacks."""
    stages = facts.stages
    cuts = {name: cut for cut in stages.cuts[stages.of(one.rank)] for name in cut.names}
    for name in dict.fromkeys(name for other in held for name in other.listed.index):
        if name in one.listed.index:
            continue
        cut = cuts.get(name)
        if cut is None:
            return False
        part = cut.parts[one.rank % stages.devices]
        if not any(cut.parts[other.rank % stages.devices] == part for other in held if name in other.listed.index):
            return False
    return any(other.listed != one.listed == other.listed[: len(one.listed)] for other in held)


def _is_usual(facts: Facts, one: SliceFacts) -> bool:
    """Whether a rank's slices of other steps list the same."""
    others = [other for step in facts.steps for other in facts.at(step, one.rank) if step != one.file.step]
    same_run = (other for other in others if other.file.prefix == one.file.prefix and other.file.problem is None)
    return all(other.listed == one.listed for other in same_run)
