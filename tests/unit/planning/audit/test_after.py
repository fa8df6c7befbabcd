"""Which losses of a tree a plan is asked about."""

import pytest

from ms_recover.model.options import PlanOptions
from ms_recover.planning.audit.after import Losable
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import OLDER, pairs, slice_file, tree


def losable(slices, groups, **options):
    def ask(ranks):
        raise AssertionError(ranks)

    return Losable(Parts(TreeFacts(tree(slices, groups), PlanOptions(quick=True, **options))), ask)


def sound(ranks):
    return [slice_file(rank) for rank in range(ranks)]


def test_none_where_every_slice_is_sound():
    assert losable(sound(8), pairs(8)).most_lost(8) == 0


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
