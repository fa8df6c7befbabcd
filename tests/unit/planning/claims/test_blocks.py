"""Blocks: parameters that are cut alike, and the ranks that hold the same part of them."""

from ms_recover.model.strategy import Layout
from ms_recover.planning.claims.blocks import Block, find_blocks
from ms_recover.planning.claims.groups import merge_groups
from ms_recover.planning.claims.stages import Stages
from tests.support.inventories import group_file

NO_LISTS = merge_groups([])
PAIRS = merge_groups([group_file(0, [0, 2]), group_file(1, [1, 3])])


def layout(name, *axes, matrix=(2, 2)):
    return Layout(name, matrix, tuple((axis,) if axis is not None else () for axis in axes))


def stages(*layouts, stage=0):
    return Stages(4, {stage: {one.parameter: one for one in layouts}}, {stage: "strategy.ckpt"})


def blocks_of(ranks, told, groups):
    return [block for blocks in find_blocks(ranks, told, groups).values() for block in blocks]


def by_layout(ranks, told, groups=NO_LISTS):
    found = blocks_of(ranks, told, groups)
    return {(block.ranks, tuple(sorted(block.names))) for block in found if block.by_layout}


def by_list(ranks, told, groups):
    return [block for block in blocks_of(ranks, told, groups) if not block.by_layout]


def test_without_layouts_each_rank_list_is_a_block_of_all_parameters():
    assert find_blocks([3, 0, 1, 2], Stages(), PAIRS) == {
        "": [
            Block(ranks=(0, 2), names=None, source="ckpt_dir0/group_info.pb"),
            Block(ranks=(1, 3), names=None, source="ckpt_dir1/group_info.pb"),
        ]
    }


def test_a_rank_that_no_list_names_is_a_block_by_itself():
    (block,) = blocks_of([7], Stages(), PAIRS)
    assert (block.ranks, block.source) == ((7,), "")


def test_ranks_without_a_slice_are_in_no_block():
    assert [block.ranks for block in by_list([0, 1, 3], stages(layout("w", 0)), PAIRS)] == [(0,), (1, 3)]
    assert by_layout([0, 1, 3], stages(layout("w", 0))) == {((0,), ("w",)), ((1, 3), ("w",))}


def test_a_layout_gives_one_block_for_each_part():
    assert by_layout(range(4), stages(layout("w", 0))) == {((0, 2), ("w",)), ((1, 3), ("w",))}
    assert by_layout(range(4), stages(layout("w", 1))) == {((0, 1), ("w",)), ((2, 3), ("w",))}
    assert by_layout(range(4), stages(layout("w", None))) == {((0, 1, 2, 3), ("w",))}


def test_parameters_that_are_cut_alike_share_a_block_and_others_do_not():
    told = stages(layout("w", 0), layout("v", 0), layout("bias", None))
    assert by_layout(range(4), told) == {
        ((0, 2), ("v", "w")),
        ((1, 3), ("v", "w")),
        ((0, 1, 2, 3), ("bias",)),
    }


def test_no_block_holds_ranks_of_two_stages():
    told = Stages(
        2,
        {stage: {"w": layout("w", None, matrix=(2,))} for stage in (0, 1)},
        {stage: f"strategy{stage}.ckpt" for stage in (0, 1)},
    )
    assert by_layout(range(4), told) == {((0, 1), ("w",)), ((2, 3), ("w",))}
    found = find_blocks(range(4), told, NO_LISTS)
    assert {path: [block.ranks for block in found[path]] for path in found if path} == {
        "strategy0.ckpt": [(0, 1)],
        "strategy1.ckpt": [(2, 3)],
    }


def test_layouts_and_lists_are_used_together_layouts_first():
    found = find_blocks(range(4), stages(layout("w", 0)), PAIRS)
    assert {path: [block.by_layout for block in blocks] for path, blocks in found.items()} == {
        "strategy.ckpt": [True, True],
        "": [False, False],
    }
    assert list(found)[-1] == ""


def test_a_stage_without_strategy_file_has_blocks_of_lists_only():
    assert by_layout(range(4), stages(layout("w", 0), stage=1), PAIRS) == set()
