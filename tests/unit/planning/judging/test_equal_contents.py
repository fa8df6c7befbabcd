"""Ranks that hold equal contents where nothing says that they should."""

from dataclasses import replace
from itertools import combinations
from random import Random

import pytest

from ms_recover.model.axes import Axes
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.equal_contents import (
    Division,
    equal_ranks,
    is_unclaimed,
    ranks_without_claim,
    regular_divisions,
    slices_to_compare,
    why_overwritten,
)
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, slice_file, tree
from tests.unit.planning.test_contents import backed, contents

PAIRS = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}


def facts_of(lists=(), *, slices=None, groups=(), axes=None, strategies=(), known=None):
    """Return the facts of four ranks."""
    made = tree(slices or [slice_file(rank) for rank in range(4)], dict(lists))
    options = PlanOptions(groups=tuple(map(frozenset, groups)), axes=axes)
    return gather_facts(replace(made, strategy_files=tuple(strategies)), options, known or contents())


def strategy(rank=0, digest="s", axes=(0,)):
    layouts = tuple(Layout(name, (2, 2), (axes,)) for name in NAMES)
    return StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy((0,), 1, layouts), digest)


@pytest.mark.parametrize(
    ("claims", "unclaimed"),
    [
        ({}, True),
        ({"lists": PAIRS}, False),
        ({"lists": {rank: [rank] for rank in range(4)}}, False),
        ({"groups": [(0, 2)]}, False),
        ({"axes": Axes.parse("tp=4")}, False),
        ({"strategies": [strategy()]}, False),
        ({"slices": [backed(slice_file(rank), "a", group=(rank,)) for rank in range(4)]}, True),
        ({"slices": [backed(slice_file(rank), "ab"[rank % 2]) for rank in range(4)]}, False),
    ],
    ids=[
        "nothing",
        "rank lists",
        "lists of one",
        "the operator",
        "the operator, of one each",
        "layouts",
        "manifests of themselves",
        "manifests of others",
    ],
)
def test_slices_are_unclaimed_where_nothing_but_their_own_manifests_groups_them(claims, unclaimed):
    assert is_unclaimed(facts_of(**claims)) is unclaimed


def test_claims_that_contradict_each_other_may_have_overwritten_others():
    plain = facts_of(PAIRS)
    assert why_overwritten(plain) is None
    contested = replace(plain.groups, contested={0: "why"})
    odd = replace(plain.stages, contradicts="x/strategy.ckpt")
    why = "the rank lists and x/strategy.ckpt contradict each other"
    assert why_overwritten(replace(plain, groups=contested, stages=odd)) == why
    assert why_overwritten(replace(plain, groups=contested)) is None
    assert why_overwritten(replace(plain, stages=odd)) is None


@pytest.mark.parametrize(
    ("digests", "why"),
    [
        (("s", "s"), None),
        (("s", "t"), "ckpt_dir1/strategy.ckpt and ckpt_dir0/strategy.ckpt contradict each other"),
        (("s", ""), None),
    ],
)
def test_a_strategy_file_that_is_not_the_one_that_is_used_contradicts_it(digests, why):
    files = [strategy(rank, digest) for rank, digest in enumerate(digests)]
    facts = facts_of(strategies=files[:1])
    assert why_overwritten(replace(facts, inventory=replace(facts.inventory, strategy_files=tuple(files)))) == why


@pytest.mark.parametrize(("count", "problem"), [(0, None), (1, None), (2, "none fits")])
def test_of_several_strategy_files_of_which_none_is_used_the_reason_is_theirs(count, problem):
    facts = facts_of()
    files = tuple(strategy(rank, "") for rank in range(count))
    stages = replace(facts.stages, problem="none fits")
    found = why_overwritten(replace(facts, inventory=replace(facts.inventory, strategy_files=files), stages=stages))
    assert found == problem


NEWEST = RejectedStep(STEP, "lost", ranks=(1, 3))
OF_OTHERS = RejectedStep(Step(9, 9), "older", another_run=True, ranks=(0,))


@pytest.mark.parametrize(
    ("rejected", "recoverable", "guessed", "ranks"),
    [
        ([NEWEST], False, False, (1, 3)),
        ([OF_OTHERS, NEWEST], False, False, (1, 3)),
        ([replace(NEWEST, ranks=())], True, True, None),
        ([], True, True, ()),
        ([], True, False, None),
        ([], False, True, None),
    ],
)
def test_ranks_without_a_source_are_of_interest_where_nothing_says_who_holds_the_same(
    rejected, recoverable, guessed, ranks
):
    facts = facts_of()
    facts = replace(facts, world=replace(facts.world, guessed=guessed))
    assert ranks_without_claim(facts, recoverable, rejected) == ranks


def test_where_claims_contradict_each_other_lost_ranks_alone_are_of_interest():
    plain = facts_of(PAIRS)
    odd = replace(
        plain,
        groups=replace(plain.groups, contested={0: "why"}),
        stages=replace(plain.stages, contradicts="x/strategy.ckpt"),
    )
    assert ranks_without_claim(plain, True, [NEWEST]) is None
    assert ranks_without_claim(odd, True, [NEWEST]) == (1, 3)
    assert ranks_without_claim(odd, True, []) is None


@pytest.mark.parametrize("world", [1, 2, 6, 8, 12])
def test_divisions_are_those_whose_groups_and_no_others_hold_the_same(world):
    """Against all pairs of ranks, at random contents that follow some division or nearly."""
    source = Random(world)
    blocks = [
        (stride, size) for size in range(2, world + 1) for stride in range(1, world) if world % (stride * size) == 0
    ]

    def mates(stride, size, one, other):
        return one // (stride * size) == other // (stride * size) and one % stride == other % stride

    for _ in range(30):
        stride, size = source.choice(blocks or [(1, 1)])
        seen = {}
        for step in (STEP, OLDER)[: source.randint(0, 2)]:
            held = {
                rank: min(mate for mate in range(world) if mates(stride, size, rank, mate)) for rank in range(world)
            }
            ranks = source.sample(range(world), source.randint(1, world))
            seen[step] = {rank: held[rank] if source.random() < 0.95 else "odd" for rank in ranks}
        expected = set()
        for block in blocks:
            pairs = [
                (mates(*block, one, other), by_rank[one] == by_rank[other])
                for by_rank in seen.values()
                for one, other in combinations(by_rank, 2)
            ]
            if all(same == equal for same, equal in pairs) and (True, True) in pairs:
                expected.add(block)
        found = regular_divisions(seen, world)
        assert {(division.stride, division.size) for division in found} == expected
        for division in found:
            groups = division.groups(world)
            assert sorted(rank for group in groups for rank in group) == list(range(world))
            assert all(division.group_of(rank) == number for number, group in enumerate(groups) for rank in group)


def test_a_division_names_its_groups():
    assert [list(group) for group in Division(2, 3).groups(12)] == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


def test_what_is_read_next_is_the_newest_step_and_then_the_older_ones_of_equal_ranks():
    slices = [slice_file(rank, step) for step in (STEP, OLDER) for rank in range(4)]

    def wanted(lost=(3,), **values):
        return [
            (file.rank, file.step)
            for file in slices_to_compare(facts_of(slices=slices, known=contents(**values)), lost)
        ]

    assert wanted() == [(rank, STEP) for rank in range(4)]
    assert wanted(r0="a", r1="b") == [(2, STEP), (3, STEP)]
    assert wanted(r0="a", r1="b", r2="a", r3="c") == [(0, OLDER), (2, OLDER)]
    assert wanted(r0="a", r1="b", r2="c", r3="d") == []
    assert wanted((), r0="a", r1="b", r2="a", r3="b") == []
    assert wanted((), r0="a", r1="b", r2="a", r3="c") == [(0, OLDER), (2, OLDER)]
    assert slices_to_compare(facts_of(slices=[slice_file(0)]), ()) == ()


def test_where_a_rank_has_older_slices_only_those_of_all_ranks_are_read():
    slices = [slice_file(rank, step) for step in (STEP, OLDER) for rank in range(4) if (rank, step) != (3, STEP)]
    read = slices_to_compare(facts_of(slices=slices, known=contents(r0="a", r1="b", r2="a")), (3,))
    assert [(file.rank, file.step) for file in read] == [(rank, OLDER) for rank in range(4)]
    read = slices_to_compare(facts_of(slices=slices, known=contents(r0="a", r1="b", r2="c")), (3,))
    assert read == ()


@pytest.mark.parametrize("how", ["encrypted", "damaged", "recovered"])
def test_slices_that_show_nothing_are_not_compared(how):
    first = {
        "encrypted": replace(slice_file(0), encryption="AES-GCM"),
        "damaged": slice_file(0, problem="cut"),
        "recovered": backed(slice_file(0), "a", origin="recovered from rank 2 (x), by structure"),
    }[how]
    read = slices_to_compare(facts_of(slices=[first, *(slice_file(rank) for rank in (1, 2, 3))]), (3,))
    assert [file.rank for file in read] == [1, 2, 3]


def test_equal_ranks_are_named_with_the_option_that_says_so_where_a_rank_is_lost():
    facts = facts_of(
        slices=[slice_file(rank) for rank in range(3)] + [slice_file(3, OLDER)], known=contents(r0="a", r1="b", r2="a")
    )
    (text,) = equal_ranks(facts, (3,))
    assert text == (
        "ranks 0 and 2 hold equal bytes at step 2_8, but no file says who holds the same slice; if rank 3 holds what "
        "rank 1 holds, accept it with: --group 0,2 --group 1,3"
    )
    assert equal_ranks(facts, ()) == ()
    assert equal_ranks(facts_of(known=contents(r0="a", r1="b", r2="c", r3="d")), (3,)) == ()


def test_where_claims_contradict_each_other_they_are_to_be_moved_out_first():
    plain = facts_of(PAIRS, known=contents(r0="a", r1="b", r2="a", r3="b"))
    odd = replace(
        plain,
        groups=replace(plain.groups, contested={0: "why"}),
        stages=replace(plain.stages, contradicts="x/strategy.ckpt"),
    )
    (text,) = equal_ranks(odd, (3,))
    assert "and the rank lists and x/strategy.ckpt contradict each other: an evaluation or another job may have" in text
    assert text.endswith(
        "if rank 3 holds what rank 1 holds, move them out of the tree and say: --group 0,2 --group 1,3"
    )


@pytest.mark.parametrize("guessed", [True, False])
def test_a_last_rank_without_a_trace_is_thought_of_where_files_alone_say_how_many_there_are(guessed):
    facts = facts_of(slices=[slice_file(rank) for rank in range(3)], known=contents(r0="a", r1="b", r2="a"))
    facts = replace(facts, world=replace(facts.world, guessed=guessed))
    texts = equal_ranks(facts, ())
    assert [text.partition("; if ")[2] for text in texts] == (
        ["rank 3 holds what rank 1 holds, accept it with: --group 0,2 --group 1,3"] if guessed else []
    )
