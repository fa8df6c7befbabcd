"""Who will hold what before the first checkpoint: by layouts, by rank lists, or by the axes."""

from dataclasses import replace

import pytest

from ms_recover.errors import MissingInputError
from ms_recover.model.axes import Axes
from ms_recover.model.inventory import Inventory, StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.audit.claimed import claimed_holders
from ms_recover.planning.tree.facts import gather_facts
from tests.support.inventories import group_file

EMPTY = Inventory("/tree", (), (), ())


def strategy(stage, stages=(0, 1)):
    """Return the strategy file of a stage of four ranks: a matrix cut over two of them, and a norm that is not."""
    layouts = (Layout("norm", (2, 2), ((),)), Layout("w", (2, 2), ((0,),)))
    return StrategyFile(
        4 * stage, f"strategy/{stage}.ckpt", Strategy((stage,), len(stages), layouts), f"digest {stage}"
    )


def claimed(*, files=(), lists=(), **options):
    inventory = replace(EMPTY, strategy_files=files, group_files=lists)
    return claimed_holders(gather_facts(inventory, PlanOptions(world_size=8, **options)))


def lists(*groups):
    return tuple(group_file(rank, group) for group in groups for rank in group)


def held(holders):
    return sorted((block.kind.stage, block.kind.names, block.holders) for block in holders.blocks)


BY_LAYOUTS = [
    (stage, names, tuple(4 * stage + rank for rank in ranks))
    for stage in (0, 1)
    for names, ranks in ((("norm",), (0, 1, 2, 3)), (("w",), (0, 2)), (("w",), (1, 3)))
]
PAIRS = lists((0, 2), (1, 3), (4, 6), (5, 7))


@pytest.mark.parametrize("others", [{}, {"lists": PAIRS}, {"axes": Axes.parse("dp=2,tp=2,pp=2")}])
def test_layouts_of_every_stage_say_more_than_anything_else(others):
    found = claimed(files=(strategy(0), strategy(1)), **others)
    assert held(found) == BY_LAYOUTS
    assert set(found.family) == {frozenset(ranks) for _, names, ranks in BY_LAYOUTS if names == ("w",)}
    assert (found.sure, found.missing, found.ranks) == (found.family, frozenset(), 8)
    assert {rank: len(blocks) for rank, blocks in found.parts.items()} == dict.fromkeys(range(8), 2)
    assert found.why[frozenset({0, 2})] == "w, which rank(s) 0, 2 alone hold"


def test_rank_lists_say_it_by_whole_slices_where_a_strategy_file_is_missing():
    found = claimed(files=(strategy(0),), lists=PAIRS)
    assert held(found) == [(0, (), group) for group in ((0, 2), (1, 3), (4, 6), (5, 7))]
    assert {block.kind.source for block in found.blocks} == {f"ckpt_dir{rank}/group_info.pb" for rank in (0, 1, 4, 5)}
    with pytest.raises(MissingInputError, match="the strategy file of stage 1 is missing, and no rank list says"):
        claimed(files=(strategy(0),))


def test_ranks_that_no_list_names_hold_their_slice_alone():
    found = claimed(lists=PAIRS[:2])
    assert held(found) == [(0, (), (0, 2)), *((0, (), (rank,)) for rank in (1, 3, 4, 5, 6, 7))]
    assert [block.kind.source for block in found.blocks if block.holders == (7,)] == ["no rank list names it"]


def test_axes_say_it_for_each_kind_of_parameter():
    found = claimed(axes=Axes.parse("dp=2,tp=4"), lists=lists((0, 4), (1, 5), (2, 6), (3, 7)))
    assert {names for _, names, _ in held(found)} == {("weights",), ("weights that are not cut",)}
    assert [ranks for _, names, ranks in held(found) if names == ("weights",)] == [(r, r + 4) for r in range(4)]


def test_what_would_say_it_is_named_where_nothing_does():
    with pytest.raises(
        MissingInputError, match=r"^no strategy file states .*; name strategy files with .* or the axes"
    ):
        claimed()
    other = StrategyFile(0, "other.ckpt", Strategy((0,), 2, (Layout("w", (2, 2), ((),)),)), "other")
    with pytest.raises(MissingInputError, match="cut parameters differently; name strategy files with"):
        claimed(files=(strategy(0), other))
    assert len(held(claimed(files=(strategy(0), other), lists=PAIRS))) == 4
