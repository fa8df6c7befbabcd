"""Facts about a tree, each computed once: the first stage of a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Inventory, Note, OrphanManifest, SliceFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.slices import ParameterList
from ms_recover.model.steps import Step
from ms_recover.planning.chosen_run import inventory_of_run, lists_of_others, naming_sizes
from ms_recover.planning.experiments import TakenExperiments, other_experiments, take_experiments
from ms_recover.planning.lineage import (
    Lineage,
    RunRecord,
    find_lineage,
    find_run_records,
    merge_run_records,
)
from ms_recover.planning.positions import Positions, Saved, find_positions, newest_first, saved_at
from ms_recover.planning.prefixes import Experiments, find_experiments
from ms_recover.planning.redundancy.claims import settle_claims
from ms_recover.planning.redundancy.groups import GroupMap
from ms_recover.planning.redundancy.stages import Stages, find_stages
from ms_recover.planning.redundancy.tolerance import Tolerance
from ms_recover.planning.redundancy.word import find_word
from ms_recover.planning.resume_records import NamedRun, find_named_run, why_unhealthy
from ms_recover.planning.run_records import choose_run
from ms_recover.planning.runs import OlderRuns, Run, find_older_runs, find_runs, of_last_run
from ms_recover.planning.slice_facts import SliceFacts as SliceFacts  # noqa: PLC0414 (a part of this interface)
from ms_recover.planning.slice_facts import find_slice_facts
from ms_recover.planning.world_size import (
    WorldSize,
    check_rank,
    find_world_size,
    inside_world,
    outside_world,
    with_word,
)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a tree, before anything is judged.

    Parameters
    ----------
    inventory : Inventory
        The scan.
    options : PlanOptions
        The operator's decisions.
    world : WorldSize
        Number of ranks, and its ground.
    groups : GroupMap
        The ranks that hold the same slice by rank lists and the operator's word.
    stages : Stages
        Pipeline stages and the layouts of their parameters.
    steps : mapping of Step to mapping of int to tuple of SliceFacts
        The slices by step and rank, sorted by path.
    ranks : frozenset of int
        Ranks that have a slice or a list.
    denied : mapping of int to Note
        Ranks whose directory cannot be read for want of permission.
    experiments : TakenExperiments
        The experiments of which steps are considered.
    older_runs : OlderRuns
        Prefixes that the present run did not write.
    lineage : Lineage or None
        The run that was started last, or was chosen, and those that it goes on from; None where nothing states it.
    tolerance : Tolerance
        Parameters that may differ between replicas.
    committing : frozenset of str
        Prefixes of slices that training saved with manifests, so that one without is not committed.
    notes : tuple of Note
        Evidence that was not used.
    trials : tuple of SliceFile
        The slices that show whether rank lists or layouts are right, where these contradict each other.
    """

    inventory: Inventory
    options: PlanOptions
    world: WorldSize
    groups: GroupMap
    stages: Stages
    steps: Mapping[Step, Mapping[int, tuple[SliceFacts, ...]]]
    ranks: frozenset[int]
    denied: Mapping[int, Note]
    experiments: TakenExperiments
    older_runs: OlderRuns
    lineage: Lineage | None
    tolerance: Tolerance
    committing: frozenset[str]
    notes: tuple[Note, ...] = ()
    trials: tuple[SliceFile, ...] = ()

    @property
    def lost(self) -> frozenset[int]:
        """Ranks declared lost; their slices are no evidence."""
        return self.options.lost

    def at(self, step: Step, rank: int) -> tuple[SliceFacts, ...]:
        """Return the slices of a rank at a step, whether it is declared lost or not."""
        return self.steps.get(step, {}).get(rank, ())

    @property
    def names(self) -> Experiments:
        """The experiments of the slices."""
        return self.experiments.names

    @cached_property
    def other_experiments(self) -> Mapping[str, Step]:
        """The experiments that are passed over, each with its newest step."""
        return other_experiments(self.experiments, self.lineage, (one.file for one in self.counted))

    @property
    def text_of_others(self) -> str | None:
        """The warning that names the other experiments, where nothing but their times chose one."""
        return self.experiments.text_of(self.other_experiments)

    def is_of_others(self, step: Step, saved: Saved | None = None) -> bool:
        """Whether the slices of a step, or those saved at one time, are of other experiments alone."""
        files = self.files_at(step, saved)
        return bool(files) and not self.experiments.own(files) and not (self.lineage and self.generation(step))

    @cached_property
    def counted(self) -> tuple[SliceFacts, ...]:
        """Every slice of a rank that is not lost."""
        return tuple(one for step in self.steps for one in self.counted_at(step))

    @cached_property
    def positions(self) -> Positions:
        """The steps of the training that were trained when slices were saved, as far as anything states them."""
        return find_positions([one.file for one in self.counted])

    @cached_property
    def named_run(self) -> NamedRun | None:
        """The run that most ``meta.json`` of MindFormers name."""
        return find_named_run(self.inventory.meta_files, self.positions)

    @cached_property
    def orphans(self) -> Mapping[tuple[int, Step], Sequence[OrphanManifest]]:
        """The manifests whose slices are gone, by rank and step."""
        found: dict[tuple[int, Step], list[OrphanManifest]] = defaultdict(list)
        for orphan in self.inventory.orphans:
            found[orphan.rank, orphan.step].append(orphan)
        return dict(found)

    def expected(self, step: Step, rank: int) -> ParameterList | None:
        """Return what a rank's slice of a step must list, None when nothing states it."""
        part = self.inventory.part
        return part.expected.get(step, {}).get(rank) if part is not None else None

    def idle(self, step: Step) -> frozenset[int]:
        """Return the ranks that have no slice of a step, because they were given no shard of this part."""
        part = self.inventory.part
        stated = part.expected.get(step) if part is not None else None
        return frozenset(rank for rank in range(self.world.ranks) if rank not in stated) if stated else frozenset()

    def is_uncommitted(self, one: SliceFacts) -> bool:
        """Whether a slice has no manifest although training saved others of its prefix with one."""
        return one.manifest is None and one.file.prefix in self.committing

    def counted_at(self, step: Step) -> tuple[SliceFacts, ...]:
        """Return the slices of a step, without those of ranks declared lost, by rank and path."""
        return tuple(one for rank, held in self.steps.get(step, {}).items() if rank not in self.lost for one in held)

    @cached_property
    def saved(self) -> tuple[Saved, ...]:
        """The slices of every step, by the time of the training at which they were saved, newest first."""
        return newest_first(
            one
            for step in self.inventory.steps
            for one in saved_at(step, self._times(step), self._trained, self.generation(step), self.names)
        )

    def _times(self, step: Step) -> list[list[SliceFile]]:
        """Return the slices of a step by that time; in a lineage one run alone counts at each step."""
        files = [one.file for one in self.counted_at(step)]
        if self.lineage is not None or not self.positions.known:
            return [files]
        times = self.positions.apart(own := self.older_runs.of_present(files))
        if len(times) < 2:
            return [files]
        present = {file.path for file in own}
        others = [file for file in files if file.path not in present]
        return [[*held, *others] for held in times]

    def _trained(self, files: list[SliceFile]) -> int | None:
        return self.positions.of_all(files if self.lineage is None else of_last_run(self.lineage, files))

    def generation(self, step: Step) -> int:
        """Return the place in the lineage of the last run that has slices of a step, 0 without one."""
        if self.lineage is None:
            return 0
        orders = (self.lineage.order(one.file) for one in self.counted_at(step))
        return max((order[0] for order in orders if order is not None), default=0)

    def files_at(self, step: Step, saved: Saved | None = None) -> list[SliceFile]:
        """Return the slices of a step, or those saved at one time, without those of ranks declared lost."""
        files = [one.file for one in self.counted_at(step)]
        return files if saved is None or saved.paths is None else [file for file in files if file.path in saved.paths]

    def why_older(self, step: Step, saved: Saved | None = None) -> str | None:
        """Return why the slices of a step, or those saved at one time, are not of the present run; else None."""
        files = self.files_at(step, saved)
        own = self.experiments.own(files)
        if self.lineage is not None and files:
            if self.generation(step):
                return None
            return self.lineage.why_outside(own) if own else self.experiments.why_other(files)
        if files and not own:
            return self.experiments.why_other(files)
        files = own
        named = self.named_run if self.older_runs.chosen is None else None
        why = self.older_runs.why_older(files)
        if why is not None or named is None:
            return why
        return named.why_abandoned(files, step, self.positions.of_all(files))

    def why_unhealthy(self, step: Step, saved: Saved | None = None) -> str | None:
        """Return why a step is not to be resumed from although its slices may be sound; None when nothing says so."""
        return why_unhealthy(self.files_at(step, saved), self.inventory.unhealthy, step)

    def runs(self, step: Step, saved: Saved | None = None) -> tuple[Run, ...]:
        """Return the runs that saved slices of a step, the best first; where one is in the lineage, that one alone.

        Of those saved at all times of the training, the newest first, or at the one that is given.
        """
        return self._find_runs(step, self.lineage, saved)

    def every_run(self, step: Step) -> tuple[Run, ...]:
        """Return the same runs, and behind them those that have no part in the lineage."""
        return tuple(dict.fromkeys((*self.runs(step), *self._find_runs(step, None))))

    def _find_runs(self, step: Step, lineage: Lineage | None, saved: Saved | None = None) -> tuple[Run, ...]:
        older, newest, named = self.older_runs, self.options.newest, self.older_runs.chosen
        if named is None and self.named_run is not None and not newest:
            named = self.named_run.prefix
        times = self._times(step)
        runs: list[Run] = []
        for files in times:
            own = frozenset(file.path for file in files) if len(times) > 1 else None
            if saved is not None and saved.paths not in (None, own):
                continue
            trained = self._trained(files)
            apart = frozenset() if own is None else frozenset(file.path for held in times for file in held) - own
            found = find_runs(files, older, newest=newest, named=named, lineage=lineage)
            runs += [replace(run, trained=trained, apart=apart) for run in found]
        return tuple(runs)

    def saved_as(self, step: Step, run: Run) -> Saved:
        """Return the slices of a step that were saved when a run of it did."""
        held = (one for one in self.saved if one.step == step)
        return next(one for one in held if one.paths is None or one.paths.isdisjoint(run.apart))


def gather_facts(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    contents: Contents = NOTHING_READ,
    known_runs: Sequence[RunRecord] = (),
) -> Facts:
    """Gather everything that steps are judged by; slices of lost ranks are no evidence.

    `known_runs` are known from elsewhere, beside those whose manifests lie in the tree.

    Raises
    ------
    UsageError
        When a lost rank, or one that the operator groups, is not in the world, the world size cannot be, or there is no
        run of the chosen name.
    ContradictionError
        When rank lists contradict each other, or anything the operator's word.
    """
    given = (*options.experiments, *filter(None, [options.run]))
    names = find_experiments((*inventory.slices, *inventory.orphans), given)
    held = [file for file in inventory.slices if file.rank not in options.lost]
    known = merge_run_records((*find_run_records(held, inventory.set_aside, names), *known_runs))
    taken = take_experiments(known, held, names, options)
    by_run = options.run is not None and not taken.taken
    chosen = find_lineage(known, options.run, names=names) if by_run else None
    own = inventory_of_run(taken.inventory_of(inventory), chosen)
    with naming_sizes(inventory):
        world = with_word(find_world_size(own, options.world_size), options, own)
    for rank in sorted(options.lost):
        check_rank(rank, world, "declared lost")
    inside = [file for file in inventory.slices if file.rank < world.ranks]
    evidence = [file for file in own.slices if file.rank < world.ranks]
    listing = [file for file in inventory.group_files if file.path not in world.rejected_lists]
    strategies = sorted(inventory.strategy_files, key=lambda file: file.path)
    named: dict[int, set[str]] = defaultdict(set)
    for file in evidence:
        if file.manifest is not None and file.problem is None and not file.manifest.recovered:
            named[file.rank].update(filter(None, [file.manifest.strategy_digest]))
    inside_lists = [inside_world(file, world) for file in listing if (file.rank or 0) < world.ranks]
    of_others = lists_of_others(inventory, inside_lists, chosen)
    with naming_sizes(inventory):
        claims = settle_claims(
            [file for file in inside_lists if file.path not in of_others],
            evidence,
            find_stages(strategies, world.ranks, named),
            find_word(options, world.ranks),
            contents,
        )
    steps: dict[Step, dict[int, list[SliceFacts]]] = defaultdict(lambda: defaultdict(list))
    for step in inventory.part.steps if inventory.part is not None else ():
        steps[step].clear()  # also one without any slice of it
    tolerance = Tolerance.with_more(options.tolerate)
    inside.sort(key=lambda file: (file.rank, file.step.epoch, file.step.step, file.path))
    for one in find_slice_facts(inside, inventory, world, claims.groups, contents, tolerance, claims.stages.families):
        steps[one.file.step][one.rank].append(one)
    counted = [file for file in inside if file.rank not in options.lost]
    records = known
    if len(counted) != len(held):
        records = merge_run_records((*find_run_records(counted, inventory.set_aside, names), *known_runs))
    nameless = options.run is not None and by_run and not choose_run(records, options.run).run_id
    rejected = world.rejected_lists | of_others | claims.rejected_lists
    notes = [Note(path, f"{why}; it is not used") for path, why in rejected.items()]
    notes += outside_world(inventory, world)
    return Facts(
        inventory=inventory,
        options=options,
        world=world,
        groups=claims.groups,
        stages=claims.stages,
        steps={step: {rank: tuple(held) for rank, held in ranks.items()} for step, ranks in steps.items()},
        ranks=frozenset(inventory.ranks),
        denied=dict(inventory.denied),
        experiments=taken,
        older_runs=find_older_runs(taken.own(counted), options.run if nameless else None, names),
        lineage=find_lineage(records, options.run, taken.taken, names),
        tolerance=tolerance,
        committing=frozenset(
            file.prefix for file in counted if file.manifest and file.manifest.provenance.kind == "saved"
        ),
        notes=tuple(notes),
        trials=claims.trials,
    )
