"""Facts about a tree and each of its slices, each computed once: the first stage of a plan."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from ms_recover.file_names import WeightKind
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.grouped import grouped
from ms_recover.model.inventory import GroupFile, Inventory, Note, OrphanManifest, SliceFile
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.slices import ParameterList
from ms_recover.model.steps import Step
from ms_recover.planning.claims.groups import GroupMap
from ms_recover.planning.claims.manifest_check import check_contents, check_listed, check_manifest, later_groups
from ms_recover.planning.claims.seen_local import NOTHING_SEEN, Member, SeenLocal, find_seen_local
from ms_recover.planning.claims.settle_claims import Claims, settle_claims
from ms_recover.planning.claims.stages import Stages, find_stages
from ms_recover.planning.claims.tolerance import Tolerance
from ms_recover.planning.claims.word import find_word
from ms_recover.planning.tree.experiments import TakenExperiments, take_experiments
from ms_recover.planning.tree.lineage import (
    Lineage,
    RunRecord,
    choose_run,
    find_lineage,
    find_run_records,
    inventory_of_run,
    lists_of_others,
    merge_run_records,
    naming_sizes,
)
from ms_recover.planning.tree.positions import Positions, Saved, find_positions, find_times, newest_first
from ms_recover.planning.tree.prefixes import Experiments, find_experiments
from ms_recover.planning.tree.resume_records import NamedRun, find_named_run
from ms_recover.planning.tree.runs import OlderRuns, find_older_runs
from ms_recover.planning.tree.world_size import (
    WorldSize,
    check_rank,
    find_world_size,
    inside_world,
    outside_world,
    with_word,
)

NAN_EVERYWHERE = "every floating-point value is NaN"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SliceFacts:
    """One slice and the evidence about it."""

    file: SliceFile
    path: str
    listed: ParameterList
    """Its parameters; equal lists are mostly one object."""
    group: tuple[int, ...]
    """The ranks that hold the same slice by the rank lists or the operator's word, its own among them."""
    claimed: bool
    """The operator's word alone groups them."""
    digests: Digests | None
    """Of its contents: as they were read, else as its manifest states them. None when unknown, and for encrypted
    slices, whose contents cannot be compared because each encryption draws its own initial value.
    """
    was_read: bool
    """The digests are those of the bytes on the disk."""
    manifest_problem: str | None
    """The mismatch of its manifest with its place, name and header, or of its header with what it must list."""
    content_problem: str | None
    """The mismatch of its contents with its manifest, or the reason why they could not be read."""
    failing: bool
    """The device failed to give it: its bytes need not be wrong."""
    expected: ParameterList | None
    """What it must list by metadata that most of the files agree with; None when nothing states it."""
    state_problem: str | None
    is_nan: bool
    """It was read, and every floating-point value in it is NaN."""
    seen_local: SeenLocal
    """The rank-local parameters of its run and group that manifests show, whether or not they record them."""

    @property
    def rank(self) -> int:
        """Rank."""
        return self.file.rank

    @property
    def manifest(self) -> Manifest | None:
        """Its manifest."""
        return self.file.manifest

    @property
    def contents(self) -> Digests:
        """Its digests, which must be known."""
        assert self.digests is not None
        return self.digests

    @property
    def problem(self) -> str | None:
        """What is wrong with it by itself: its header, its manifest's mismatch with its place, or its contents."""
        return self.file.problem or self.manifest_problem or self.content_problem

    def digest_of(self, name: str) -> str | None:
        """Return the digest of a parameter's contents, None when it is not known."""
        place = self.listed.index.get(name)
        if self.digests is None or not self.digests.parameters or place is None:
            return None
        return self.digests.parameters[place]

    @property
    def proven(self) -> bool:
        """Whether its manifest is a verdict: its digests were right when they were written."""
        return self.file.manifest is not None and self.file.manifest.provenance.proven

    @property
    def saved(self) -> bool:
        """Whether training saved its manifest, which is no damage then where other slices differ."""
        return self.file.manifest is not None and self.file.manifest.provenance.kind == "saved"

    @property
    def recovered(self) -> bool:
        """Whether its manifest says that it was made from others: a copy is no witness for its source."""
        return self.file.manifest is not None and self.file.manifest.recovered

    def has_bytes_of(self, other: SliceFacts) -> bool:
        """Whether it is known to hold the same bytes as another slice."""
        return self.digests is not None and other.digests is not None and self.digests.file == other.digests.file

    @property
    def rank_local(self) -> frozenset[str]:
        """The parameters that differed among the ranks of its group when it was saved, by proven manifests."""
        return self.recorded_local | self.seen_local.names

    @property
    def recorded_local(self) -> frozenset[str]:
        """Those that its own manifest records, where it is proven."""
        manifest = self.file.manifest
        if manifest is None or manifest.training is None or not manifest.provenance.proven:
            return frozenset()
        return frozenset(manifest.training.rank_local)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a tree, before anything is judged."""

    inventory: Inventory
    options: PlanOptions
    world: WorldSize
    groups: GroupMap
    stages: Stages
    steps: Mapping[Step, Mapping[int, tuple[SliceFacts, ...]]]
    """The slices by step and rank, sorted by path."""
    times: Mapping[Step, tuple[Saved, ...]]
    """The times of the training at which the slices of each step were saved, the newest first."""
    saved: tuple[Saved, ...]
    """Those of all steps, the newest first."""
    ranks: frozenset[int]
    """Ranks that have a slice or a list."""
    denied: Mapping[int, Note]
    """Ranks whose directory cannot be read for want of permission."""
    orphans: Mapping[tuple[int, Step], Sequence[OrphanManifest]]
    """The manifests whose slices are gone, by rank and step."""
    experiments: TakenExperiments
    """The experiments of which steps are considered."""
    older_runs: OlderRuns
    """Prefixes that the present run did not write."""
    named_run: NamedRun | None
    """The run that most ``meta.json`` of MindFormers name."""
    lineage: Lineage | None
    """The run that was started last, or was chosen, and those that it goes on from; None where nothing states it."""
    positions: Positions
    """The steps of the training that were trained when slices were saved, as far as anything states them."""
    tolerance: Tolerance
    committing: frozenset[str]
    """Prefixes of slices that training saved with manifests, so that one without is not committed."""
    notes: tuple[Note, ...] = ()
    """Evidence that was not used."""
    trials: tuple[SliceFile, ...] = ()
    """The slices that show whether rank lists or layouts are right, where these contradict each other."""

    @property
    def lost(self) -> frozenset[int]:
        """Ranks declared lost; their slices are no evidence."""
        return self.options.lost

    @property
    def names(self) -> Experiments:
        """The experiments of the slices."""
        return self.experiments.names

    @property
    def kind(self) -> WeightKind | None:
        """The kind of files in this part of the tree; None where a slice is one file."""
        return self.inventory.part.kind

    def at(self, step: Step, rank: int) -> tuple[SliceFacts, ...]:
        """Return the slices of a rank at a step, whether it is declared lost or not."""
        return self.steps.get(step, {}).get(rank, ())

    @cached_property
    def counted(self) -> tuple[SliceFacts, ...]:
        """Every slice of a rank that is not lost."""
        return tuple(one for step in self.steps for one in self.counted_at(step))

    def counted_at(self, step: Step) -> tuple[SliceFacts, ...]:
        """Return the slices of a step, without those of ranks declared lost, by rank and path."""
        return tuple(one for rank, held in self.steps.get(step, {}).items() if rank not in self.lost for one in held)

    def files_at(self, step: Step, saved: Saved | None = None) -> list[SliceFile]:
        """Return the slices of a step, or those saved at one time, without those of ranks declared lost."""
        files = [one.file for one in self.counted_at(step)]
        return files if saved is None or saved.paths is None else [file for file in files if file.path in saved.paths]

    def times_of(self, step: Step) -> tuple[Saved, ...]:
        """Return the times at which slices of a step were saved, the newest first; at least one."""
        return self.times.get(step) or (Saved(step=step),)

    def expected(self, step: Step, rank: int) -> ParameterList | None:
        """Return what a rank's slice of a step must list, None when nothing states it."""
        return self.inventory.part.expected.get(step, {}).get(rank)

    def idle(self, step: Step) -> frozenset[int]:
        """Return the ranks that have no slice of a step, because they were given no shard of this part."""
        stated = self.inventory.part.expected.get(step)
        return frozenset(range(self.world.ranks)).difference(stated) if stated else frozenset()


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
    # The run first: slices of other runs and experiments do not show how many ranks there are, nor who holds the same.
    given = (*options.experiments, *filter(None, [options.run]))
    names = find_experiments((*inventory.slices, *inventory.orphans), given)
    not_lost = [file for file in inventory.slices if file.rank not in options.lost]
    known = merge_run_records((*find_run_records(not_lost, inventory.set_aside, names), *known_runs))
    taken = take_experiments(known, not_lost, names, options)
    run = options.run if not taken.taken else None  # else an experiment was named
    chosen = find_lineage(known, run, names=names) if run is not None else None
    own = inventory_of_run(taken.inventory_of(inventory), chosen)
    with naming_sizes(inventory):
        world = with_word(find_world_size(own, options.world_size), options, own)
    for rank in sorted(options.lost):
        check_rank(rank, world, "declared lost")
    lists = [file for file in inventory.group_files if file.path not in world.rejected_lists]
    lists = [inside_world(file, world) for file in lists if (file.rank or 0) < world.ranks]
    of_others = lists_of_others(inventory, lists, chosen)
    lists = [file for file in lists if file.path not in of_others]
    with naming_sizes(inventory):
        claims = _settle(lists, own, world, options, contents)
    # Then each slice of the world, by rank and path, with the evidence about it.
    steps: dict[Step, dict[int, list[SliceFacts]]] = defaultdict(lambda: defaultdict(list))
    for step in inventory.part.steps:
        steps[step].clear()  # also one without any slice of it
    inside = [file for file in inventory.slices if file.rank < world.ranks]
    inside.sort(key=lambda file: (file.rank, file.step.epoch, file.step.step, file.path))
    tolerance = Tolerance.with_more(options.tolerate)
    for slice_ in find_slice_facts(inside, inventory, world, claims, contents, tolerance):
        steps[slice_.file.step][slice_.rank].append(slice_)
    # Last when each was saved: by the runs of the world alone, which are others where slices lie beyond it.
    counted = [file for file in inside if file.rank not in options.lost]
    records = known
    if len(counted) != len(not_lost):
        records = merge_run_records((*find_run_records(counted, inventory.set_aside, names), *known_runs))
    nameless = run is not None and not choose_run(records, run).run_id
    older_runs = find_older_runs(taken.own(counted), run if nameless else None, names)
    lineage = find_lineage(records, options.run, taken.taken, names)
    positions = find_positions(counted)
    files = grouped(counted, lambda file: file.step)
    times = {step: find_times(step, files.get(step, []), older_runs, lineage, positions) for step in inventory.steps}
    orphans = grouped(inventory.orphans, lambda orphan: (orphan.rank, orphan.step))
    rejected = world.rejected_lists | of_others | claims.rejected_lists
    notes = [Note(path, f"{why}; it is not used") for path, why in rejected.items()]
    return Facts(
        inventory=inventory,
        options=options,
        world=world,
        groups=claims.groups,
        stages=claims.stages,
        steps={step: {rank: tuple(slices) for rank, slices in ranks.items()} for step, ranks in steps.items()},
        times=times,
        saved=newest_first(chain.from_iterable(times.values())),
        ranks=frozenset(inventory.ranks),
        denied=dict(inventory.denied),
        orphans=orphans,
        experiments=taken,
        older_runs=older_runs,
        named_run=find_named_run(inventory.meta_files, positions),
        lineage=lineage,
        positions=positions,
        tolerance=tolerance,
        committing=frozenset(
            file.prefix for file in counted if file.manifest and file.manifest.provenance.kind == "saved"
        ),
        notes=(*notes, *outside_world(inventory, world)),
        trials=claims.trials,
    )


def _settle(
    lists: Sequence[GroupFile], own: Inventory, world: WorldSize, options: PlanOptions, contents: Contents
) -> Claims:
    """Return who holds the same in the world, by the slices of the run and the strategy files that it names."""
    evidence = [file for file in own.slices if file.rank < world.ranks]
    named: dict[int, set[str]] = defaultdict(set)
    for file in evidence:
        if file.manifest is not None and file.problem is None and not file.manifest.recovered:
            named[file.rank].update(filter(None, [file.manifest.strategy_digest]))
    strategies = sorted(own.strategy_files, key=lambda file: file.path)
    stages = find_stages(strategies, world.ranks, named)
    return settle_claims(lists, evidence, stages, find_word(options, world.ranks), contents)


def find_slice_facts(
    files: Iterable[SliceFile],
    inventory: Inventory,
    world: WorldSize,
    claims: Claims,
    contents: Contents,
    tolerance: Tolerance,
) -> Iterator[SliceFacts]:
    """Yield the facts about slices that lie in the world."""
    # One object for all lists that are equal: comparing names takes as long as reading them.
    shared: dict[ParameterList, ParameterList] = {}
    files = list(files)
    groups, seen = claims.groups, find_seen_local(files)
    later = later_groups(files, groups.members.values(), tolerance, claims.stages.families)
    for file in files:
        expected = inventory.part.expected.get(file.step, {}).get(file.rank)
        listed = file.parameters if isinstance(file.parameters, ParameterList) else ParameterList(file.parameters)
        group, path, claimed = groups.of(file.rank), file.path, file.rank in groups.claimed
        read = contents.digests.get(path)
        whose = group if inventory.part.kind is None else None
        problem = check_manifest(file, world.ranks, whose, claimed=claimed, later=group in later)
        yield SliceFacts(
            file=file,
            path=path,
            listed=shared.setdefault(listed, listed),
            group=group,
            claimed=claimed,
            digests=None if file.encryption is not None else read or _stated_digests(file, problem),
            was_read=read is not None,
            manifest_problem=problem or check_listed(file, expected),
            content_problem=check_contents(file, contents),
            failing=file.failing or path in contents.failing,
            expected=expected,
            state_problem=contents.states.get(path),
            is_nan=path in contents.nan,
            seen_local=_seen(file, seen),
        )


def _stated_digests(file: SliceFile, problem: str | None) -> Digests | None:
    """Return the digests in the manifest of a slice; None where the manifest lists other parameters than the slice."""
    manifest = file.manifest
    if manifest is None or (problem is not None and manifest.parameters != file.parameters):
        return None
    return manifest.digests


def _seen(file: SliceFile, seen: Mapping[Member, SeenLocal]) -> SeenLocal:
    manifest = file.manifest
    if manifest is None or not manifest.provenance.proven:
        return NOTHING_SEEN
    return seen.get((manifest.run_id, manifest.group), NOTHING_SEEN)
