"""A parameter without layout that few ranks are left with: a loss is fatal exactly when a plan fails after it."""

from dataclasses import replace
from itertools import combinations

import pytest

from ms_recover.errors import MsRecoverError
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.audit.holders import steps_of_tree
from ms_recover.planning.choice import choose_step
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import slice_file, tree

WHOLE = Layout("norm", (4,), ((),))
HALF = Layout("w", (2, 2), ((0,),))


def facts_of(layouts, lists, other, values, there):
    """Return four ranks that list a parameter without layout as well, whose contents are these values."""
    names = [(one.parameter, "Int8", (8,), 8) for one in layouts] + [other]
    slices = [replace(slice_file(rank), parameters=tuple(Parameter(*one) for one in names)) for rank in there]
    files = (StrategyFile(0, "strategy.ckpt", Strategy((0,), 1, tuple(layouts)), "s"),)
    inventory = replace(tree(slices, lists, ranks=range(4)), strategy_files=files)
    known = {}
    for file in slices:
        held = (*(f"{one.parameter} {file.rank % 2 if one is HALF else 0}" for one in layouts), values[file.rank])
        known[file.path] = Digests(" ".join(held), held)
    return TreeFacts(inventory, PlanOptions(world_size=4), Contents(known))


def fatal_by_plan(facts):
    """Return the smallest losses after which a plan fails."""
    fatal: list[frozenset[int]] = []
    for lost in (frozenset(ranks) for count in range(1, 5) for ranks in combinations(range(4), count)):
        if not any(one <= lost for one in fatal):
            inventory, options = facts.without(lost)
            left = TreeFacts(inventory, options, facts.contents.of(inventory.slices))
            try:
                recovers = choose_step(Parts(left)).found
            except MsRecoverError:
                recovers = False
            fatal += [] if recovers else [lost]
    return sorted(map(sorted, fatal))


BIAS, COUNTER = ("b", "Int8", (8,), 8), ("global_step", "Int32", (), 4)


@pytest.mark.parametrize(
    ("other", "values"),
    [(BIAS, "aaaa"), (BIAS, "abab"), (COUNTER, "aaaa")],
    ids=["a bias", "a bias of each pair", "a counter"],
)
@pytest.mark.parametrize("layouts", [(WHOLE,), (WHOLE, HALF)], ids=["not cut", "cut"])
@pytest.mark.parametrize("having", [(), (2,), (0, 3), (0, 1, 3), range(4)])
@pytest.mark.parametrize("there", [range(4), (0, 1, 2), (1, 2)])
def test_a_loss_is_fatal_by_the_holders_exactly_when_a_plan_fails_after_it(other, values, layouts, having, there):
    """Some ranks have the list of those that hold the same slice: pairs of them, or all four."""
    alike = [range(rank % 2, 4, 2) if HALF in layouts or values == "abab" else range(4) for rank in range(4)]
    facts = facts_of(layouts, {rank: alike[rank] for rank in having}, other, values, there)
    found = list(steps_of_tree(Parts(facts)))
    fatal = fatal_by_plan(facts)
    assert [sorted(map(sorted, held.family)) for held in found] == ([fatal] if choose_step(Parts(facts)).found else [])
