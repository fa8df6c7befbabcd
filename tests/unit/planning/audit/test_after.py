"""Which losses of a tree a plan is asked about."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.audit.after import Losable
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import OLDER, pairs, slice_file, tree


def losable(slices, groups, **options):
    def ask(ranks):
        raise AssertionError(ranks)

    return of_tree(tree(slices, groups), ask, **options)


def of_tree(inventory, ask=None, **options):
    return Losable(Parts(TreeFacts(inventory, PlanOptions(quick=True, **options))), ask)


def sound(ranks):
    return [slice_file(rank) for rank in range(ranks)]


def test_none_where_every_slice_is_sound():
    assert losable(sound(8), pairs(8)).most_lost(8) == 0


def test_where_holders_are_assumed_to_hold_the_same():
    assert losable(sound(8), pairs(8)).most_lost(8, assumed=True) == 3


@pytest.mark.parametrize(("states", "most"), [(["moment1.v"], 0), ([], 3)])
def test_where_a_stage_lists_no_states_that_another_one_lists(states, most):
    """The slice that is left of that stage is cut off; two that list the same are not."""
    lists = [["w", "moment1.w"]] * 2 + [["v", *states]] * 2
    slices = [slice_file(rank, names=("global_step", *names)) for rank, names in enumerate(lists)]
    files = tuple(
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((rank // 2,), 2, layouts), "s")
        for rank, name in ((0, "w"), (2, "v"))
        for layouts in [tuple(Layout(one, (2,), ((),)) for one in (name, f"moment1.{name}"))]
    )
    groups = {rank: [rank // 2 * 2, rank // 2 * 2 + 1] for rank in range(4)}
    assert of_tree(replace(tree(slices, groups), strategy_files=files)).most_lost(4) == most


def test_up_to_three_domains_of_a_small_tree_where_a_slice_is_damaged():
    damaged = [slice_file(7, problem="cut off")]
    assert losable([*sound(7), *damaged], pairs(8)).most_lost(8) == 3
    assert losable([*sound(7), *damaged], pairs(8)).most_lost(2) == 2


@pytest.mark.parametrize(("ranks", "most"), [(16, 3), (20, 2), (32, 1), (64, 1), (256, 0)])
def test_fewer_of_more_ranks(ranks, most):
    slices = [*sound(ranks - 1), slice_file(ranks - 1, problem="cut off")]
    assert losable(slices, pairs(ranks)).most_lost(ranks) == most


def test_where_some_ranks_alone_are_to_be_recovered():
    assert losable(sound(8), pairs(8), ranks=frozenset({1})).most_lost(8) == 3


def test_where_an_older_step_has_a_damaged_slice():
    assert losable([*sound(8), slice_file(0, OLDER, problem="cut off")], pairs(8)).most_lost(8) == 3
