"""The holders of blocks alone: what they call fatal is what a plan cannot do without, in trees that are made by hand.

Every loss of up to three ranks of each tree is planned. An audit of few ranks may ask the plan itself; this law is
about what it says where it asks nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from random import Random

import pytest

from ms_recover.errors import MsRecoverError
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.audit.families import FamilyIndex, fatal_in_all
from ms_recover.planning.audit.holders import steps_of_tree
from ms_recover.planning.choice import choose_step
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.cuts import cell_of
from tests.support.examples import examples
from tests.support.inventories import OLDER, STEP, slice_file, tree

SIZES = ((2, 2, 1), (2, 2, 2), (4, 1, 1), (1, 4, 1), (1, 2, 2), (2, 1, 2), (4, 2, 1), (2, 4, 1), (3, 1, 1), (4, 1, 1))
"""Data-parallel, tensor-parallel and pipeline-parallel sizes."""
TREES = examples(240)
MOST_LOST = 3


@dataclass(frozen=True)
class Job:
    """How the parameters of a job are cut.

    Parameters
    ----------
    devices, ranks : int
        Ranks of a stage, and all.
    layouts : mapping of str to Layout
        Those that strategy files state; other parameters are the same on a whole stage, or each rank list's own.
    own : frozenset of str
        Parameters without layout that are each rank list's own.
    """

    devices: int
    ranks: int
    layouts: Mapping[str, Layout]
    own: frozenset[str]

    @classmethod
    def draw(cls, source: Random) -> Job:
        """Return a random one."""
        data, tensor, stages = source.choice(SIZES)
        matrix = (data, tensor)
        layouts = [Layout("w", matrix, ((0,),))]
        if source.random() < 0.6:
            shards = data if data > 1 and source.random() < 0.6 else 0
            rows = (0,) if source.random() < 0.5 else ()
            layouts.append(Layout("v", matrix, (rows,), opt_shard_step=tensor if shards else 0, opt_shard_size=shards))
        if source.random() < 0.5:
            layouts.append(Layout("norm", matrix, ((),)))
        own = {"v"} | ({"local"} if source.random() < 0.5 else set())
        return cls(data * tensor, data * tensor * stages, {one.parameter: one for one in layouts}, frozenset(own))

    def part(self, name: str, rank: int) -> object:
        """Return what ranks of a stage have in common that hold the same of a parameter."""
        if name in self.layouts:
            return cell_of(self.layouts[name], rank % self.devices).index
        return self.group(rank) if name in self.own else ()

    def group(self, rank: int) -> tuple[int, ...]:
        """Return the ranks that hold the same slice as a rank."""
        first = rank - rank % self.devices
        alike = [tuple(cell_of(one, place) for one in self.layouts.values()) for place in range(self.devices)]
        return tuple(first + place for place in range(self.devices) if alike[place] == alike[rank % self.devices])

    def contents(self, rank: int, name: str) -> str:
        """Return the digest of what a rank holds of a parameter."""
        return "step" if name == "step" else f"{name} {rank // self.devices} {self.part(name, rank)}"


def some(source: Random, ranks: int) -> list[int]:
    """Return the ranks whose directory has a file: all, some or none."""
    chance = source.choice((1.0, 1.0, 0.4, 0.0, 0.0))
    return [rank for rank in range(ranks) if source.random() < chance]


def random_tree(seed: int) -> tuple[Inventory, Contents, PlanOptions]:
    """Return a tree of slices, rank lists and strategy files, some of which are lost, and what is known of contents."""
    source = Random(seed)
    job = Job.draw(source)
    sizes = {"w": (4,), "v": (4,), "norm": (3,), "step": (), **({"local": (2,)} if source.random() < 0.5 else {})}
    listed = tuple(Parameter(name, "Int8", shape, sum(shape) or 1) for name, shape in sizes.items())
    missing = source.sample(range(job.ranks), source.choice((0, 0, 0, 1, 2)))
    slices, known = [], {}
    for step in (STEP,) if source.random() < 0.7 else (STEP, OLDER):
        for rank in range(job.ranks):
            if rank not in missing or step != STEP:
                file = replace(slice_file(rank, step), parameters=listed)
                held = tuple(f"{step} {job.contents(rank, one.name)}" for one in listed)
                known[file.path] = Digests(" ".join(held), held)
                slices.append(file)
    lists = {rank: job.group(rank) for rank in some(source, job.ranks)}
    files = tuple(
        StrategyFile(
            rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((stage,), 1, tuple(job.layouts.values())), str(stage)
        )
        for rank in some(source, job.ranks)
        for stage in (rank // job.devices,)
    )
    inventory = replace(tree(slices, lists, ranks=range(job.ranks)), strategy_files=files)
    return inventory, Contents(known if source.random() < 0.8 else {}), PlanOptions(world_size=job.ranks)


def recovers(facts: TreeFacts) -> bool:
    try:
        return choose_step(Parts(facts)).found
    except MsRecoverError:
        return False


@pytest.mark.parametrize("first", range(0, TREES, 20))
def test_a_loss_is_fatal_by_the_holders_exactly_when_a_plan_fails_after_it(first: int) -> None:
    tried = 0
    for seed in range(first, min(first + 20, TREES)):
        inventory, contents, options = random_tree(seed)
        facts = TreeFacts(inventory, options, contents)
        if not recovers(facts):
            continue
        fatal = FamilyIndex(fatal_in_all([held.family for held in steps_of_tree(Parts(facts))]))
        ranks = range(options.world_size or 0)
        for lost in (frozenset(one) for count in range(1, MOST_LOST + 1) for one in combinations(ranks, count)):
            without, rest = facts.without(lost)
            left = TreeFacts(without, rest, contents.of(without.slices))
            assert (fatal.find(lost) is not None) == (not recovers(left)), (seed, sorted(lost))
            tried += 1
    assert tried > 100
