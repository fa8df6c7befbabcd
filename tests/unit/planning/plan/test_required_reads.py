"""What must be read before a plan, or the verdict of one rank, rests on more than structure."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import RankPath, StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.choice import assess_step, choose_step
from ms_recover.planning.judging.judge import Parts, compare_slices
from ms_recover.planning.plan.required_reads import required_reads, required_reads_of_rank
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import NAMES, OLDER, STEP, slice_file, tree
from tests.unit.planning.test_contents import PAIRS, backed


@pytest.mark.parametrize(
    ("sealed", "lost", "verdict", "read"),
    [
        (True, (), "keep", [0]),
        (False, (), "keep", []),
        (True, (0,), "copy", []),
        (False, (0,), "copy", [2]),
        (True, (0, 2), "unrecoverable", []),
    ],
)
def test_a_rank_reads_its_own_slice_that_a_manifest_describes_or_sources_without_one(sealed, lost, verdict, read):
    slices = [slice_file(rank) for rank in range(4) if rank not in lost]
    slices = [backed(file, "ab"[file.rank % 2]) for file in slices] if sealed else slices
    compared = compare_slices(gather_facts(tree(slices, PAIRS)))
    assessment = assess_step(compared, STEP, runs_of(compared.facts, STEP)[0])
    assert assessment.ranks[0].verdict == verdict
    assert [file.rank for file in required_reads_of_rank(compared, assessment, 0)] == read


def read_for(slices, lists, layouts=()):
    """Return rank and step of the slices that a plan must read; `layouts` are of one stage of four ranks."""
    files = (StrategyFile(3, "ckpt_dir3/strategy.ckpt", Strategy((0,), 1, layouts)),) if layouts else ()
    inventory = replace(tree(slices, lists, ranks=range(4)), strategy_files=files)
    parts = Parts(TreeFacts(inventory, PlanOptions(world_size=4)))
    return {(file.rank, file.step) for file in required_reads(choose_step(parts))}


def test_for_a_copy_the_slices_of_groups_are_read_and_older_ones_of_the_size_of_its_source():
    """Rank 0 is lost, and rank 1 alone in its group; nothing has a manifest."""
    lists = {0: [0, 2, 3], 1: [1], 2: [0, 2, 3], 3: [0, 2, 3]}
    newest = [slice_file(rank) for rank in (1, 2, 3)]
    older = [slice_file(0, OLDER), slice_file(1, OLDER), slice_file(2, OLDER, size=99), slice_file(3, OLDER)]
    assert read_for([*newest, *older], lists) == {(2, STEP), (3, STEP), (0, OLDER), (3, OLDER)}


def test_for_a_copy_of_a_slice_with_a_manifest_nothing_older_is_read():
    slices = [backed(slice_file(rank), "ab"[rank % 2]) for rank in (1, 2, 3)]
    older = [slice_file(rank, OLDER) for rank in range(4)]
    assert read_for([*slices, *older], PAIRS) == {(rank, STEP) for rank in (1, 2, 3)}


def test_for_a_slice_by_layouts_all_of_the_step_is_read_and_what_it_held_at_another():
    """The ranks 0 and 2, and 1 and 3 hold the same; rank 0 is lost."""
    layouts = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES)
    newest = [slice_file(rank) for rank in (1, 2, 3)]
    older = [slice_file(rank, OLDER) for rank in range(4)]
    found = read_for([*newest, *older], {}, layouts)
    assert {(rank, STEP) for rank in (1, 2, 3)} | {(0, OLDER), (2, OLDER)} <= found
    assert read_for([*newest, slice_file(0), *older], {}, layouts).isdisjoint((rank, OLDER) for rank in range(4))


def test_a_rank_that_is_copied_reads_every_source_of_its_group():
    """Those of the other format as well, which a copy is not taken from."""
    lists = {rank: [0, 1, 2] if rank < 3 else [3] for rank in range(4)}
    other = replace(slice_file(2), place=RankPath(("ckpt_dir", "/test-2_8.safetensors")))
    files = [slice_file(1), other, slice_file(3)]
    compared = compare_slices(gather_facts(tree(files, lists, ranks=range(4))))
    assessment = assess_step(compared, STEP, runs_of(compared.facts, STEP)[0])
    assert assessment.ranks[0].verdict == "copy"
    assert [file.rank for file in required_reads_of_rank(compared, assessment, 0)] == [1, 2]
