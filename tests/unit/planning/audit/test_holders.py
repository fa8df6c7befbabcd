"""Who holds what at a step, and the smallest losses that leave something without a holder."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.audit.holders import steps_of_tree
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree

COLUMNS = Layout("w", (2, 2), ((0,),))
"""Of four ranks 0 and 2, and 1 and 3 hold the same half."""
NORM = Layout("norm", (2, 2), ((),))


def listed(rank, *names):
    """Return a slice that lists some parameters, of eight bytes each; a counter has four."""
    kinds = {name: ("Int32", (), 4) if name == "global_step" else ("Int8", (8,), 8) for name in names}
    return replace(slice_file(rank), parameters=tuple(Parameter(name, *kind) for name, kind in kinds.items()))


def steps(slices, lists=None, layouts=(), contents=None, **options):
    """Return the steps of a tree of four ranks; a strategy file in the directory of rank 0 has layouts."""
    files = (StrategyFile(0, "strategy.ckpt", Strategy((0,), 1, tuple(layouts)), "s"),) if layouts else ()
    inventory = replace(tree(slices, lists or {}, ranks=range(4)), strategy_files=files)
    known = (
        {}
        if contents is None
        else {file.path: Digests("|".join(held), held) for file, held in zip(slices, contents, strict=True)}
    )
    options = PlanOptions(world_size=4, **options)
    return list(steps_of_tree(Parts(TreeFacts(inventory, options, Contents(known)))))


def newest(*args, **changes):
    return steps(*args, **changes)[0]


def blocks(held):
    """Return the parameters, holders and bytes of each block."""
    return sorted((",".join(one.kind.names), one.holders, one.bytes) for one in held.blocks)


def sets(family):
    return sorted(map(sorted, family))


def test_whole_slices_are_held_by_their_groups():
    held = newest([slice_file(rank, size=100 + rank) for rank in (0, 1, 2)], pairs(4), quick=True)
    assert blocks(held) == [("", (0, 2), 100), ("", (1,), 101)]
    assert [one.kind.source for one in held.blocks] == ["ckpt_dir0/group_info.pb", "ckpt_dir1/group_info.pb"]
    assert (held.groups, held.missing) == ({0: (0, 2), 1: (1,), 2: (0, 2), 3: (1,)}, {3})
    assert held.sizes == {0: 100, 1: 101, 2: 102, 3: 101}
    assert sets(held.family) == [[0, 2], [1]]
    assert held.why[frozenset({0, 2})] == "the slice of rank(s) 0, 2"


def test_a_slice_that_no_list_names_is_held_by_its_rank():
    held = newest([slice_file(rank) for rank in range(4)], {0: [0, 2], 2: [0, 2]}, quick=True)
    assert blocks(held) == [("", (0, 2), 100), ("", (1,), 100), ("", (3,), 100)]
    assert {one.kind.source for one in held.blocks if len(one.holders) == 1} == {"nothing says who else holds it"}
    assert sets(held.family) == [[0, 2], [1], [3]]
    assert held.why[frozenset({1})] == "the slice of rank 1, of which no other rank has a copy"


def test_a_rank_list_goes_with_the_ranks_that_have_it():
    held = newest([slice_file(rank) for rank in range(4)], {0: [0, 2], 1: [1, 3], 3: [1, 3]}, quick=True)
    assert sets(held.family) == [[0], [1, 3]]
    assert held.why[frozenset({0})] == "the rank list that names rank 0"


def test_parts_of_slices_are_held_by_all_that_a_layout_gives_the_same():
    slices = [listed(rank, "w", "norm", "global_step") for rank in range(3)]
    held = newest(slices, layouts=[COLUMNS, NORM], quick=True)
    assert blocks(held) == [("global_step", (0, 1, 2), 4), ("norm", (0, 1, 2), 8), ("w", (0, 2), 8), ("w", (1,), 8)]
    assert {rank: len(parts) for rank, parts in held.parts.items()} == dict.fromkeys(range(4), 3)
    assert (held.groups, held.missing) == ({}, {3})
    assert sets(held.family) == [[0, 2], [1]]
    assert held.why[frozenset({1})] == "w, which rank(s) 1 alone hold"


def test_parameters_that_are_cut_alike_and_listed_alike_are_one_block():
    layouts = [COLUMNS, Layout("u", (2, 2), ((0,),)), NORM]
    held = newest([listed(rank, "w", "u", "norm") for rank in range(4)], layouts=layouts, quick=True)
    assert blocks(held) == [("norm", (0, 1, 2, 3), 8), ("u,w", (0, 2), 16), ("u,w", (1, 3), 16)]


def test_what_was_dealt_out_each_rank_holds_alone():
    """Of ranks that hold the same one lists w and the other v: nothing else says what was dealt to whom."""
    slices = [replace(listed(rank, "w" if rank < 2 else "v"), dealt=True) for rank in range(4)]
    held = newest(slices, pairs(4), [COLUMNS, replace(COLUMNS, parameter="v")], quick=True)
    assert [ranks for _, ranks, _ in blocks(held)] == [(0,), (1,), (2,), (3,)]
    assert sets(held.family) == [[0], [1], [2], [3]]


def test_whole_tensors_are_held_beside_the_parts_of_them():
    """The slice of rank 3 has both halves."""
    slices = [listed(rank, "w", "norm") for rank in range(4)]
    whole = Parameter("w", "Int8", (16,), 16)
    slices[3] = replace(slices[3], parameters=(whole, *slices[3].parameters[1:]))
    held = newest(slices, layouts=[COLUMNS, NORM], quick=True)
    assert blocks(held) == [("norm", (0, 1, 2, 3), 8), ("w", (0, 2, 3), 8), ("w", (1, 3), 8)]
    assert sets(held.family) == [[0, 2, 3], [1, 3]]


def test_a_parameter_without_layout_is_needed_by_those_that_list_it_and_those_without_a_slice():
    slices = [listed(rank, *(("global_step",) if rank < 2 else ()), "w", "norm") for rank in range(3)]
    held = newest(slices, layouts=[COLUMNS, NORM], quick=True)
    needing = {rank for rank, parts in held.parts.items() for one in parts if one.kind.names == ("global_step",)}
    assert needing == {0, 1, 3}


def test_a_parameter_whose_layout_does_not_fit_is_taken_from_nobody():
    layouts = [COLUMNS, Layout("v", (2, 2), ((0,), (1,), ()))]
    held = newest([listed(rank, "w", "v") for rank in range(4)], layouts=layouts, quick=True)
    assert [ranks for name, ranks, _ in blocks(held) if name == "v"] == [(0,), (1,), (2,), (3,)]
    assert sets(held.family) == [[0], [1], [2], [3]]


@pytest.mark.parametrize(
    ("contents", "quick", "holders", "assumed"),
    [
        ([("a", "x"), ("b", "x"), ("a", "x"), ("b", "x")], False, [(0, 1, 2, 3)], False),
        ([("a", "x"), ("b", "y"), ("a", "x"), ("b", "y")], False, [(0, 2), (0, 2), (1, 3), (1, 3)], False),
        (None, True, [(0, 2), (0, 2), (1, 3), (1, 3)], False),
        (None, False, [(0, 1, 2, 3)], True),
    ],
    ids=["equal", "of each rank list", "not read", "to be read"],
)
def test_a_parameter_without_layout_is_shared_as_far_as_contents_show(contents, quick, holders, assumed):
    slices = [listed(rank, "w", "b") for rank in range(4)]
    held = newest(slices, pairs(4), [COLUMNS], contents, quick=quick)
    assert sorted(ranks for name, ranks, _ in blocks(held) if name == "b") == holders
    assert held.assumed == assumed


def voted(values, **options):
    """Return the step of four ranks of one list with these contents."""
    slices = [slice_file(rank) for rank in range(len(values))]
    return newest(slices, dict.fromkeys(range(4), range(4)), contents=[(one,) * 4 for one in values], **options)


def test_a_vote_is_undecided_where_as_many_are_lost_as_others_differ():
    held = voted("aaab")
    assert sets(held.ties) == [[0, 1], [0, 2], [1, 2]]
    assert held.ties[frozenset({0, 1})] == "the majority of rank(s) 0, 1, 2 over rank(s) 3, which differ"
    assert sets(held.family) == [[0, 1], [0, 2], [1, 2]]
    assert sets(held.sure) == [[0, 1, 2]]
    assert voted("aaaa").ties == {}


def test_an_older_step_is_tried_where_its_slices_are_not_those_of_a_newer_one():
    new = [slice_file(rank) for rank in range(4)]
    old = [slice_file(rank, OLDER) for rank in range(4)]
    assert [one.step for one in steps([*new, *old], pairs(4), quick=True)] == [STEP]
    assert [one.step for one in steps([*new[:3], *old], pairs(4), quick=True)] == [STEP, OLDER]
    other = [replace(old[0], parameters=(*old[0].parameters, Parameter("more", "Int8", (1,), 1))), *old[1:]]
    assert [one.step for one in steps([*new, *other], pairs(4), quick=True)] == [STEP, OLDER]
    cut = [replace(new[0], problem="it is cut off"), *new[1:]]
    assert [one.step for one in steps([*cut, *old], pairs(4), quick=True)] == [STEP, OLDER]
    assert [one.step for one in steps([*new[:1], *old], pairs(4), quick=True)] == [OLDER]
