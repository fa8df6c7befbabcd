"""What is wrong beside slices that are rebuilt from layouts: strategy files, and rank lists that contradict them.

Every kind is a function that strikes one rank of a tree of `tests.support.cuts.make_struck_cut_tree`, as in
`tests.support.mishaps`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.strategy import encode_strategy, read_strategy
from ms_recover.model.strategy import Layout, Strategy
from tests.support.damage import STRUCK, noise, patch, piece_of, strategy_bytes
from tests.support.mishaps import Mishap, Victim, overwrite


def strategy_of(victim: Victim) -> Path:
    """Return the path of the strategy file beside a victim's slice."""
    return victim.path.with_name("strategy.ckpt")


def json_strategy(strategy: Strategy, shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Return the JSON form of a strategy file, as MindSpore writes it.

    Parameters
    ----------
    strategy : Strategy
        No dimension is cut over several axes.
    shapes : mapping of str to tuple of int
        Shapes of the whole tensors.
    """
    items = {
        layout.parameter: {
            "dev_matrix": list(layout.device_matrix),
            "tensor_map": [axes[0] if axes else -1 for axes in layout.tensor_map],
            "tensor_shape": list(shapes[layout.parameter]),
            "field": layout.field,
            "opt_weight_shard_step": layout.opt_shard_step,
            "opt_weight_shard_size": layout.opt_shard_size,
        }
        for layout in strategy.layouts
    }
    operators = {"MatMul-op0": {"stage": 0, "parallel_strategy": [[1]]}}
    told = {"current_stage": 2, "parallel_strategy_item": operators, "parallel_layout_item": items}
    return json.dumps(told).encode()


def _instead(data: Callable[[], bytes]) -> Mishap:
    def strike(victim: Victim) -> None:
        strategy_of(victim).write_bytes(data())

    return strike


def _in_json(victim: Victim) -> None:
    strategy = read_strategy(strategy_of(victim))
    shapes = {layout.parameter: (STRUCK.get(layout.parameter, 1) * layout.parts,) for layout in strategy.layouts}
    strategy_of(victim).write_bytes(json_strategy(strategy, shapes))


def _changed(change: Callable[[Layout], Layout]) -> Mishap:
    def strike(victim: Victim) -> None:
        strategy = read_strategy(strategy_of(victim))
        layouts = tuple(change(layout) for layout in strategy.layouts)
        strategy_of(victim).write_bytes(encode_strategy(replace(strategy, layouts=layouts)))

    return strike


def everywhere(strike: Mishap) -> Mishap:
    """Strike every rank that has the slice."""

    def strike_all(victim: Victim) -> None:
        for folder in sorted(victim.root.glob("ckpt_dir*")):
            strike(replace(victim, rank=int(folder.name.removeprefix("ckpt_dir"))))

    return strike_all


def _cut_otherwise(layout: Layout) -> Layout:
    return replace(layout, tensor_map=tuple(tuple(1 - axis for axis in axes) for axes in layout.tensor_map))


def _of_another_matrix(layout: Layout) -> Layout:
    return replace(layout, device_matrix=layout.device_matrix[::-1])


def _part_of_another_rank(victim: Victim) -> None:
    mine, theirs = victim.path.read_bytes(), victim.slice_of(victim.stranger, victim.step).read_bytes()
    for name in ("embedding", "moment1.dense.weight"):
        piece, other = piece_of(mine, name), piece_of(theirs, name)
        mine = patch(mine, piece.start, theirs[other.start : other.end])
    overwrite(victim.path, mine)


def _list_both(victim: Victim) -> None:
    for rank in (victim.rank, victim.stranger):
        path = victim.slice_of(rank, victim.step).with_name("group_info.pb")
        write_group_info(path, sorted((victim.rank, victim.stranger)))


STRATEGY_DAMAGE: Mapping[str, Mishap] = {
    "strategy file removed": lambda victim: strategy_of(victim).unlink(),
    "strategy file empty": _instead(lambda: b""),
    "strategy file cut": lambda victim: os.truncate(strategy_of(victim), strategy_of(victim).stat().st_size // 2),
    "strategy file garbage": _instead(lambda: noise(300)),
    "strategy file in JSON": _in_json,
    "strategy file of another network": _instead(lambda: strategy_bytes([3, 2], ["fc.weight"])),
    "strategy file of a larger world": _instead(lambda: strategy_bytes([4, 3], STRUCK)),
    "strategy file in which nothing is cut": _instead(lambda: strategy_bytes([3, 2], STRUCK)),
    "strategy file of another matrix": _changed(_of_another_matrix),
    "strategy file that cuts otherwise": _changed(_cut_otherwise),
    "all strategy files removed": everywhere(lambda victim: strategy_of(victim).unlink()),
    "all strategy files of another matrix": everywhere(_changed(_of_another_matrix)),
    "all strategy files cut otherwise": everywhere(_changed(_cut_otherwise)),
    "the part of another rank": _part_of_another_rank,
    "rank lists that contradict the layouts": _list_both,
}
"""Wrong, stale or missing strategy files, and what contradicts the right ones."""
