"""Slices of other steps that show what those of a step do not."""

from dataclasses import replace

import pytest

from ms_recover.model.inventory import StrategyFile
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.judging.trials import bare_at, find_layout_trials, find_trials, trials_of
from ms_recover.planning.tree.candidates import runs_of
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree
from tests.unit.planning.test_contents import backed, contents


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


STEPS = [Step(1, number) for number in (1, 2, 3, 4)]


@pytest.mark.parametrize(("there", "nearest"), [((1, 2, 4), 2), ((1, 4), 1), ((4,), 4), ((), None)])
def test_steps_before_are_nearer_than_those_behind_and_the_last_of_them_is_the_nearest(there, nearest):
    slices = [slice_file(0, STEPS[number - 1]) for number in (*there, 3)] + [slice_file(1, step) for step in STEPS]
    trials = find_trials(gather_facts(tree(slices, pairs(2))), STEPS[2], 0, [0])
    assert [file.step.step for file in trials] == ([nearest] if nearest else [])


@pytest.mark.parametrize("how", ["manifest", "damaged"])
def test_a_slice_with_a_manifest_or_without_sound_structure_is_no_trial(how):
    older = slice_file(0, OLDER)
    older = backed(older, "a", origin="sealed by structure") if how == "manifest" else replace(older, problem="cut")
    facts = gather_facts(tree([slice_file(0), older, slice_file(2), slice_file(2, OLDER)], pairs(4)))
    assert bare_at(facts, OLDER, 0) == []
    assert [file.rank for file in find_trials(facts, STEP, 2)] == [2]


def with_layout(slices, lists, axes=()):
    file = StrategyFile(0, "ckpt_dir0/strategy.ckpt", Strategy((0,), 1, (Layout("a", (2, 2), (axes,)),)), "s")
    return gather_facts(replace(tree(slices, lists), strategy_files=(file,)))


@pytest.mark.parametrize(
    ("lists", "axes", "shown", "trials"),
    [
        ({rank: [rank] for rank in range(4)}, (0,), (), [0, 1, 2, 3]),
        ({rank: [rank] for rank in range(4)}, (0,), (0, 2), []),
        (pairs(4), (0,), (), []),
        (pairs(4), (), (), [0, 1, 2, 3]),
        (pairs(4), (), (0, 1), []),
        (pairs(4), (), (0, 2), [0, 1, 2, 3]),
    ],
    ids=["lists of one", "two show it", "no two lists", "two lists", "one of each shows it", "of one list"],
)
def test_layouts_are_tried_where_ranks_of_two_lists_hold_the_same_and_none_of_the_step_show_it(
    lists, axes, shown, trials
):
    slices = [slice_file(rank, step) for rank in range(4) for step in (OLDER, STEP)]
    found = find_layout_trials(with_layout(slices, lists, axes), STEP, [0], shown)
    assert [(file.rank, file.step) for file in found] == [(rank, OLDER) for rank in trials]


def test_the_trials_of_a_step_are_those_of_the_outvoted_and_of_layouts():
    lists = {rank: [0, 1, 2] for rank in range(3)}
    slices = [slice_file(rank, step) for rank in range(3) for step in (OLDER, STEP)]
    for odd, expected in (("x", [0, 1, 2]), ("a", [])):
        facts = gather_facts(tree(slices, lists), contents=contents(r0="a", r1=odd, r2="a"))
        found = trials_of(compare_slices(facts), STEP, runs_of(facts, STEP)[0])
        assert [(file.rank, file.step) for file in found] == [(rank, OLDER) for rank in expected]
    alone = with_layout(slices, {rank: [rank] for rank in range(4)}, (0,))
    found = trials_of(compare_slices(alone), STEP, runs_of(alone, STEP)[0])
    assert found == []
