"""Comparing contents block by block, with the claims of rank lists and of layouts."""

from dataclasses import replace

import pytest

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.provenance import Provenance
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.compare_blocks import BlockComparison, compare_blocks, find_refuted
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, OLDER, STEP, pairs, slice_file, tree
from tests.unit.planning.judging.test_votes import digests, manifest

ALONE = {rank: [rank] for rank in range(4)}
PAIRS = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}
REPLICATED = tuple(Layout(name, (4,), ((),)) for name in NAMES[:3])
CUT_IN_TWO = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES[:3])


def path(rank):
    return f"ckpt_dir{rank}/test-{STEP}.ckpt"


def facts_of(values, lists, layouts=(), change=lambda file: file):
    """Return the facts of slices by one letter for each of the parameters, or their digests; some were not read."""
    slices = [change(slice_file(rank)) for rank in range(len(values))]
    known = Contents(
        {path(rank): digests(value) if isinstance(value, str) else value for rank, value in enumerate(values) if value}
    )
    inventory = tree(slices, lists)
    if layouts:
        strategy = Strategy((), 1, tuple(layouts))
        files = tuple(StrategyFile(one.rank, f"ckpt_dir{one.rank}/strategy.ckpt", strategy, "s") for one in slices)
        inventory = replace(inventory, strategy_files=files)
    return gather_facts(inventory, contents=known)


def compare(values, lists, layouts=(), change=lambda file: file):
    facts = facts_of(values, lists, layouts, change)
    return compare_blocks(facts, facts.counted_at(STEP))


def with_counter(file):
    *larger, last = file.parameters
    return replace(file, parameters=(*larger, replace(last, shape=())))


def test_slices_that_were_not_read_show_nothing():
    assert compare(["", "", "", ""], PAIRS) == BlockComparison()


def test_replicas_that_agree_are_each_others_witnesses():
    found = compare(["aaaa", "bbbb", "aaaa", "bbbb"], PAIRS)
    assert not found.outvoted
    assert not found.disagreements
    assert set(found.witnesses.values()) == {2}
    assert not found.alone


def test_a_rank_alone_in_its_group_is_alone():
    found = compare(["aaaa", "bbbb"], ALONE)
    assert found.alone == {path(0), path(1)}
    assert set(found.witnesses.values()) == {1}


def test_a_group_that_differs_with_nobody_to_settle_it_is_undecided():
    found = compare(["aaaa", "bbbb", "axaa", "bbbb"], PAIRS)
    assert list(found.disagreements) == [(0, 2)]
    assert set(found.undecided) == {path(0), path(2)}
    assert "'b'" in found.disagreements[0, 2]


def test_the_outvoted_slice_keeps_the_parameters_in_which_it_agrees():
    found = compare(["aaaa", "axaa", "aaaa"], {rank: [0, 1, 2] for rank in range(3)})
    assert found.outvoted[path(1)].names == ("b",)
    assert found.good == {path(1): frozenset(NAMES) - {"b"}}


def test_a_slice_that_is_outvoted_in_most_parameters_gives_nothing():
    found = compare(["aaaa", "xyza", "aaaa"], {rank: [0, 1, 2] for rank in range(3)})
    assert found.outvoted[path(1)].names == NAMES[:3]
    assert found.good == {path(1): frozenset()}


def test_layouts_settle_what_a_rank_list_alone_cannot():
    """A pair that differs in one parameter is settled by the other pair, which holds the same of it by its layout."""
    tied = compare(["abce", "abce", "axce", "abce"], PAIRS)
    assert tied.disagreements
    found = compare(["abce", "abce", "axce", "abce"], PAIRS, REPLICATED)
    assert not found.disagreements
    assert found.outvoted[path(2)].names == ("b",)
    assert not found.undecided


def test_replicas_that_differ_outside_of_their_parameters_disagree_although_layouts_compare_these():
    values = [digests("abce"), digests("uvwe"), replace(digests("abce"), file="other"), digests("uvwe")]
    found = compare(values, PAIRS, CUT_IN_TWO)
    assert list(found.disagreements) == [(0, 2)]
    assert "differ outside of them" in found.disagreements[0, 2]


def test_layouts_claim_replicas_where_no_list_does():
    found = compare(["abce", "uvwe", "abce", "uvwe"], ALONE, CUT_IN_TWO)
    assert not found.outvoted
    assert not found.disagreements
    broken = compare(["abce", "uvwe", "abxe", "uvwe"], ALONE, CUT_IN_TWO)
    assert list(broken.disagreements) == [(0, 2)]
    assert "strategy.ckpt" in broken.disagreements[0, 2]


def test_a_strategy_file_of_another_job_outvotes_nobody():
    """It calls parameters equal in which all ranks differ: nobody confirms it."""
    found = compare(["abce", "uvwe", "hije", "klme"], ALONE, REPLICATED)
    assert not found.outvoted
    assert not found.disagreements


def test_a_single_parameter_in_which_ranks_differ_is_damage_and_no_wrong_strategy_file():
    found = compare(["abce", "axce"], {0: [0], 1: [1]}, [replace(one, device_matrix=(2,)) for one in REPLICATED])
    assert list(found.disagreements) == [(0, 1)]


def test_a_counter_in_which_one_rank_of_a_stage_differs_is_damage():
    found = compare(["abce", "abce", "abcx", "abce"], ALONE, REPLICATED[:2], with_counter)
    assert found.outvoted[path(2)].names == ("global_step",)


def test_a_larger_parameter_without_layout_is_never_voted_on_over_layouts():
    """A stage's strategy file may leave out a parameter that is cut all the same."""
    found = compare(["abce", "abce", "abcx", "abce"], ALONE, REPLICATED[:2])
    assert not found.outvoted
    assert not found.disagreements


def test_counters_that_differ_from_group_to_group_are_each_ones_own():
    found = compare(["abcd", "abce", "abcd", "abce"], PAIRS, REPLICATED)
    assert not found.outvoted
    assert not found.disagreements


def test_slices_whose_manifests_are_all_proven_are_not_outvoted_by_a_layout():
    values = {0: "abce", 1: "abce", 2: "axce", 3: "abce"}

    def saved(file):
        return replace(file, manifest=manifest(file, values[file.rank], world_size=4))

    assert not compare(["", "", "", ""], ALONE, REPLICATED, saved).outvoted
    assert compare(list(values.values()), ALONE, REPLICATED).outvoted


def test_tolerated_differences_are_named_for_each_slice():
    slices = [slice_file(rank, names=("a", "moving_mean", "c", "d")) for rank in range(2)]
    known = Contents({path(0): digests("aaaa"), path(1): digests("axaa")})
    facts = gather_facts(tree(slices, {0: [0, 1], 1: [0, 1]}), contents=known)
    found = compare_blocks(facts, facts.counted_at(STEP))
    assert found.tolerated == {path(0): ("moving_mean",), path(1): ("moving_mean",)}
    assert not found.disagreements


def with_manifest(values, *ranks, kind="sealed", evidence="vote", **changes):
    """Return a change that gives some ranks a manifest of what they hold."""

    def change(file):
        if file.rank not in ranks:
            return file
        provenance = Provenance(kind=kind, evidence=evidence)
        return replace(file, manifest=manifest(file, values[file.rank], world_size=4, provenance=provenance, **changes))

    return change


@pytest.mark.parametrize(
    ("count", "other", "trusted"),
    [
        (1, "xbcd", True),
        (2, "xbcd", True),
        (2, "xycd", False),
        (3, "xbcd", True),
        (3, "xycd", False),
    ],
    ids=["1 of 1", "1 of 2", "2 of 2", "1 of 3", "2 of 3"],
)
def test_a_strategy_file_is_trusted_where_ranks_agree_in_as_much_as_they_differ_in_or_in_all_but_one(
    count, other, trusted
):
    layouts = [Layout(name, (2,), ((),)) for name in NAMES[:count]]
    found = compare(["abcd", other], {0: [0], 1: [1]}, layouts)
    assert bool(found.disagreements) is trusted


def test_a_strategy_file_that_a_manifest_names_is_trusted_and_one_that_no_other_rank_list_confirms_as_well():
    layouts = [Layout(name, (2,), ((),)) for name in NAMES[:3]]
    values = ["abcd", "xyzd"]
    for digest in ("s", "t"):
        saved = with_manifest(values, 0, kind="saved", evidence=None, strategy_digest=digest)
        assert bool(compare(values, {0: [0], 1: [1]}, layouts, saved).disagreements) is (digest == "s")
    within = compare(["abce", "uvwe", "xyce", "pqwe"], PAIRS, CUT_IN_TWO)
    assert "it is not the strategy file of these slices" in within.disagreements[0, 2]


def test_slices_that_manifests_prove_may_differ_over_a_layout():
    values = ["abcd", "axcd"]
    layouts = [Layout(name, (2,), ((),)) for name in NAMES[:3]]
    assert compare(values, {0: [0], 1: [1]}, layouts).disagreements
    found = compare(values, {0: [0], 1: [1]}, layouts, with_manifest(values, 0, 1))
    assert (found.disagreements, found.outvoted) == ({}, {})
    same = compare(["abcd"] * 2, {0: [0], 1: [1]}, layouts, with_manifest(["abcd"] * 2, 0, 1))
    assert set(same.witnesses.values()) == {1}
    assert same.alone == {path(0), path(1)}


def at_two_steps(values, before, lists, layouts, change=lambda file: file):
    slices = [
        change(slice_file(rank, step)) for step, of in ((STEP, values), (OLDER, before)) for rank in range(len(of))
    ]
    known = {f"ckpt_dir{rank}/test-{STEP}.ckpt": digests(value) for rank, value in enumerate(values)}
    known |= {f"ckpt_dir{rank}/test-{OLDER}.ckpt": digests(value) for rank, value in enumerate(before)}
    strategy = Strategy((), 1, tuple(layouts))
    files = tuple(StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", strategy) for rank in range(len(values)))
    facts = gather_facts(replace(tree(slices, lists), strategy_files=files), contents=Contents(known))
    return compare_blocks(facts, facts.counted_at(STEP))


@pytest.mark.parametrize(
    ("odd", "proven", "settled"), [("xbcy", True, True), ("xbcd", True, False), ("xbcy", False, False)]
)
def test_a_manifest_settles_what_another_step_leaves_open_where_the_loser_is_outvoted_in_its_rank_list_too(
    odd, proven, settled
):
    """The layout names all but the last parameter; ranks 0 and 2 differ in the first at both steps."""
    values, before = ["abcd", "abcd", odd, "abcd"], ["efgh", "efgh", "zfgh", "efgh"]

    def change(file):
        changed = with_manifest(values, 0, group=(0, 2))(file)
        return changed if proven and file.step == STEP else file

    found = at_two_steps(values, before, PAIRS, REPLICATED, change)
    assert (found.disagreements == {}) is settled
    if settled:
        assert found.outvoted[path(2)].names == ("a", "global_step")
        assert "proven by manifest" in found.outvoted[path(2)].reason
        assert found.outvoted[path(2)].reason.endswith("; and 'global_step' likewise")
        assert found.good[path(2)] == {"b", "moment1.a"}


@pytest.mark.parametrize(
    ("counters", "lists", "outvoted"),
    [
        ("xyx", {}, {1}),
        ("xy", {}, set()),
        ("xyz", {}, set()),
        ("yxxxyxxx", pairs(8), set()),
        ("yxxxxxxx", pairs(8), {0}),
        ("yzxxxxxx", pairs(8), {0, 1}),
    ],
    ids=["one of three", "one of two", "all differ", "both of a list", "one of a list", "two lists"],
)
def test_a_counter_is_damaged_where_most_ranks_of_a_stage_have_another_value(counters, lists, outvoted):
    layouts = [Layout(name, (len(counters),), ((),)) for name in NAMES[:2]]
    found = compare([f"abc{value}" for value in counters], lists, layouts, with_counter)
    assert set(found.outvoted) == {path(rank) for rank in outvoted}


def test_a_manifest_of_one_rank_settles_no_counter_of_a_stage():
    values = ["abcx", "abcy"]

    def change(file):
        return with_manifest(values, 0)(with_counter(file))

    found = compare(values, {0: [0], 1: [1]}, [Layout(name, (2,), ((),)) for name in NAMES[:2]], change)
    assert found.outvoted == {}


@pytest.mark.parametrize("before", ["xyx", "xxx"])
def test_a_counter_that_differs_at_another_step_as_well_is_a_ranks_own(before):
    layouts = [Layout(name, (3,), ((),)) for name in NAMES[:2]]
    found = at_two_steps(
        [f"abc{value}" for value in "pqp"], [f"abc{value}" for value in before], {}, layouts, with_counter
    )
    assert set(found.outvoted) == ({path(1)} if before == "xxx" else set())


@pytest.mark.parametrize(("odd", "good"), [("xyaa", {"moment1.a", "global_step"}), ("xyza", set())])
def test_an_outvoted_slice_gives_the_rest_where_it_agrees_in_as_much_as_it_differs_in(odd, good):
    found = compare(["aaaa", odd, "aaaa"], {rank: [0, 1, 2] for rank in range(3)})
    assert found.good == {path(1): good}


def test_a_disagreement_names_all_ranks_of_the_list_also_those_without_a_slice():
    found = compare(["aaaa", "axaa"], {rank: [0, 1, 2] for rank in range(3)})
    assert list(found.disagreements) == [(0, 1, 2)]


@pytest.mark.parametrize(
    ("values", "changes", "refuted"),
    [
        (["abcd", "xbcd"], {"count": 2}, False),
        (["abcd", "xbcd"], {"count": 1}, True),
        (["abcd", "xycd"], {}, True),
        (["abcd", "xyzd"], {}, True),
        (["abcd", "xyzd"], {"lists": {0: [0, 1], 1: [0, 1]}}, False),
        (["abcd"], {}, False),
        (["abcd", "xyzd", "abcd", "xyzd"], {}, False),
        (["abcd", ""], {}, False),
        (["abcd", "xyzd"], {"manifests": (1,)}, False),
    ],
    ids=["as much", "one", "most", "all", "one rank list", "one slice", "another agrees", "not read", "manifest"],
)
def test_slices_refute_a_strategy_file_where_one_differs_from_those_of_other_rank_lists_in_most(
    values, changes, refuted
):
    lists = changes.get("lists", {rank: [rank] for rank in range(len(values))})
    change = with_manifest(values, *changes.get("manifests", ()), evidence="structure")
    layouts = [Layout(name, (len(values),), ((),)) for name in NAMES[: changes.get("count", 3)]]
    facts = facts_of(values, lists, layouts, change)
    found = find_refuted(facts, facts.counted_at(STEP))
    assert bool(found) is refuted
    for name, reason in found.items():
        assert name.endswith("/strategy.ckpt")
        assert reason.startswith(f"{path(0)} and {path(1)} hold different contents in 'a'")
