"""The trees that a training can be resumed from, as one rank sees them.

Slices of different numbers of ranks, or that are cut differently, never lie in one tree: those that a training was
resumed from are set aside as a whole below the root. Each such tree is judged for itself, by its own ranks and layouts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ms_recover import api
from ms_recover.errors import MissingInputError, MsRecoverError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.joint.union import unite
from ms_recover.model.contents import Contents, Reader
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.plan import RejectedStep
from ms_recover.model.reshard import ReshardOptions, ReshardPlan
from ms_recover.model.steps import Step
from ms_recover.planning.choice import Judged, judge_runs
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.reshard.step_plan import ReshardTask, plan_step, why_incomplete
from ms_recover.planning.reshard.target import Target
from ms_recover.planning.tree.candidates import Candidate, find_candidates
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.lineage import RunRecord, find_run_records
from ms_recover.planning.tree.runs import Run
from ms_recover.scanning.naming import read_file_name
from ms_recover.scanning.read import read_store
from ms_recover.scanning.served import inventory_of
from ms_recover.scanning.survey import survey_folder
from ms_recover.scanning.tree import Tree
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import Store
from ms_recover.training.deciding.agreement import Place
from ms_recover.training.other_world import aside_roots
from ms_recover.verbs.session import Session

_CUT_ANEW = ": cut them anew with recover-ckpt reshard"
_NOT_FOR_RESUME = (
    ", which its own resume loads: recover them with recover-ckpt apply, or name the folder of SliceCheckpoint"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class SliceTree:
    """Slices of one world.

    Parameters
    ----------
    inventory : Inventory
        What was scanned; paths are relative to its root, or to those of `stores`.
    in_place : bool
        They lie where the training saves, not in a tree that was set aside.
    stores : mapping of str to Store
        The stores of the slices and strategy files that do not lie below the root, by path.
    """

    inventory: Inventory
    in_place: bool = False
    stores: Mapping[str, Store] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Where it lies, for messages."""
        if any(one.path not in self.stores for one in self.inventory.slices):
            return self.inventory.root
        return ", ".join(dict.fromkeys(store.url for store in self.stores.values()))

    @property
    def names_runs(self) -> frozenset[tuple[str, int | None]]:
        """The runs that its manifests name."""
        return frozenset((one.run_id, one.started) for one in self.runs if one.run_id)

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The runs that saved its slices, also those that are set aside."""
        return find_run_records(self.inventory.slices, self.inventory.set_aside)

    def folders(self, counts: Callable[[int], bool]) -> set[str]:
        """Return the directories below the root with slices of ranks that count, also such as are set aside."""
        held = self.inventory
        places = [(one.rank, one.path) for one in held.slices] + [(one.rank, one.path) for one in held.set_aside]
        mine = [path for rank, path in places if counts(rank) and path not in self.stores]
        return {os.path.dirname(os.path.join(held.root, path)) for path in mine}

    def read(self, files: Sequence[SliceFile]) -> Contents:
        """Read slices and digest them."""
        found = read_store(LocalStore(self.inventory.root), [file for file in files if file.path not in self.stores])
        for store in dict.fromkeys(self.stores.values()):
            theirs = [file for file in files if self.stores.get(file.path) is store]
            found = found.merged(read_store(store, theirs)) if theirs else found
        return found


class OpenSource(NamedTuple):
    """The store of another tree, and whether another web server than recover-ckpt serve may be there."""

    store: Store
    any_server: bool = True


@dataclass(frozen=True, kw_only=True, eq=False)
class SeenTrees:
    """The trees that one rank sees."""

    place: SliceTree | None
    """That in which the training saves, with slices or without; None where it is missing."""
    missing: str = ""
    """Why it is missing."""
    trees: tuple[SliceTree, ...] = ()
    """Those with slices: the one in place first, then those that were set aside, the newest first."""

    @property
    def every(self) -> tuple[SliceTree, ...]:
        """Those with slices, and the one in place where it has none: slices that are set aside may lie there."""
        empty = self.place is not None and not self.place.inventory.slices
        return (self.place, *self.trees) if self.place is not None and empty else self.trees


def see_trees(root: str, scanning: ScanOptions, sources: Sequence[OpenSource] | None) -> SeenTrees:
    """Scan the tree in place, and where slices may be cut anew, with some `sources`, the others as well.

    What `sources` hold of the runs of a tree belongs to it; sources that share no run with any are one tree more.

    Raises
    ------
    MsRecoverError
        When a folder or a source cannot be read.
    """
    missing, instead = "", _NOT_FOR_RESUME if sources is None else _CUT_ANEW
    place: SliceTree | None = None
    try:
        place = SliceTree(inventory=_refusing_iterations(api.scan(root, scanning), instead), in_place=True)
    except MissingInputError as error:
        missing = str(error)
    trees = [place] if place is not None and place.inventory.slices else []
    if sources is not None:
        if trees:  # the files that are named are those of the slices in place, where there are some
            scanning = replace(scanning, group_info=(), strategy=())
        trees += _scan_aside(root, scanning)
        trees = _with_sources(root, trees, sources)
    return SeenTrees(place=place, missing=missing, trees=tuple(trees))


def _scan_aside(root: str, scanning: ScanOptions) -> Iterator[SliceTree]:
    for folder in aside_roots(root):
        try:
            inventory = _refusing_iterations(api.scan(folder, scanning), _CUT_ANEW)
        except MissingInputError:
            continue
        if inventory.slices:
            yield SliceTree(inventory=inventory)


def _refusing_iterations(inventory: Inventory, instead: str) -> Inventory:
    if inventory.iterations:
        raise UsageError(f"{inventory.root} holds iterations of MindFormers{instead}")
    return inventory


def _with_sources(root: str, trees: Sequence[SliceTree], sources: Sequence[OpenSource]) -> list[SliceTree]:
    held = [(one.store, inventory_of(one.store, any_server=one.any_server)) for one in sources]
    for _, inventory in held:
        _refusing_iterations(inventory, _CUT_ANEW)
    united, used = list(trees), set[int]()
    for number, tree in enumerate(trees):
        same = [index for index, (_, one) in enumerate(held) if SliceTree(inventory=one).names_runs & tree.names_runs]
        used.update(same)
        united[number] = _united(tree, [held[index] for index in same])
    rest = [one for index, one in enumerate(held) if index not in used and one[1].slices]
    if rest:
        united.append(_united(SliceTree(inventory=Inventory(root=os.path.abspath(root))), rest))
    return united


def _united(tree: SliceTree, others: Sequence[tuple[Store, Inventory]]) -> SliceTree:
    if not others:
        return tree
    union = unite(tree.inventory, [inventory for _, inventory in others])
    stores = {path: others[number][0] for path, number in union.holders.items()}
    return replace(tree, inventory=union.inventory, stores=stores)


def why_overlooked(root: str, seen: SeenTrees) -> str | None:
    """Return why there may be slices in place although the scan found none; None for a root that is empty of them."""
    inventory = seen.place.inventory if seen.place is not None else None
    if inventory is not None and inventory.slices:
        return None
    if inventory is not None and inventory.denied:
        _, note = inventory.denied[0]
        return f"{os.path.join(inventory.root, note.path)}: {note.reason}"
    if inventory is not None and inventory.orphans:
        return f"{inventory.root} holds manifests of slices that are gone, such as that of {inventory.orphans[0].path}"
    root = inventory.root if inventory is not None else root
    why = seen.missing or f"{root} holds no slice where the directories of ranks are"
    if not os.path.lexists(root):
        return None
    if not os.path.isdir(root) or not os.access(root, os.R_OK | os.X_OK):
        return why
    named = [
        path for path in survey_folder(Tree(LocalStore(root))).paths if _is_named_as_slice(os.path.join(root, path))
    ]
    return f"{why}; {named[0]} has the name of a slice" if named else None


def _is_named_as_slice(path: str) -> bool:
    named = read_file_name(os.path.basename(path))
    return (named is not None and not named.rest) or os.path.exists(path + MANIFEST_SUFFIX)


@dataclass(eq=False)
class TreeView:
    """A tree with what its slices show, read as far as was needed."""

    tree: SliceTree
    runs: tuple[RunRecord, ...]
    session: Session

    @classmethod
    def of(
        cls, tree: SliceTree, options: PlanOptions, runs: tuple[RunRecord, ...], read: Reader | None = None
    ) -> TreeView:
        """Judge a tree by the runs that all ranks see, by slices that `read` reads; errors as for `gather_facts`."""
        if not tree.inventory.slices:  # what a start left that saved nothing states no number of ranks
            options = replace(options, world_size=None)
        view = cls(tree, runs, Session(tree.inventory, options, read=read or tree.read, known_runs=runs))
        view.session.facts.every()
        return view

    @property
    def facts(self) -> Facts:
        """The facts about it, which has one part."""
        (facts,) = self.session.facts.every()
        return facts

    @property
    def whole(self) -> Comparison:
        """What its slices show about each other."""
        (compared,) = self.session.every_compared()
        return compared

    @property
    def ranks(self) -> int:
        """Number of ranks that saved it."""
        return self.facts.world.ranks

    def candidates(self, only: Step | None) -> Iterator[Candidate | RejectedStep]:
        """Yield the steps that may be resumed from, or that one alone, newest first, and those that are passed over."""
        return find_candidates(self.session.facts, only)

    def place(self, step: Step) -> Place:
        """Return the place of a step in the lineage."""
        return self.facts.times_of(step)[0].generation, step

    def compared(self, step: Step) -> list[Comparison]:
        """Compare the slices of a step; those without a manifest are read."""
        held = [one.file for one in self.facts.counted_at(step) if one.manifest is None and one.file.problem is None]
        self.session.read(held)
        return self.session.compared(step)

    def plan(self, step: Step, run: Run, target: Target | None) -> ReshardPlan:
        """Plan a step for a target, or without one for whole parameters; errors as for `plan_step`."""
        wanted = ReshardOptions(full=True) if target is None else ReshardOptions(strategy=target.source)
        return plan_step(self.compared(step), step, run, ReshardTask(target=target, options=wanted))

    def judge(self, candidate: Candidate) -> Judged[TreeView]:
        """Judge whether every region of every parameter of a step has a holder."""
        return judge_runs(candidate, self._judge)

    def _judge(self, step: Step, run: Run) -> Judged[TreeView]:
        try:
            plan = self.plan(step, run, None)
        except MsRecoverError as error:
            return Judged(step=step, run=run, value=self, why=str(error))
        return Judged(step=step, run=run, value=self, why=why_incomplete(plan), disputed=bool(plan.disagreements))
