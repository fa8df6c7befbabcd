"""What is left of a tree after the files of ranks are gone."""

from dataclasses import replace

from ms_recover.model.inventory import (
    GroupFile,
    Note,
    OrphanManifest,
    RankPath,
    SetAside,
    StrategyFile,
    UnhealthySlice,
)
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Strategy
from ms_recover.planning.tree.lost_files import inventory_without
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import STEP, pairs, slice_file, tree


def test_slices_and_rank_lists_in_the_directory_of_a_rank_go_with_it():
    found = inventory_without(tree([slice_file(rank) for rank in range(4)], pairs(4)), {1, 2}, 4)
    assert found.ranks == (0, 3)
    assert [file.rank for file in found.slices] == [0, 3]
    assert [file.rank for file in found.group_files] == [0, 3]


def test_files_in_a_directory_of_all_stay_and_those_of_a_rank_without_a_slice_go():
    everything = Strategy((0,), 0, ())
    made = replace(
        tree([slice_file(rank) for rank in (0, 1)], {}),
        strategy_files=(
            StrategyFile(1, "strategy/ckpt_strategy_rank_1.ckpt", everything),
            StrategyFile(2, "ckpt_dir2/strategy.ckpt", everything),
        ),
        unhealthy=(
            UnhealthySlice(prefix="test", step=STEP, path="ckpt_dir2/health_ckpts.json"),
            UnhealthySlice(prefix="test", step=STEP, path="health_ckpts.json"),
        ),
    )
    found = inventory_without(made, {1, 2}, 3)
    assert [one.path for one in found.strategy_files] == ["strategy/ckpt_strategy_rank_1.ckpt"]
    assert [one.path for one in found.unhealthy] == ["health_ckpts.json"]


def test_what_was_set_aside_or_denied_goes_with_its_rank():
    note = Note("ckpt_dir1", "permission denied")
    aside = [SetAside(rank=rank, step=STEP, path=f"{rank}", aside="a", manifest=None) for rank in range(3)]
    made = replace(tree([slice_file(0)], {}), denied=((1, note), (2, note)), set_aside=tuple(aside))
    found = inventory_without(made, {1}, 3)
    assert (found.denied, [file.rank for file in found.set_aside]) == (((2, note),), [0, 2])


def test_rank_lists_show_the_directories_of_ranks_that_have_no_slice():
    """A list of no rank, or at a place that names none, shows no directory."""
    lists = [
        GroupFile(0, "lists_0/group_info.pb", RankPath(("lists_", "/group_info.pb")), None),
        GroupFile(None, "given/group_info.pb", None, None),
        GroupFile(1, "one/group_info.pb", None, None),
    ]
    made = replace(
        tree([slice_file(0)], {}),
        group_files=tuple(lists),
        strategy_files=tuple(
            StrategyFile(rank, f"{folder}/strategy.ckpt", Strategy((0,), 0, ()))
            for rank, folder in ((2, "lists_2"), (1, "one"), (1, "given"), (0, "lists_0"))
        ),
    )
    found = inventory_without(made, {1, 2}, 3)
    assert [file.path for file in found.strategy_files] == ["given/strategy.ckpt", "lists_0/strategy.ckpt"]
    assert [file.path for file in found.group_files] == ["lists_0/group_info.pb", "given/group_info.pb"]


def test_the_slice_of_a_rank_goes_from_a_directory_of_all():
    place = RankPath(("checkpoint/rank_", f"-{STEP}.ckpt"))
    slices = [replace(slice_file(rank), place=place) for rank in range(3)]
    orphan = OrphanManifest(rank=1, step=STEP, place=place, prefix="rank_1")
    found = inventory_without(replace(tree(slices, {}), orphans=(orphan,)), {1}, 3)
    assert [file.rank for file in found.slices] == [0, 2]
    assert found.orphans == ()


def test_a_tree_of_which_the_last_ranks_are_lost_keeps_its_number_of_ranks():
    inventory, options = TreeFacts(tree([slice_file(rank) for rank in range(4)], pairs(4)), PlanOptions()).without({3})
    assert options.world_size == 4
    assert TreeFacts(inventory, options).world(STEP).ranks == 4
