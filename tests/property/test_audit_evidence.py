"""A host takes its rank lists, strategy files and manifests with it, and an audit sees what they are worth."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.holders import steps_of_tree
from ms_recover.planning.audit.losses import Level, Losses
from ms_recover.verbs.audit import audit, losable
from ms_recover.verbs.session import Session
from tests.support.audits import delete, without
from tests.support.examples import examples
from tests.support.law_files import make
from tests.support.law_network import Tensor, plain_job, spread_job
from tests.support.law_scenes import Scene
from tests.support.scattered_evidence import ScatteredTree

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
TREES = examples(80)
PLANNED = 3
"""Hosts that are lost at once after which an audit asks a plan."""


CONTRADICTED = [576]
"""Where an older step was not read, and a parameter without layout is cut there: seeds of trees."""


@pytest.mark.parametrize("seed", CONTRADICTED)
def test_a_tree_of_which_an_audit_said_otherwise_once_is_audited_right(seed: int) -> None:
    assert check(ScatteredTree.of(seed))


@pytest.mark.parametrize("first", range(0, TREES, 20))
def test_the_loss_of_evidence_costs_by_audit_what_it_costs_a_plan(first: int) -> None:
    tried = sum(check(ScatteredTree.of(seed)) for seed in range(first, min(first + 20, TREES)))
    assert tried > 10


def check(tree: ScatteredTree) -> int:
    """Compare the audit of every loss of hosts with the plan after it, and return how many there were."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = Path(folder) / "tree"
        tree.make(root)
        try:
            inventory = api.scan(root)
            session = Session(inventory, tree.options)
            found = session.planned
        except MsRecoverError:
            return 0
        if not found.plan.recoverable:
            return 0
        level = Level.of_topology(Topology(("host",), (tree.hosts,), "the test"), 0)
        book = Losses(list(steps_of_tree(found.tree)), level, level, None, losable(found.tree, session.reader))
        places = range(len(level.domains))
        losses = [one for count in range(1, len(places)) for one in combinations(places, count)]
        for number, lost in enumerate(losses):
            ranks = [rank for place in lost for rank in level.ranks[place]]
            if number == tree.seed % len(losses):
                planned = step_without(root, ranks, tree.options)
            else:
                planned = step_of(without(inventory, ranks), tree.options)
            ours = book.loss(frozenset(lost))
            assert len(lost) > PLANNED or ours.step == planned, (tree, ranks, ours, planned)
            assert not tree.differs(found.plan.step, ours.step, planned), (tree, ranks, ours, planned)
    return len(losses)


def step_of(inventory: Inventory, options: PlanOptions) -> Step | None:
    try:
        return Session(inventory, options).planned.plan.step
    except MissingInputError:
        return None  # no slice is left


def step_without(root: Path, ranks: Iterable[int], options: PlanOptions) -> Step | None:
    """Return the step of a plan after the directories of some ranks are really deleted."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    delete(copy, ranks)
    try:
        return step_of(api.scan(copy), options)
    except MissingInputError:
        return None
    finally:
        shutil.rmtree(copy)


def fatal_ranks(scene: Scene, lists: Iterable[int], root: Path) -> set[int]:
    """Return the ranks whose loss leaves no step by audit, where some ranks alone have rank lists; a plan agrees."""
    make(scene, root)
    for rank in set(range(scene.job.size)).difference(lists):
        (root / f"ckpt_dir{rank}/group_info.pb").unlink()
    singles = audit(api.scan(root), scene.options, None).levels[0].singles
    for one in singles:
        assert one.step == step_without(root, one.ranks, scene.options)
    return {rank for one in singles if one.step is None for rank in one.ranks}


def test_the_rank_that_alone_has_a_rank_list_is_not_lost_where_one_replica_is_left(tmp_path: Path) -> None:
    """A stage holds the embedding without its layout: on the one rank that is left it may be a part of its own."""
    job = spread_job()
    scene = Scene(job=job, options=PlanOptions(world_size=job.size), faults=())
    assert fatal_ranks(scene, range(8), tmp_path / "every") == set()
    first = min(group[0] for group in job.groups.values() if job.stage(group[0]) == 1)
    assert first in fatal_ranks(scene, set(range(8)) - set(job.groups[first]) | {first}, tmp_path / "one")


def test_a_rank_list_alone_says_who_has_the_values_that_differ_between_lists(tmp_path: Path) -> None:
    own = Tensor(name="bn.moving_mean", shape=(4,), layout=None, stages=frozenset({0}), named=frozenset(), own=True)
    scene = Scene(job=plain_job(3, 1, extra=own), options=PlanOptions(world_size=3), faults=())
    assert fatal_ranks(scene, range(3), tmp_path / "every") == set()
    assert fatal_ranks(scene, {1}, tmp_path / "one") == {1}
