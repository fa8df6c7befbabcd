"""Slices that differ over a layout: outvoted only where the parameter cannot be cut there."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.compare_blocks import compare_blocks
from ms_recover.planning.judging.splits import differing_elsewhere, is_alone, is_uncommitted, why_no_replica
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, slice_file, tree
from tests.unit.planning.judging.test_votes import digests, manifest
from tests.unit.planning.test_contents import backed

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


def facts_of(values, older, manifests=(), change=lambda file: file, files=()):
    """Return the facts of slices that hold what the letters say at two steps, some ranks' with sealed manifests."""
    held = [(rank, step, value) for step, all_of in ((STEP, values), (OLDER, older)) for rank, value in all_of.items()]
    slices = []
    for rank, step, value in held:
        file = change(slice_file(rank, step, names=NAMES[: len(value)]))
        if rank in manifests:
            run = manifests[rank] if isinstance(manifests, dict) else "run"
            file = replace(file, manifest=manifest(file, value, world_size=4, run_id=run))
        slices.append(file)
    known = Contents({path(rank, step): digests(value) for rank, step, value in held})
    inventory = replace(tree(slices, {}, ranks=range(4)), strategy_files=tuple(files))
    return gather_facts(inventory, contents=known)


def newest(facts, rank):
    (one,) = facts.at(STEP, rank)
    return one


def test_a_rank_whose_other_slices_are_unlike_those_of_a_source_is_no_replica_of_it():
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "ijkh"})
    assert "ckpt_dir1/test-1_8.ckpt" in why_no_replica(facts, 1, newest(facts, 0))


def test_damage_in_one_place_of_another_step_shows_no_other_layout():
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "exgh"})
    assert why_no_replica(facts, 1, newest(facts, 0)) is None


@pytest.mark.parametrize(("nbytes", "shown"), [(48, False), (49, True), (400, True)])
def test_a_parameter_of_most_bytes_that_differs_at_another_step_shows_another_layout(nbytes, shown):
    """The other three parameters have 48 bytes."""

    def with_large(file):
        first, *others = file.parameters
        return replace(file, parameters=(replace(first, nbytes=nbytes), *others))

    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "xfgh"}, change=with_large)
    assert (why_no_replica(facts, 1, newest(facts, 0)) is not None) == shown


@pytest.mark.parametrize(("value", "shown"), [("ef", False), ("xf", True)])
def test_a_slice_of_another_step_that_was_cut_off_shows_no_other_layout_unless_it_differs(value, shown):
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: value})
    assert (why_no_replica(facts, 1, newest(facts, 0)) is not None) == shown


@pytest.mark.parametrize(("runs", "shown"), [(("run", "run"), True), (("run", "other"), False)])
def test_slices_of_two_runs_at_another_step_show_no_other_layout(runs, shown):
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "ijkh"}, manifests=dict(enumerate(runs)))
    assert (why_no_replica(facts, 1, newest(facts, 0)) is not None) == shown


@pytest.mark.parametrize(("others", "shown"), [((), False), ((1, 2), True)], ids=["alone", "others contradict it"])
def test_of_strategy_files_that_contradict_each_other_one_that_cuts_just_what_differs_shows_another_layout(
    others, shown
):
    """That of rank 0 cuts ``a`` between the ranks 0 and 1, which differ in it at another step."""

    def stating(rank, *cuts):
        layouts = tuple(Layout(name, (2, 2), (cut,)) for name, cut in zip(NAMES, cuts, strict=True))
        return StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((0,), 1, layouts))

    files = [stating(0, (0,), (), (), ()), *(stating(rank, (), (), (), ()) for rank in others)]
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "xfgh"}, files=files)
    assert (facts.stages.problem is not None) == shown
    assert (why_no_replica(facts, 1, newest(facts, 0)) is not None) == shown


def test_a_rank_without_other_slices_may_hold_the_same():
    facts = facts_of({0: "abcd"}, {0: "efgh"})
    assert why_no_replica(facts, 1, newest(facts, 0)) is None


def test_manifests_of_another_step_state_what_two_ranks_do_not_share():
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "exgy"}, manifests=(0, 1))
    assert differing_elsewhere(facts, 1, newest(facts, 0)) == {NAMES[1], NAMES[3]}


def test_without_manifests_another_step_shows_it_where_it_is_no_damage_in_one_place():
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "exgy"})
    assert differing_elsewhere(facts, 1, newest(facts, 0)) == {NAMES[1], NAMES[3]}
    assert "hold different contents" in why_no_replica(facts, 1, newest(facts, 0))
    facts = facts_of({0: "abcd"}, {0: "efgh", 1: "exgh"})
    assert differing_elsewhere(facts, 1, newest(facts, 0)) == frozenset()


@pytest.mark.parametrize(
    ("side", "alone"),
    [((0,), True), ((0, 2), False), ((0, 1), False), ((0, 1, 2, 3), False)],
    ids=["one of two", "both of a list", "one of each of two lists", "all"],
)
def test_a_side_is_alone_where_it_is_a_part_of_one_rank_list(side, alone):
    ballots = gather_facts(tree([slice_file(rank) for rank in range(4)], PAIRS)).counted_at(STEP)
    assert is_alone([ballot for ballot in ballots if ballot.rank in side], ballots) is alone


@pytest.mark.parametrize(("committing", "expected"), [(True, [False, True]), (False, [False, False])])
def test_a_slice_without_manifest_is_uncommitted_where_training_saved_others_with_one(committing, expected):
    origin = "saved" if committing else "sealed"
    slices = [backed(slice_file(0), "a", origin=origin), slice_file(1)]
    facts = gather_facts(tree(slices, PAIRS))
    assert [is_uncommitted(facts, slice_) for slice_ in facts.counted_at(STEP)] == expected
