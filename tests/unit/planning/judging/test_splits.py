"""Slices that differ over a layout: outvoted only where the parameter cannot be cut there."""

from dataclasses import replace

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.facts import gather_facts
from ms_recover.planning.judging.compare_blocks import compare_blocks
from tests.support.inventories import NAMES, OLDER, STEP, slice_file, tree
from tests.unit.planning.judging.test_votes import digests

PAIRS = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}
WHOLE = Strategy((), 1, tuple(Layout(name, (4,), ((),)) for name in NAMES[:3]))


def path(rank, step=STEP):
    return f"ckpt_dir{rank}/test-{step}.ckpt"


def compare(values, lists=PAIRS, older=None, ranks=4):
    """Compare slices whose strategy files call the first three parameters whole on all ranks."""
    by_step = {STEP: values} if older is None else {STEP: values, OLDER: older}
    held = [(rank, step, value) for step, all_of in by_step.items() for rank, value in all_of.items()]
    slices = [slice_file(rank, step) for rank, step, _ in held]
    layouts = tuple(replace(one, device_matrix=(ranks,)) for one in WHOLE.layouts)
    files = tuple(
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", replace(WHOLE, layouts=layouts)) for rank in values
    )
    inventory = replace(tree(slices, lists, ranks=range(ranks)), strategy_files=files)
    facts = gather_facts(inventory, contents=Contents({path(rank, step): digests(value) for rank, step, value in held}))
    return compare_blocks(facts, facts.counted_at(STEP))


def test_one_slice_against_those_of_two_rank_lists_is_outvoted():
    found = compare({0: "aaaa", 1: "aaaa", 2: "axaa", 3: "aaaa"}, lists={})
    assert set(found.outvoted) == {path(2)}


def test_two_of_one_rank_list_against_one_of_another_is_a_cut():
    """A foreign strategy file calls a parameter whole; one rank of four is lost."""
    found = compare({0: "abaa", 1: "axaa", 2: "abaa"}, lists={rank: PAIRS[rank] for rank in range(3)})
    assert not found.outvoted
    assert found.disagreements


def test_a_slice_that_equals_its_replica_is_disputed_and_not_outvoted():
    lists = {rank: [rank % 4, rank % 4 + 4] for rank in range(8)}
    values = {rank: "axaa" if rank % 4 == 1 else "aaaa" for rank in range(8)}
    found = compare(values, lists, ranks=8)
    assert not found.outvoted
    assert path(1) in found.undecided


def test_a_split_that_another_step_shows_is_a_cut():
    values, before = {0: "abaa", 1: "abaa", 2: "axaa"}, {0: "acaa", 1: "acaa", 2: "azaa"}
    assert set(compare(values, lists={}).outvoted) == {path(2)}
    found = compare(values, lists={}, older=before)
    assert not found.outvoted
    assert path(2) in found.undecided


def test_a_split_that_another_step_does_not_show_is_damage():
    values, before = {0: "abaa", 1: "abaa", 2: "axaa"}, {0: "acaa", 1: "acaa", 2: "acaa"}
    assert set(compare(values, lists={}, older=before).outvoted) == {path(2)}


def test_damage_of_a_winner_at_another_step_is_no_split():
    values = {0: "abaa", 1: "abaa", 2: "axaa", 3: "abaa"}
    before = {0: "azaa", 1: "acaa", 2: "acaa", 3: "acaa"}
    assert set(compare(values, lists={}, older=before).outvoted) == {path(2)}
