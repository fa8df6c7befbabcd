"""Comparing contents block by block, with the claims of rank lists and of layouts."""

from dataclasses import replace

from ms_recover.model.contents import Contents
from ms_recover.model.inventory import StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.judging.compare_blocks import BlockComparison, compare_blocks
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import NAMES, STEP, slice_file, tree
from tests.unit.planning.judging.test_votes import digests, manifest

ALONE = {rank: [rank] for rank in range(4)}
PAIRS = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}
REPLICATED = tuple(Layout(name, (4,), ((),)) for name in NAMES[:3])
CUT_IN_TWO = tuple(Layout(name, (2, 2), ((0,),)) for name in NAMES[:3])


def path(rank):
    return f"ckpt_dir{rank}/test-{STEP}.ckpt"


def compare(values, lists, layouts=(), change=lambda file: file):
    """Compare slices by one letter for each of the four parameters, or their digests; those without were not read."""
    slices = [change(slice_file(rank)) for rank in range(len(values))]
    known = Contents(
        {path(rank): digests(value) if isinstance(value, str) else value for rank, value in enumerate(values) if value}
    )
    inventory = tree(slices, lists)
    if layouts:
        strategy = Strategy((), 1, tuple(layouts))
        files = tuple(StrategyFile(one.rank, f"ckpt_dir{one.rank}/strategy.ckpt", strategy) for one in slices)
        inventory = replace(inventory, strategy_files=files)
    facts = gather_facts(inventory, contents=known)
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
