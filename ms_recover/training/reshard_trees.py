"""The trees that a training on other ranks can be resumed from, as one rank reaches them.

Slices of different numbers of ranks, or that are cut differently, never lie in one tree: those that a training was
resumed from are set aside as a whole below the root. Each such tree is judged for itself, by its own ranks and layouts.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ms_recover import api
from ms_recover.errors import MissingInputError, MsRecoverError, UsageError
from ms_recover.joint.union import unite
from ms_recover.model.contents import Contents
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
from ms_recover.scanning.read import read_store
from ms_recover.scanning.served import inventory_of
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import Store
from ms_recover.training.other_world import aside_roots
from ms_recover.verbs.session import Session

_log = logging.getLogger(__name__)

Place = tuple[int, Step]
"""The place of a run in the lineage, and a step of it."""


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
        """The runs that saved its slices."""
        return find_run_records(self.inventory.slices, self.inventory.set_aside)

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


def find_trees(root: str, scanning: ScanOptions, sources: Sequence[OpenSource]) -> list[SliceTree]:
    """Return the trees with slices: the one in place first, then those that were set aside, the newest first.

    What `sources` hold of the runs of a tree belongs to it; sources that share no run with any are one tree more.

    Raises
    ------
    MsRecoverError
        When a folder or a source cannot be read.
    """
    in_place = _scanned(root, scanning, in_place=True)
    if in_place is not None:  # the files that are named are those of the slices in place, where there are some
        scanning = replace(scanning, group_info=(), strategy=())
    aside = [_scanned(one, scanning) for one in aside_roots(root)]
    trees = [one for one in (in_place, *aside) if one is not None]
    there = [(one.store, inventory_of(one.store, any_server=one.any_server)) for one in sources]
    for _, inventory in there:
        _refuse_iterations(inventory)
    used: set[int] = set()
    for number, tree in enumerate(trees):
        same = [index for index, (_, one) in enumerate(there) if _runs_of(one) & tree.names_runs]
        used.update(same)
        trees[number] = _united(tree, [there[index] for index in same])
    rest = [there[index] for index in range(len(there)) if index not in used]
    rest = [(store, inventory) for store, inventory in rest if inventory.slices]
    if rest:
        trees.append(_united(SliceTree(inventory=Inventory(root=os.path.abspath(root))), rest))
    return trees


def _scanned(root: str, scanning: ScanOptions, *, in_place: bool = False) -> SliceTree | None:
    try:
        inventory = api.scan(root, scanning)
    except MissingInputError:
        return None
    _refuse_iterations(inventory)
    return SliceTree(inventory=inventory, in_place=in_place) if inventory.slices else None


def _refuse_iterations(inventory: Inventory) -> None:
    if inventory.iterations:
        raise UsageError(f"{inventory.root} holds iterations of MindFormers: cut them anew with recover-ckpt reshard")


def _runs_of(inventory: Inventory) -> frozenset[tuple[str, int | None]]:
    return SliceTree(inventory=inventory).names_runs


def _united(tree: SliceTree, others: Sequence[tuple[Store, Inventory]]) -> SliceTree:
    if not others:
        return tree
    union = unite(tree.inventory, [inventory for _, inventory in others])
    stores = {path: others[number][0] for path, number in union.holders.items()}
    return replace(tree, inventory=union.inventory, stores=stores)


@dataclass(eq=False)
class JudgedTree:
    """A tree with what its slices show, read as far as was needed."""

    tree: SliceTree
    runs: tuple[RunRecord, ...]
    session: Session

    @classmethod
    def of(cls, tree: SliceTree, options: PlanOptions, runs: tuple[RunRecord, ...]) -> JudgedTree:
        """Judge a tree by the runs that all ranks see; errors as for `gather_facts`."""
        judged = cls(tree, runs, Session(tree.inventory, options, read=tree.read, known_runs=runs))
        judged.session.facts.every()
        return judged

    @property
    def facts(self) -> Facts:
        """The facts about it, which has one part."""
        (facts,) = self.session.facts.every()
        return facts

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

    def judge(self, candidate: Candidate) -> Judged[JudgedTree]:
        """Judge whether every region of every parameter of a step has a holder."""
        return judge_runs(candidate, self._judge)

    def _judge(self, step: Step, run: Run) -> Judged[JudgedTree]:
        try:
            plan = self.plan(step, run, None)
        except MsRecoverError as error:
            return Judged(step=step, run=run, value=self, why=str(error))
        return Judged(step=step, run=run, value=self, why=why_incomplete(plan), disputed=bool(plan.disagreements))

    def fingerprint(self, run: Run) -> int:
        """Return a number that differs between runs and numbers of ranks."""
        text = f"{run.run_id}@{run.started}/{self.ranks}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big", signed=True)
