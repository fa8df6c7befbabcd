"""The number of ranks, from the evidence that survived."""

from dataclasses import replace
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import ContradictionError, UsageError
from ms_recover.model.groups import RankGroup
from ms_recover.model.inventory import Inventory, PartClaims, StrategyFile
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.tree.world_size import find_world_size
from tests.support.inventories import OLDER, STEP, group_file, slice_file, tree
from tests.unit.planning.judging.test_votes import manifest

FIXTURES = Path(__file__).parents[3] / "data" / "fixtures"


def stated(rank, world_size, step=STEP):
    file = slice_file(rank, step)
    return replace(file, manifest=manifest(file, world_size=world_size))


def strategy(rank, devices, stages=()):
    layout = Layout("w", (devices,), ((0,),))
    return StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", Strategy(tuple(stages), 1, (layout,)))


def with_strategies(ranks, *files, lists=()):
    return Inventory("/tree", tuple(ranks), tuple(slice_file(rank) for rank in ranks), tuple(lists), tuple(files))


def size(inventory, given=None):
    return find_world_size(inventory, given).ranks


def test_the_operators_number_wins_over_manifests():
    found = find_world_size(tree([stated(0, 4)], {}), 16)
    assert (found.ranks, found.source, found.guessed) == (16, "as given", False)


def test_of_a_part_of_a_tree_its_documents_say_how_many_ranks_there_are():
    claims = PartClaims(kind="model", world_size=8, source="metadata.json")
    found = find_world_size(replace(tree([stated(0, 4)], {}), part=claims), 2)
    assert (found.ranks, found.source, found.guessed) == (8, "metadata.json", False)


def test_a_number_below_the_ranks_that_have_files_is_refused():
    with pytest.raises(UsageError, match="at least 6"):
        find_world_size(tree([slice_file(5)], {}), 5)
    assert size(tree([slice_file(5)], {}), 6) == 6


def test_manifests_state_it_and_nothing_is_guessed():
    found = find_world_size(tree([stated(0, 8), slice_file(1)], {}))
    assert (found.ranks, found.source, found.guessed) == (8, f"the manifests of step {STEP}", False)


def test_of_several_sizes_that_manifests_state_the_newest_counts():
    assert size(tree([stated(0, 4), stated(1, 8, OLDER)], {})) == 4


def test_a_newer_slice_that_less_than_half_as_many_ranks_have_does_not_change_it():
    older = [stated(rank, 8, OLDER) for rank in range(3)]
    assert size(tree([stated(0, 2), *older], {})) == 8
    assert size(tree([stated(0, 2), *older[:2]], {})) == 2


def test_a_list_that_names_ranks_beyond_what_manifests_state_is_rejected():
    found = find_world_size(tree([stated(0, 2)], {0: [0, 1], 1: [1, 6]}))
    assert found.ranks == 2
    assert list(found.rejected_lists) == ["ckpt_dir1/group_info.pb"]
    assert "another world" in found.rejected_lists["ckpt_dir1/group_info.pb"]


def test_files_alone_bound_it_from_below():
    found = find_world_size(tree([slice_file(0), slice_file(2)], {}))
    assert (found.ranks, found.source, found.guessed) == (3, "the ranks that have files", True)


def test_lists_name_ranks_without_files():
    found = find_world_size(tree([slice_file(0)], {0: [0, 5]}))
    assert (found.ranks, found.guessed) == (6, True)
    assert found.source == "the ranks listed in ckpt_dir0/group_info.pb"


def test_a_device_matrix_bounds_it_by_the_last_stage_that_is_named():
    found = find_world_size(with_strategies([0], strategy(0, 4)))
    assert (found.ranks, found.source, found.guessed) == (4, "the device matrix in ckpt_dir0/strategy.ckpt", True)
    assert size(with_strategies([0], strategy(0, 4, [1]))) == 8


def test_of_device_matrices_the_most_frequent_counts():
    files = [strategy(0, 4), strategy(1, 4), strategy(2, 12)]
    assert size(with_strategies([0, 1, 2], *files)) == 4


def test_a_stray_rank_beyond_the_stages_makes_no_further_stage():
    assert size(with_strategies([0, 1, 9], strategy(0, 4))) == 4
    assert size(with_strategies([0, 1, 4, 5], strategy(0, 4))) == 6


def test_a_list_across_stages_up_to_ranks_that_nobody_has_is_rejected():
    lists = [group_file(0, [0, 9])]
    found = find_world_size(with_strategies(range(4), strategy(0, 4), lists=lists))
    assert found.ranks == 4
    assert "different stages of 4 devices" in found.rejected_lists["ckpt_dir0/group_info.pb"]
    inside = find_world_size(with_strategies(range(4), strategy(0, 4), lists=[group_file(0, [6, 7])]))
    assert (inside.ranks, inside.rejected_lists) == (8, {})


def test_an_absurd_number_is_refused():
    with pytest.raises(ContradictionError, match="--world-size"):
        find_world_size(tree([slice_file(0)], {0: [0, 1 << 20]}))
    assert size(tree([slice_file(0)], {0: [0, (1 << 20) - 1]})) == 1 << 20


def test_an_empty_tree_has_no_ranks():
    assert size(Inventory("/tree")) == 0


@pytest.mark.parametrize("there", [(), range(4), range(4, 8)])
def test_the_strategy_file_of_the_last_stage_counts_although_no_rank_of_it_has_files(there):
    files = [strategy(rank, 4, [rank // 4]) for rank in range(8)]
    found = find_world_size(with_strategies(there, *files))
    assert (found.ranks, found.source) == (8, "the device matrix in ckpt_dir4/strategy.ckpt")


@pytest.mark.parametrize("layout", ["dp2_mp4", "dp4_mp2_opt2", "dp4_mp2_optfull"])
def test_strategy_files_and_rank_lists_of_the_compiler_state_a_world_of_one_stage_together(layout):
    found = find_world_size(api.scan(FIXTURES / layout))
    assert (found.ranks, found.guessed) == (8, False)
    assert found.source == "the strategy files and the rank lists"


def test_a_pipeline_whose_lists_name_no_other_stage_may_lack_one():
    seen = api.scan(FIXTURES / "dp2_mp2_pp2")
    assert (find_world_size(seen).ranks, find_world_size(seen).guessed) == (8, True)
    left = replace(
        seen,
        ranks=seen.ranks[:4],
        slices=tuple(file for file in seen.slices if file.rank < 4),
        group_files=tuple(file for file in seen.group_files if file.rank < 4),
        strategy_files=tuple(file for file in seen.strategy_files if file.rank < 4),
    )
    assert (find_world_size(left).ranks, find_world_size(left).guessed) == (4, True)


def pipeline(stages, devices, ranks=None, *, change=lambda file: file):
    """A tree of a pipeline each of whose lists names one rank of each stage."""
    there = range(stages * devices) if ranks is None else ranks
    lists = []
    for rank in there:
        column = tuple(range(rank % devices, stages * devices, devices))
        listed = group_file(rank, [rank])
        lists.append(change(replace(listed, info=replace(listed.info, groups=(RankGroup("column", column),)))))
    return with_strategies(there, *(strategy(rank, devices, [rank // devices]) for rank in there), lists=lists)


def test_a_pipeline_whose_lists_name_a_rank_of_each_stage_states_its_world():
    found = find_world_size(pipeline(4, 4))
    assert (found.ranks, found.source, found.guessed) == (16, "the strategy files and the rank lists", False)
    assert not find_world_size(pipeline(4, 4, [0, 1, 5, 13])).guessed


def test_where_its_last_stage_is_gone_it_is_guessed():
    assert find_world_size(pipeline(4, 4, range(12))).guessed


@pytest.mark.parametrize(
    "change",
    [
        lambda file: replace(file, info=None, problem="cut") if file.rank == 2 else file,
        lambda file: replace(file, info=replace(file.info, restore_ranks=(3, 9))) if file.rank == 3 else file,
        lambda file: replace(file, info=replace(file.info, restore_ranks=(5,))) if file.rank == 4 else file,
    ],
    ids=["a list is damaged", "a list crosses stages", "a list names others than its owner"],
)
def test_a_list_that_is_missing_or_contradicts_leaves_a_guess(change):
    assert find_world_size(pipeline(4, 4, change=change)).guessed


def test_strategy_files_that_disagree_leave_a_guess():
    whole = pipeline(2, 4)
    other = replace(whole, strategy_files=(*whole.strategy_files[:-1], strategy(7, 8)))
    assert not find_world_size(whole).guessed
    assert find_world_size(other).guessed
    misplaced = replace(whole, strategy_files=(strategy(0, 4, [1]), *whole.strategy_files[1:]))
    assert find_world_size(misplaced).guessed


@pytest.mark.parametrize(
    ("group", "devices", "guessed"), [((0, 1), 4, False), ((0, 1, 2, 3), 4, True), ((4, 5, 6, 7), 4, True)]
)
def test_one_stage_whose_lists_name_a_group_as_large_as_a_stage_may_lack_others(group, devices, guessed):
    layouts = tuple(Layout(name, (devices,), ((0,),)) for name in ("moments.w", "w"))
    files = [replace(strategy(rank, devices, [0]), strategy=Strategy((0,), 1, layouts)) for rank in range(devices)]
    lists = [
        replace(one, info=replace(one.info, groups=(RankGroup("some", group),)))
        for one in (group_file(rank, [rank]) for rank in range(devices))
    ]
    assert find_world_size(with_strategies(range(devices), *files, lists=lists)).guessed == guessed
