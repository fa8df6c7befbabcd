"""An audit against the oracle: delete the slices of the hosts that are lost, and plan.

With MS_RECOVER_EXAMPLES so many random trees are tried, each with every loss of up to three hosts.
"""

import os
import shutil
import tempfile
from fractions import Fraction
from itertools import combinations
from math import comb
from pathlib import Path
from random import Random

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.model.options import AuditOptions, PlanOptions
from ms_recover.model.topology import Topology
from ms_recover.planning.audit.holders import steps_of_tree
from ms_recover.planning.audit.losses import Level, Losses
from ms_recover.verbs.audit import audit, losable
from ms_recover.verbs.session import Session
from tests.support.audits import RandomTree, delete, without
from tests.support.examples import examples
from tests.support.inventories import slice_file
from tests.support.inventories import tree as by_hand

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
TREES = examples(200)
THOROUGH = "MS_RECOVER_EXAMPLES" in os.environ
MOST_LOSSES = 3
"""Losses of each tree that are tried, unless a number of trees was asked for."""


def planned(inventory, ranks):
    try:
        return Session(inventory, PlanOptions(world_size=ranks)).planned.plan
    except MissingInputError:
        return None  # no slice is left


def some(losses, source, thorough):
    return losses if thorough or len(losses) <= MOST_LOSSES else source.sample(losses, MOST_LOSSES)


@pytest.mark.parametrize("first", range(0, TREES, 20))
def test_the_verdict_on_every_loss_is_that_of_the_plan_without_these_slices(first):
    tried = 0
    for seed in range(first, min(first + 20, TREES)):
        tree = RandomTree.of(seed)
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            root = Path(folder) / "tree"
            tree.make(root)
            tried += check(root, tree)
    assert tried > 10


def check(root, tree, *, thorough=THOROUGH):
    try:
        inventory = api.scan(root)
        session = Session(inventory, PlanOptions(world_size=tree.ranks))
        found = session.planned
    except MsRecoverError:
        return 0
    whole = audit(inventory, PlanOptions(world_size=tree.ranks), tree.topology())
    assert (whole.step is not None) == found.plan.recoverable
    if not found.plan.recoverable:
        return 0
    level = Level.of_topology(tree.topology(), 0)
    steps = list(steps_of_tree(found.tree))
    book = Losses(steps, level, level, None, losable(found.tree, session.reader))
    by_blocks = Losses(steps, level, level, None)  # as in a tree that is too large to ask the plan after each loss
    losses = [one for lost in (1, 2, 3) for one in combinations(range(len(level.domains)), lost)]
    chosen = some(losses, Random(tree.seed), thorough)
    for number, places in enumerate(chosen):
        ranks = [rank for place in places for rank in level.ranks[place]]
        if not number:  # one with files that are really deleted
            copy = root.with_name("copy")
            shutil.copytree(root, copy)
            delete(copy, ranks)
            try:
                plan = planned(api.scan(copy), tree.ranks)
            except MissingInputError:
                plan = None
            shutil.rmtree(copy)
        else:
            plan = planned(without(inventory, ranks), tree.ranks)
        ours = book.loss(frozenset(places))
        step = plan.step if plan is not None else None
        assert ours.step == step, (tree, places, ranks, ours.reason)
        assert step is not None or by_blocks.loss(frozenset(places)).fatal
        if step is not None and not (tree.dealt or tree.flipped):
            assert ours.bytes == plan.bytes_to_copy, (tree, places, ranks)
    for one in whole.levels[0].singles:
        assert one.step == book.loss(frozenset((level.domains.index(one.domains[0]),)), sources=False).step
    return len(chosen)


@pytest.mark.parametrize("seed", [195, 417, 722, 842, 1380])
def test_no_loss_of_a_damaged_tree_without_redundancy_is_called_recoverable_that_is_not(seed, tmp_path):
    tree = RandomTree.of(seed)
    assert tree.dealt
    tree.make(tmp_path / "tree")
    assert check(tmp_path / "tree", tree, thorough=True) > 5


def test_a_slice_that_does_not_give_what_it_lists_makes_a_tie_where_one_other_is_left(tmp_path):
    tree = RandomTree.of(24)
    assert tree.flipped
    tree.make(tmp_path / "tree")
    assert check(tmp_path / "tree", tree, thorough=True) > 5


def groups_of(source, ranks, copies):
    order = list(range(ranks))
    source.shuffle(order)
    return [frozenset(order[start : start + copies]) for start in range(0, ranks, copies)]


@pytest.mark.parametrize("seed", range(12))
def test_minimal_fatal_sets_and_probabilities_equal_brute_force_up_to_64_ranks(seed, tmp_path):
    source = Random(seed)
    copies, hosts = source.choice(((2, 8), (2, 16), (4, 8), (2, 32), (4, 16)))
    ranks = source.choice((16, 32, 64))
    hosts = min(hosts, ranks)
    lists = groups_of(source, ranks, copies)
    placed = tuple(f"h{rank * hosts // ranks}" for rank in range(ranks))
    made = audit(
        inventory_of(lists),
        PlanOptions(quick=True),
        Topology(("host",), (placed,), "test"),
        AuditOptions(losses=4),
    )
    level = made.levels[0]
    host = [int(name[1:]) for name in placed]
    fatal = {frozenset(host[rank] for rank in group) for group in lists}
    brute = {one for one in fatal if not any(other < one for other in fatal)}
    assert {frozenset(int(name[1:]) for name in one) for one in level.minimal} == brute
    assert level.minimal_count == len(brute)
    for lost in range(1, 5):
        losses = [set(one) for one in combinations(range(hosts), lost)] if comb(hosts, lost) < 40_000 else []
        counted = level.losses[lost - 1]
        assert counted.possible == comb(hosts, lost)
        if losses:
            assert counted.fatal == sum(any(one <= loss for one in brute) for loss in losses)
            assert counted.probability == Fraction(counted.fatal, counted.possible)
    least = min(map(len, brute))
    assert (level.smallest, level.smallest_count) == (least, sum(len(one) == least for one in brute))


def inventory_of(lists):
    by_rank = {rank: sorted(group) for group in lists for rank in group}
    return by_hand([slice_file(rank) for rank in sorted(by_rank)], by_rank)
