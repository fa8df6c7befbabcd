"""What a lost slice listed and held, by the other slices of its stage and by what it left itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

from ms_recover.model.compose import MissingRegion
from ms_recover.model.inventory import OrphanManifest, SliceFile
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.texts import name_some
from ms_recover.planning.claims.layouts import NOT_SHARDED, shape_at
from ms_recover.planning.judging.dealt_out import families, lacking_names, saved_kinds
from ms_recover.planning.judging.judgement import StepJudgement
from ms_recover.planning.judging.structure import is_misread
from ms_recover.planning.supply.parameters import ParameterIndex
from ms_recover.planning.tree.facts import Facts, SliceFacts

_MAP = "MapTensor"
_MOST_LISTS = 64


class NotComposableError(Exception):
    """A slice cannot be composed from others; the text says why.

    It is `disputed` where slices contradict the layouts by which it would be composed.
    """

    def __init__(self, why: str, *, disputed: bool = False) -> None:
        super().__init__(why)
        self.disputed = disputed


def expected_parameters(index: ParameterIndex, rank: int, *, complete: bool = False) -> tuple[Parameter, ...]:
    """Return the parameters of a rank's slice, by its stage, its manifest and its own other slices.

    Where documents that agree with the slices state the list, it is that.
    All ranks of a stage run the same network, so they list the same parameters in the same order, unless
    ``remove_redundancy=True`` dealt them out; a `complete` slice has every parameter of the stage all the same.

    Raises
    ------
    NotComposableError
        When nothing states it.
    """
    stage, step = index.stages.of(rank), index.judgement.step
    documented = index.facts.expected(step, rank)
    if documented is not None and not complete:
        return _composable(documented)
    everything = [index.facts.expected(step, other) for other in index.stages.ranks(stage)] if complete else []
    if any(everything):  # documents state what each rank got: together they are the parameters of the stage
        listed = dict.fromkeys(entry for entry in everything if entry is not None)
        known = {parameter.name: parameter for entry in listed for parameter in entry}
        order = merge_orders([tuple(parameter.name for parameter in entry) for entry in listed])
        return _composable(_here(index, rank, known[name]) for name in order)
    lists = [index.slices[kind[0]].file for kind in index.kinds.get(stage, ())]
    lists = [file for file in lists if file.encryption is None]
    if not lists:
        if stage in index.by_stage:
            raise NotComposableError("encrypted slices are copied whole or not at all")
        stated = stated_parameters(index, rank)
        if stated is None:
            raise NotComposableError("no rank of its stage has a sound slice, so its parameters are unknown")
        return _composable(stated)
    orders = {tuple(parameter.name for parameter in file.parameters): file for file in lists}
    if len({frozenset(order) for order in orders}) == 1 and (complete or not _is_dealt(index)):
        return _composable(_here(index, rank, parameter) for parameter in lists[0].parameters)
    # Lists may differ where parameters were dealt out, but not by one name alone: that is a damaged name.
    for first, other in combinations(list(orders.values())[:_MOST_LISTS], 2) if not complete else ():
        if is_misread(first.parameters, other.parameters):
            raise NotComposableError(
                f"{first.path} and {other.path} list the same but for one name, which may be damaged"
            )
    known = {parameter.name: parameter for file in lists for parameter in file.parameters}
    order = merge_orders(orders)
    if complete:
        return _composable(_here(index, rank, known[name]) for name in order)
    stated = stated_parameters(index, rank)
    if stated is not None:
        known = {**{parameter.name: parameter for parameter in stated}, **known}
        order = [parameter.name for parameter in stated]
    else:
        order = _dealt(index, rank, order)
    return _composable(_here(index, rank, known[name]) for name in order)


def _is_dealt(index: ParameterIndex) -> bool:
    return index.judgement.step in index.judgement.structure.deduplicated


def _composable(parameters: Iterable[Parameter]) -> tuple[Parameter, ...]:
    listed = tuple(parameters)
    for parameter in listed:
        if parameter.dtype.startswith(_MAP):
            raise NotComposableError(f"{parameter.name!r} is a map parameter: such slices are copied whole")
    return listed


def _here(index: ParameterIndex, rank: int, parameter: Parameter) -> Parameter:
    way = index.way(index.stages.of(rank), parameter.name)
    return parameter if way is None else shape_at(way.layout, way.cell(rank), parameter)


def stated_parameters(index: ParameterIndex, rank: int) -> tuple[Parameter, ...] | None:
    """Return the list in the manifest of the rank's slice, gone or not, or in its own slice of the nearest step."""
    facts, step = index.facts, index.judgement.step
    if rank in facts.lost:
        return None
    described: list[SliceFile | OrphanManifest] = [slice_.file for slice_ in facts.at(step, rank)]
    for file in (*described, *facts.orphans.get((rank, step), ())):
        manifest = file.manifest
        if manifest is None or index.judgement.run.why_foreign(file) is not None:
            continue
        if (manifest.rank, manifest.step) == (rank, step) and (not index.runs or manifest.run_id in index.runs):
            return manifest.parameters
    others = [
        slice_.file
        for other in facts.steps
        for slice_ in facts.at(other, rank)
        if other != step and slice_.file.problem is None and slice_.file.encryption is None
        if slice_.file.prefix in index.prefixes and slice_.path not in index.judgement.structure.damaged
        if slice_.manifest is None or not index.runs or slice_.manifest.run_id in index.runs
    ]
    nearest = max(others, key=lambda file: (file.step < step, file.step), default=None)
    return nearest.parameters if nearest is not None else None


@dataclass(frozen=True, kw_only=True)
class LostLists:
    """What the slices of a step listed that are lost or damaged, over all ranks.

    Parameters
    ----------
    listed : mapping of int to tuple of Parameter
        What is known of the list of a rank: all of it, or what the header of its damaged slice shows.
    unknown : mapping of int to int
        The stages of which some rank's whole list is not known, each with the first such rank.
    """

    listed: Mapping[int, tuple[Parameter, ...]]
    unknown: Mapping[int, int]


def lost_lists(index: ParameterIndex) -> LostLists:
    """Return what slices listed that are not sound.

    A rank's list is what `expected_parameters` goes by: documents, else `stated_parameters`. Where these are silent a
    damaged slice may lack a part of its own list, or be another rank's. Ranks of a stage list the same unless
    parameters were dealt out: one sound slice is then enough for the stage, and its ranks are left out.
    """
    facts, step, kind = index.facts, index.judgement.step, index.facts.kind
    dealt = _is_dealt(index) or kind is not None
    whole = {index.stages.of(rank) for rank in index.slices if not dealt and _is_listed(index, rank)}
    idle = facts.idle(step)
    listed: dict[int, tuple[Parameter, ...]] = {}
    unknown: list[int] = []
    for rank in range(facts.world.ranks):
        if rank in idle or index.stages.of(rank) in whole or _is_listed(index, rank):
            continue
        known = facts.expected(step, rank)
        stated = known if known is not None else stated_parameters(index, rank)
        shown = _shown(index, rank) if stated is None else None
        trusted = shown is not None and (kind is not None or not (dealt or shown.problem))
        unknown += [rank] if stated is None and not trusted else []
        listed[rank] = stated or (shown.parameters if shown is not None else ())
    if not dealt:
        giving = {index.stages.of(rank) for rank, slice_ in index.slices.items() if slice_.file.encryption is None}
        unknown = [rank for rank in unknown if index.stages.of(rank) not in giving]
    return LostLists(
        listed={rank: parameters for rank, parameters in listed.items() if parameters},
        unknown={index.stages.of(rank): rank for rank in reversed(unknown)},
    )


def _is_listed(index: ParameterIndex, rank: int) -> bool:
    """Whether a rank's slice is sound and shows what it lists; an encrypted one does not."""
    return index.is_sound(rank) and index.slices[rank].file.encryption is None


def _shown(index: ParameterIndex, rank: int) -> SliceFile | None:
    """Return a damaged slice of a rank that shows parameters."""
    run = index.judgement.run
    files = (slice_.file for slice_ in index.facts.at(index.judgement.step, rank) if rank not in index.facts.lost)
    shown = (file for file in files if file.parameters)  # an encrypted one shows none
    return next((file for file in shown if run.why_foreign(file) is None), None)


def _dealt(index: ParameterIndex, rank: int, order: Sequence[str]) -> list[str]:
    """Return the parameters that ``remove_redundancy=True`` left to a rank, where nothing of its own states them.

    Those that every other holder of the same part has (nothing is dealt out where there is one holder only), and those
    that none of them has. One without a layout is not dealt out: it is the rank's when at least half of the stage has
    it, because a slice that lacks it is damaged.
    """
    stage = index.stages.of(rank)
    mine = []
    for name in order:
        way = index.way(stage, name)
        ranks = index.by_stage[stage] if way is None else way.holders.get(way.cell(rank).index, [])
        others = [other for other in ranks if other != rank]
        having = sum(index.find(other, name) is not None for other in others)
        if having in (0, len(others)) or (way is None and 2 * having >= len(others)):
            mine.append(name)
    return mine


def merge_orders(orders: Iterable[Sequence[str]]) -> list[str]:
    """Merge lists without doubles that are parts of one order into that order, as far as they state it.

    Where they leave it open, the list that comes first goes first.
    """
    lists = [list(order) for order in orders]
    merged: list[str] = []
    done: set[str] = set()
    behind: Counter[str] = Counter(name for order in lists for name in order[1:])
    heads = [0] * len(lists)
    while True:
        open_lists = [index for index, order in enumerate(lists) if heads[index] < len(order)]
        if not open_lists:
            return merged
        chosen = next((index for index in open_lists if not behind[lists[index][heads[index]]]), open_lists[0])
        name = lists[chosen][heads[chosen]]
        if name not in done:
            merged.append(name)
            done.add(name)
        for index in open_lists:
            order = lists[index]
            while heads[index] < len(order) and order[heads[index]] in done:
                heads[index] += 1
                if heads[index] < len(order):
                    behind[order[heads[index]]] -= 1


class LostNames:
    """Answers which parameters only the lost slices of a step had, by the layouts of their stage."""

    def __init__(self, index: ParameterIndex) -> None:
        self._index = index
        self._dealt = index.facts.kind is None and index.judgement.step in index.judgement.structure.deduplicated
        self._of_stage: dict[int, Mapping[str, int]] = {}

    def is_guessed(self, rank: int) -> bool:
        """Whether nothing of a rank's own states which parameters were dealt to it."""
        return self._dealt and stated_parameters(self._index, rank) is None

    def of(self, rank: int, *, complete: bool = False) -> tuple[MissingRegion, ...]:
        """Return those that may have been dealt to a rank; none where its own list is known, or nothing was dealt.

        A `complete` slice needs them all. Their bytes are those of another parameter of the same weight, 0 where no
        slice has one.
        """
        if not (self._dealt if complete else self.is_guessed(rank)):
            return ()
        stage = self._index.stages.of(rank)
        if stage not in self._of_stage:
            self._of_stage[stage] = self._find(stage)
        path = self._index.stages.paths[stage]
        reason = f"{path} names it and no slice lists it: remove_redundancy=True dealt it to a slice that is lost"
        owned = self._stated_by_others(stage) if self._of_stage[stage] and not complete else frozenset()
        unlisted = self._of_stage[stage].items()
        return tuple(MissingRegion(name, (), size, reason) for name, size in unlisted if name not in owned)

    def _find(self, stage: int) -> Mapping[str, int]:
        index, layouts = self._index, self._index.stages.layouts[stage]
        kinds = [kind[0] for kind in index.kinds.get(stage, ())]
        sizes = {
            name: parameter.nbytes
            for rank in kinds
            for name in index.slices[rank].listed.index
            if (parameter := index.find(rank, name)) is not None
        }
        unlisted = [name for name in sorted(layouts) if name not in sizes]
        if not unlisted:
            return {}
        never = self._never_saved(stage, sizes)
        of_weight = {_weight(name, layouts): size for name, size in sizes.items()}
        return {name: of_weight.get(_weight(name, layouts), 0) for name in unlisted if name not in never}

    def _never_saved(self, stage: int, listed: Collection[str]) -> frozenset[str]:
        """Return what layouts name and checkpoints of the stage leave out.

        All parameters of a kind, if none is listed although there are enough of them for every replica to get one,
        whatever a step lacks of which every slice of the stage is there and none is known to be damaged, and what
        other stages list. Trainable parameters of a kind that some stage saves are left out of no checkpoint.
        """
        index, layouts = self._index, self._index.stages.layouts[stage]
        cuts = index.stages.cuts[stage]
        replicas = max((max(Counter(cut.parts).values()) for cut in cuts), default=1)
        kinds = {kind: names for kind, names in families(layouts).items() if kind not in self._saved_kinds}
        never = {name for names in kinds.values() if len(names) >= replicas for name in names}
        if not any(name.startswith(NOT_SHARDED) for name in listed):
            never.update(name for name in layouts if name.startswith(NOT_SHARDED))
        for step in index.facts.steps:
            whole = [slice_ for rank in index.stages.ranks(stage) for slice_ in self._undamaged(step, rank)]
            if len({slice_.rank for slice_ in whole}) == index.stages.devices:
                lacking = frozenset(layouts).difference(*(slice_.listed.index for slice_ in whole))
                never.update(lacking - self._certain(stage))
        others = (kind[0] for other, kinds in index.kinds.items() if other != stage for kind in kinds)
        return frozenset(never).union(*(index.slices[rank].listed.index for rank in others))

    def _undamaged(self, step: Step, rank: int) -> Iterator[SliceFacts]:
        """Yield the slices of a rank that nothing speaks against; at the step itself the one that is sound."""
        index = self._index
        for slice_ in index.facts.at(step, rank):
            file = slice_.file
            intact = file.problem is None and file.encryption is None and file.prefix in index.prefixes
            if step == index.judgement.step:
                intact = intact and index.is_sound(rank) and index.slices[rank] is slice_
            if intact and slice_.path not in index.judgement.structure.damaged:
                yield slice_

    def _certain(self, stage: int) -> frozenset[str]:
        """Return the parameters that only this stage's layouts name and checkpoints with states of their kind have."""
        every = self._index.stages.layouts
        named = Counter(name for layouts in every.values() for name in layouts)
        own = families(name for name in every[stage] if named[name] == 1)
        return lacking_names(own, (), self._saved_kinds)

    @cached_property
    def _saved_kinds(self) -> frozenset[str]:
        index = self._index
        lists = {stage: [index.slices[kind[0]].listed.names for kind in kinds] for stage, kinds in index.kinds.items()}
        return saved_kinds(index.stages.layouts, lists)

    def _stated_by_others(self, stage: int) -> frozenset[str]:
        """Return what other lost slices had, by their manifests or their slices of other steps."""
        index = self._index
        lost = (rank for rank in index.stages.ranks(stage) if rank not in index.slices)
        lists = (stated_parameters(index, rank) for rank in lost)
        return frozenset(parameter.name for listed in lists for parameter in listed or ())


def _weight(name: str, layouts: Collection[str]) -> str:
    """Return the weight that a parameter is or is a state of."""
    weight = name.partition(".")[2]
    return weight if weight in layouts else name


def find_own_manifest(facts: Facts, judgement: StepJudgement, rank: int) -> Manifest | None:
    """Return the manifest of the planned run that proves what a rank's slice of the step must hold.

    Its slice is gone, or known to be damaged: one that still fits a slice is that slice's, which is replaced for
    another reason, and does not state what comes in its place. Nor does that of a rank that is declared lost.
    """
    if rank in facts.lost:
        return None
    step, run = judgement.step, judgement.run
    for manifest in (
        *_of_damaged(facts, judgement, rank),
        *(orphan.manifest for orphan in facts.orphans.get((rank, step), ()) if run.why_foreign(orphan) is None),
    ):
        if manifest is not None and manifest.provenance.proven and (manifest.rank, manifest.step) == (rank, step):
            return manifest
    return None


def _of_damaged(facts: Facts, judgement: StepJudgement, rank: int) -> Iterator[Manifest | None]:
    for slice_ in facts.at(judgement.step, rank):
        judged = judgement.slices.get(slice_.path)
        if judged is not None and judged.proven_damaged:
            yield slice_.manifest


def stated_contents(manifest: Manifest | None) -> dict[str, str]:
    """Return the digest of each parameter that a manifest states; none without one."""
    if manifest is None:
        return {}
    names = (parameter.name for parameter in manifest.parameters)
    return dict(zip(names, manifest.digests.parameters, strict=False))


def other_contents(manifest: Manifest | None, source: SliceFacts, borrowed: Collection[str]) -> tuple[str, ...]:
    """Return the parameters of a source that a manifest states otherwise, `borrowed` ones aside."""
    stated = stated_contents(manifest).items()
    digests = ((name, digest, source.digest_of(name)) for name, digest in stated if name not in borrowed)
    return tuple(name for name, digest, theirs in digests if theirs not in (None, digest))


def why_other_contents(rank: int, source: SliceFacts, names: Sequence[str]) -> str:
    """Return why a source is no replica of a rank's slice."""
    return (
        f"rank {source.rank} holds other contents of {name_some(names)} than the manifest states that the slice of "
        f"rank {rank} left; that may be removed if it is wrong"
    )
