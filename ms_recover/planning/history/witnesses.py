"""Witnesses: what manifests state about the values of a rank at each step of the run that is followed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ms_recover.model.inventory import OrphanManifest, SliceFile
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import ParameterList
from ms_recover.model.steps import Step
from ms_recover.planning.tree.candidates import runs_of, why_of_another_run
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.lineage import identity_of
from ms_recover.planning.tree.runs import Run, find_runs
from ms_recover.planning.tree.tree_facts import TreeFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """The digests of one rank's slice of a step, as its manifest states them, and where it lies.

    A slice that was recovered from others has no values of its own (`own`). Slices that are gone, but whose manifests
    are there, are witnesses as well.
    """

    rank: int
    path: str
    listed: ParameterList
    digests: tuple[str, ...]
    file: str
    own: bool
    rank_local: frozenset[str]
    manifest: Manifest


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The witnesses of one step, by rank; `bare` are ranks with a slice of the step and no manifest."""

    step: Step
    run_id: str
    witnesses: Mapping[int, Witness]
    bare: tuple[int, ...] = ()

    @cached_property
    def own(self) -> dict[int, Witness]:
        """Those that have values of their own."""
        return {rank: one for rank, one in self.witnesses.items() if one.own}


def find_moments(facts: Facts, tree: TreeFacts) -> tuple[Moment, ...]:
    """Return the steps of the run that is followed in a part of a tree, oldest first, as they were trained.

    That is the run that `plan` would recover, with those that it goes on from. Slices of ranks declared lost, renamed
    ones and those of other runs are no witnesses.
    """
    orphans: dict[Step, list[OrphanManifest]] = defaultdict(list)
    for orphan in facts.inventory.orphans:
        if orphan.rank not in facts.lost and orphan.rank < facts.world.ranks and orphan.manifest is not None:
            orphans[orphan.step].append(orphan)
    shared: dict[ParameterList, ParameterList] = {}
    moments: list[tuple[int, Moment]] = []
    for step in {*facts.inventory.steps, *orphans}:
        order, moment = _moment(facts, step, orphans[step], shared)
        known = moment is not None and moment.witnesses and facts.lineage is not None  # they are of the lineage
        if not known and facts.counted_at(step) and why_of_another_run(tree, step) is not None:
            continue
        if moment is not None:
            moments.append((order, moment))
    return tuple(moment for _, moment in sorted(moments, key=lambda placed: (placed[0], placed[1].step)))


def _moment(
    facts: Facts, step: Step, orphans: list[OrphanManifest], shared: dict[ParameterList, ParameterList]
) -> tuple[int, Moment | None]:
    """Return the witnesses of a step, and the place of the last run that they are of."""
    files: list[SliceFile | OrphanManifest] = [slice_.file for slice_ in facts.counted_at(step)]
    files += orphans
    best = None if _is_one_run(files) else _best_run(facts, step, files)
    witnesses: dict[int, Witness] = {}
    bare: set[int] = set()
    orders = {0}
    for file in files:
        if best is not None and best.why_foreign(file) is not None:
            continue
        manifest = file.manifest
        if manifest is None:
            bare.add(file.rank)
            continue
        order = (0, step) if facts.lineage is None else facts.lineage.order_of(manifest, step)
        if order is None or file.rank in witnesses or not _fits(file, manifest):
            continue
        orders.add(order[0])
        listed = file.parameters if isinstance(file, SliceFile) else ()
        if listed != manifest.parameters:  # a witness speaks for what was saved, also where the file changed since
            listed = manifest.parameters
        key = listed if isinstance(listed, ParameterList) else ParameterList(listed)
        training = manifest.training
        witnesses[file.rank] = Witness(
            rank=file.rank,
            path=file.path,
            listed=shared.setdefault(key, key),
            digests=manifest.digests.parameters,
            file=manifest.digests.file,
            own=not manifest.recovered,
            rank_local=frozenset(training.rank_local) if training is not None else frozenset(),
            manifest=manifest,
        )
    if not witnesses and not bare:
        return 0, None
    run_id = next((witness.manifest.run_id for witness in witnesses.values()), "")
    bare -= witnesses.keys()
    return max(orders), Moment(step=step, run_id=run_id, witnesses=witnesses, bare=tuple(sorted(bare)))


def _is_one_run(files: list[SliceFile | OrphanManifest]) -> bool:
    """Whether each rank has one slice, all with manifests of one run and one prefix."""
    runs = {(*identity_of(file.manifest), file.prefix, file.manifest is None) for file in files}
    return len(runs) == 1 and len({file.rank for file in files}) == len(files)


def _best_run(facts: Facts, step: Step, files: list[SliceFile | OrphanManifest]) -> Run | None:
    """Return the run of which a step's slices are taken, as a plan takes them; of orphans alone likewise."""
    if any(isinstance(file, SliceFile) for file in files):
        return next(iter(runs_of(facts, step)), None)
    gone = [_as_slice(file) for file in files if isinstance(file, OrphanManifest)]
    return next(iter(find_runs(gone, facts.older_runs, newest=False, lineage=facts.lineage)), None)


def _fits(file: SliceFile | OrphanManifest, manifest: Manifest) -> bool:
    """Whether a manifest is that of the slice beside it, and states digests of parameters."""
    named = (manifest.rank, manifest.step, manifest.file) == (file.rank, file.step, file.path.rpartition("/")[2])
    return named and len(manifest.digests.parameters) == len(manifest.parameters) > 0


def _as_slice(orphan: OrphanManifest) -> SliceFile:
    return SliceFile(orphan.rank, orphan.step, orphan.place, orphan.prefix, 0, 0, manifest=orphan.manifest)
