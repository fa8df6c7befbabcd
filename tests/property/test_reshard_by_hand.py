"""Plans of a reshard carried out on bytes in memory: every part is right or named, and what was taken is cut back.

The contents of slices and of the output are regions of the same tensors, by their layouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from ms_recover.model.axes import Axes
from ms_recover.model.compose import ComposeAction
from ms_recover.model.inventory import Inventory, StrategyFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.reshard import ReshardOptions, ReshardPlan
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.reshard.actions import CutBack, action_of, bytes_read, cut_back, paths_taken, source_names
from ms_recover.verbs.reshard import plan_reshard
from tests.support.cuts import CutTensor
from tests.support.examples import examples
from tests.support.inventories import slice_file, tree

SEEDS = examples(160)
SHAPES = {"rows": (8, 4), "columns": (4, 8), "whole": (5,), "shards": (8, 2), "step": ()}
SIZES = (1, 2, 4)
RENAMED = (("rows", "lines"),)


@dataclass(frozen=True)
class Cut:
    """How one job of some data-parallel and tensor-parallel ranks cuts the tensors."""

    data: int
    tensor: int
    sharded: bool

    @property
    def layouts(self) -> dict[str, Layout]:
        """Layouts of all but ``step``."""
        matrix = (self.data, self.tensor)
        shards = {"opt_shard_step": self.tensor, "opt_shard_size": self.data} if self.sharded and self.data > 1 else {}
        return {
            "rows": Layout("rows", matrix, ((0,), ())),
            "columns": Layout("columns", matrix, ((), (0,))),
            "whole": Layout("whole", matrix, ((),)),
            "shards": Layout("shards", matrix, ((), ()), **shards),
        }

    def of(self, tensors: dict[str, npt.NDArray[np.int8]], rank: int) -> dict[str, npt.NDArray[np.int8]]:
        """Return what a rank holds of tensors."""
        return {name: CutTensor("Int8", one, self.layouts.get(name)).of(rank) for name, one in tensors.items()}


def drawn(source: Random) -> Cut:
    return Cut(source.choice(SIZES), source.choice(SIZES), source.random() < 0.5)


def inventory_of(cut: Cut, tensors: dict[str, npt.NDArray[np.int8]], lost: set[int]) -> Inventory:
    slices = []
    for rank in range(cut.data * cut.tensor):
        held = cut.of(tensors, rank)
        listed = tuple(Parameter(name, "Int8", one.shape, one.size) for name, one in held.items())
        slices += [replace(slice_file(rank), parameters=listed)] if rank not in lost else []
    strategy = Strategy((0,), 1, tuple(cut.layouts.values()))
    files = tuple(
        StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", strategy, "d") for rank in range(cut.data * cut.tensor)
    )
    return replace(tree(slices, {}), strategy_files=files)


def assembled(
    action: ComposeAction, held: dict[int, dict[str, bytes]], names: Mapping[str, str] | None = None
) -> dict[str, bytes]:
    """Carry out an action on the contents of its sources by rank; every source that may give a piece gives the same."""
    made = {}
    for one in action.parameters:
        out, written = bytearray(one.parameter.nbytes), bytearray(one.parameter.nbytes)
        for piece in one.pieces:
            for source in (piece.source, *piece.alternatives):
                name = one.parameter.name
                contents = held[action.sources[source].rank][names[name] if names is not None else name]
                for start, target in piece.runs:
                    out[target : target + piece.runs.length] = contents[start : start + piece.runs.length]
                    if source == piece.source:
                        for at in range(target, target + piece.runs.length):
                            written[at] += 1
        assert set(written) <= {1}, one.parameter.name
        made[one.parameter.name] = bytes(out)
    return made


def planned(seed: int) -> tuple[Cut, Cut, dict[str, npt.NDArray[np.int8]], set[int], ReshardPlan]:
    """Return how source and target are cut, the tensors, the lost ranks, and the plan; some rename ``rows``."""
    source = Random(seed)
    here, there = drawn(source), drawn(source)
    there = replace(there, sharded=here.sharded and here.data > 1, tensor=there.tensor if here.tensor > 1 else 1)
    draw = np.random.default_rng(seed)
    tensors = {name: draw.integers(-128, 127, shape, np.int8) for name, shape in SHAPES.items()}
    ranks = here.data * here.tensor
    lost = set(source.sample(range(ranks), min(source.choice((0, 0, 1, 2)), ranks - 1)))
    shards = there.data if there.sharded else 0
    wanted = ReshardOptions(
        axes=Axes.parse(f"dp={there.data},tp={there.tensor}"),
        optimizer_shards=shards,
        rename=RENAMED if seed % 3 == 0 else (),
    )
    plan = plan_reshard(
        inventory_of(here, tensors, lost), "/nowhere", wanted, PlanOptions(quick=True, world_size=ranks)
    )
    return here, there, tensors, lost, plan


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_every_part_is_right_or_named_and_what_was_taken_is_cut_back(first: int) -> None:
    for seed in range(first, min(first + 20, SEEDS)):
        here, there, tensors, lost, plan = planned(seed)
        ranks = range(here.data * here.tensor)
        held = {rank: {n: one.tobytes() for n, one in here.of(tensors, rank).items()} for rank in ranks}
        assert len(plan.files) == there.data * there.tensor
        gone = {missing.parameter for missing in plan.missing}
        old = source_names(plan)
        assert old == {"lines" if name == "rows" and seed % 3 == 0 else name: name for name in SHAPES}
        made: dict[int, dict[str, bytes]] = {}
        wrong: dict[int, set[str]] = {}
        for number, file in enumerate(plan.files):
            action = action_of(plan, file)
            assert lost.isdisjoint(replica.rank for replica in action.sources)
            made[number] = {old[name]: one for name, one in assembled(action, held, old).items()}
            right = {name: one.tobytes() for name, one in there.of(tensors, file.rank).items()}
            wrong[number] = {name for name in right if made[number].get(name) != right[name]}
            assert wrong[number] <= gone, seed  # by the names of the source
            assert (action.kind == "partial") == bool(wrong[number]), seed
        assert set(bytes_read(plan)) <= set(range(len(plan.sources)))
        assert paths_taken(plan) <= {one.replica.path for one in plan.sources if one.replica.rank not in lost}
        back = CutBack(plan)
        for number in back.sources:
            source = plan.sources[number].replica
            action, names, casts = cut_back(back, number, lambda file, like=source: replace(like, rank=file))
            assert (dict(names), casts) == ({name: new for new, name in old.items() if name in names}, {})
            for name, contents in assembled(action, made).items():
                assert contents == held[source.rank][name], (seed, name)
        for number in made:
            compared = list(back.compared_with(number))
            assert {moved.source_name for moved, _ in compared} == SHAPES.keys() - wrong[number], seed
            assert all(made[other][moved.source_name] == made[number][moved.source_name] for moved, other in compared)
