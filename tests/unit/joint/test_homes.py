"""On which node a rank belongs."""

from dataclasses import replace

import pytest

from ms_recover.engine.workers import Node, Worker
from ms_recover.errors import UsageError
from ms_recover.joint.homes import find_homes, held_ranks, parse_homes
from ms_recover.joint.union import unite
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.rank_path import RankPath
from ms_recover.model.steps import Step
from tests.support.inventories import group_file


def nodes(number):
    return [
        Node(label=f"n{i}", root="/d", workers=(Worker(address=f"tcp://{i}", name=f"w{i}"),)) for i in range(number)
    ]


def holding(*ranks, step=8):
    place = RankPath(("rank_", "/test-1_8.ckpt"))
    slices = tuple(SliceFile(rank, Step(1, step), place, "test", 1, 1) for rank in ranks)
    return Inventory(root="n", ranks=tuple(sorted(set(ranks))), slices=slices)


def homes(ranks, *held, world=8, named=None):
    return find_homes(ranks, together(holding(*one) for one in held), world, named or {})


def together(held):
    there = [replace(one, root=f"n{number}") for number, one in enumerate(held)]
    return unite(Inventory(root=""), there, spread=True)


def test_a_rank_belongs_where_its_files_are():
    assert homes([0, 5], (0, 1), (4, 5)) == {0: 0, 5: 1}


def test_where_two_nodes_have_files_of_a_rank_the_newer_step_counts():
    held = [holding(0, step=4), holding(0, step=8)]
    assert find_homes([0], together(held), 1, {}) == {0: 1}


def test_a_lost_rank_belongs_to_the_only_node_without_ranks():
    assert homes([4, 5], (0, 1), (2, 3), (), (6, 7)) == {4: 2, 5: 2}
    assert homes([4, 5], (0, 1), (3,), (), (8, 9), world=10) == {4: 2, 5: 2}


def test_a_lost_rank_belongs_to_the_node_of_its_neighbours():
    assert homes([2, 5], (0, 1), (3,), (4,), (6, 7)) == {2: 1, 5: 2}
    assert homes([1], (0, 2), (3, 4), world=5) == {1: 0}


def test_ranks_that_are_dealt_in_turns_go_in_turns():
    assert homes([5], (0, 4), (1,), (2, 6), (3, 7)) == {5: 1}


def test_two_nodes_without_ranks_are_not_told_apart():
    with pytest.raises(UsageError, match=r"rank 4, 5, 6, 7, and it may belong to any of n2, n3.*--home 4-7=n2"):
        homes([4, 5, 6, 7], (0, 1), (2, 3), (), ())


def test_the_operator_tells_them_apart():
    named = parse_homes([((4, 5), "n3")], nodes(4))
    assert homes([4, 5, 6, 7], (0, 1), (2, 3), (), (), named=named) == {4: 3, 5: 3, 6: 2, 7: 2}
    assert parse_homes([((4,), "w1")], nodes(4)) == {4: 1}
    alike = [*nodes(2), *nodes(1)]
    for wrong, among, why in (
        ([((4,), "x")], nodes(4), "--home ...=x: no node; the nodes are n0, n1, n2, n3"),
        ([((4,), "n0")], alike, "--home ...=n0: more than one node; the nodes are n0, n1, n0"),
        ([((4,), "n1"), ((4,), "n2")], nodes(4), "--home names two nodes for rank 4"),
    ):
        with pytest.raises(UsageError) as caught:
            parse_homes(wrong, among)
        assert str(caught.value) == why


def test_the_word_of_the_operator_counts_more_than_files():
    assert homes([0, 1], (0, 1), (2, 3), named={0: 1}) == {0: 1, 1: 0}


def test_a_rank_has_the_lists_in_its_own_directory_and_not_those_that_were_named():
    found = Inventory(root="n", group_files=(group_file(3, [3]), group_file(4, [4], outside=True)))
    assert held_ranks(found) == {3: ((-2, -2), 1)}


def test_one_node_has_everything():
    assert homes([3], (0,)) == {3: 0}
