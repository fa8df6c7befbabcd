"""Parts of parameters that lie where one would not look first."""

from dataclasses import replace

import pytest

from ms_recover.model.compose import ComposeAction
from ms_recover.model.inventory import Inventory, RankPath, SliceFile, StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from tests.support.plans import make_plan

STEP = Step(1, 8)
PLACE = RankPath(("ckpt_dir", "/test-1_8.ckpt"))
ROWS = Layout("w", (4,), ((0,), ()))


def inventory(shapes, layouts=(ROWS,)):
    """Return slices of int8 parameters; `shapes` tells for each rank the shape of each parameter."""
    slices = tuple(
        SliceFile(rank, STEP, PLACE, "test", 1, 1, tuple(Parameter(n, "Int8", s, size(s)) for n, s in named.items()))
        for rank, named in shapes.items()
    )
    strategy = Strategy((0,), 2, tuple(layouts))
    strategies = tuple(StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", strategy) for rank in shapes)
    return Inventory("/t", tuple(shapes), slices, strategy_files=strategies)


def size(shape):
    count = 1
    for one in shape:
        count *= one
    return count


def plan(shapes, layouts=(ROWS,)):
    return make_plan(inventory(shapes, layouts), PlanOptions(world_size=4))


def test_a_whole_tensor_gives_every_part():
    local = {"w": (2, 3)}
    made = plan({1: local, 2: local, 3: {"w": (8, 3)}})
    [action] = made.actions
    assert isinstance(action, ComposeAction)
    [piece] = action.parameters[0].pieces
    assert action.sources[piece.source].rank == 3
    assert (piece.runs.source, piece.runs.target, piece.runs.length, piece.runs.loops) == (0, 0, 6, ())
    assert piece.source_bytes == 24


def test_a_whole_tensor_gives_a_part_from_its_middle():
    local = {"w": (2, 3)}
    made = plan({0: local, 3: {"w": (8, 3)}, 2: local})
    [piece] = made.actions[0].parameters[0].pieces
    assert (piece.runs.source, piece.runs.length) == (6, 6)


def test_a_parameter_without_layout_that_one_rank_alone_has_may_be_its_own():
    shape = {"w": (2, 3), "local": (5,), "global_step": ()}
    replicated = Layout("w", (4,), ((), ()))
    assert plan({1: shape, 2: shape}, [replicated]).recoverable
    made = plan({1: shape}, [replicated])
    assert [(gone.parameter, "rank 1 alone has it" in gone.reason) for gone in made.ranks[0].missing] == [
        ("local", True)
    ]


def test_a_layout_that_does_not_fit_is_no_layout():
    shape = {"w": (2, 3)}
    made = plan({1: shape, 2: shape, 3: shape}, [Layout("w", (4,), ((0,), (), ()))])
    [gone] = made.ranks[0].missing
    assert "does not fit" in gone.reason


@pytest.mark.parametrize("split", [(1, 2, 3, 4), (4, 1, 1, 4)])
def test_embeddings_cut_by_hand_have_parts_of_their_own_sizes(split):
    layouts = [Layout("table", (2, 4), ((0,), ()), split_shape=split)]
    shapes = {rank: {"table": (split[rank % 4], 3)} for rank in range(8) if rank != 2}
    made = make_plan(inventory(shapes, layouts), PlanOptions(world_size=8))
    [action] = made.actions
    assert (action.source_rank, action.bytes) == (6, 1)
    without = {rank: shape for rank, shape in shapes.items() if rank != 6}
    gone = make_plan(inventory(without, layouts), PlanOptions(world_size=8)).ranks[2].missing
    start = sum(split[:2])
    assert [(one.region, one.bytes) for one in gone] == [(((start, start + split[2]), (0, 3)), 3 * split[2])]


def test_one_strategy_file_of_a_larger_world_is_outvoted():
    shape = {"w": (2, 3)}
    found = inventory({1: shape, 2: shape, 3: shape}, [Layout("w", (4,), ((), ()))])
    stale = StrategyFile(2, "ckpt_dir2/strategy.ckpt", Strategy((0,), 2, (Layout("w", (12,), ((0,), ())),)))
    files = (found.strategy_files[0], stale, found.strategy_files[2])
    made = make_plan(replace(found, strategy_files=files))
    assert (made.world_size, made.recoverable) == (4, True)
    assert [(action.rank, action.evidence) for action in made.actions] == [(0, "layout")]
