"""Slices of other steps that show what those of a step do not."""

import pytest

from ms_recover.planning.judging.trials import find_trials
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
