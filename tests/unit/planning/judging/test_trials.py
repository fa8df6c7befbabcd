"""Slices of other steps that show what those of a step do not."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.trials import find_layout_trials, find_trials
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree


@pytest.mark.parametrize(
    ("at", "needed", "trials"),
    [(OLDER, None, [(0, STEP), (1, STEP)]), (OLDER, [1], [(1, STEP)]), (STEP, None, [(0, OLDER)]), (STEP, [1], [])],
)
def test_trials_are_slices_of_the_nearest_other_step_that_a_rank_has(at, needed, trials):
    slices = [slice_file(0, OLDER), slice_file(0), slice_file(1)]
    found = find_trials(gather_facts(tree(slices, pairs(2))), at, 0, needed)
    assert [(file.rank, file.step) for file in found] == trials


def test_without_another_step_there_is_no_trial():
    facts = gather_facts(tree([slice_file(0), slice_file(1), slice_file(1, OLDER)], pairs(2)))
    assert find_trials(facts, STEP, 0) == []


def test_layouts_that_slices_of_the_step_show_need_no_trial():
    """Each stage is asked of its own slices, whatever the stages before it needed."""
    layout = Layout("w", (2,), ((),))
    files = [
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((rank // 2,), 1, (layout,)), f"stage {rank // 2}")
        for rank in range(4)
    ]
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    inventory = replace(tree(slices, {rank: (rank,) for rank in range(4)}), strategy_files=tuple(files))
    facts = gather_facts(inventory)
    trials = find_layout_trials(facts, STEP, facts.stages.layouts, shown={2, 3})
    assert [(file.rank, file.step) for file in trials] == [(0, OLDER), (1, OLDER)]
