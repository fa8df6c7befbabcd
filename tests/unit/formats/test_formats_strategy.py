"""Strategy files: layouts, stages, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ms_recover.errors import FormatError, MissingInputError
from ms_recover.formats.proto import message_class
from ms_recover.formats.strategy import read_strategy
from ms_recover.model.strategy import Layout, Strategy

Put = Callable[..., Path]


def encoded(*layouts: tuple[str, list[int], list[list[int]]], stages: tuple[int, ...] = (0,)) -> bytes:
    """A strategy file; a layout is name, device matrix, tensor map messages."""
    message = message_class("ParallelStrategyMap")()
    message.current_stage = 2
    for number, stage in enumerate(stages):
        item = message.parallel_strategy_item.add()
        item.node_name = f"MatMul{number}"
        item.parallel_strategys.stage = stage
    for name, matrix, maps in layouts:
        item = message.parallel_layout_item.add()
        item.param_name = name
        item.parallel_layouts.dev_matrix.add().dim.extend(matrix)
        for axes in maps:
            item.parallel_layouts.tensor_map.add().dim.extend(axes)
        item.parallel_layouts.param_split_shape.add()
        item.parallel_layouts.indices_offset.add()
        item.parallel_layouts.field = 0
        item.parallel_layouts.opt_weight_shard_step = 4
        item.parallel_layouts.opt_weight_shard_size = -1
    data: bytes = message.SerializeToString()
    return data


def test_fixtures_have_the_layouts_of_the_compiler(data: Path) -> None:
    files = sorted((data / "fixtures").glob("*/ckpt_dir*/strategy.ckpt"))
    assert len(files) == 32
    for path in files:
        rank = int(path.parent.name.removeprefix("ckpt_dir"))
        truth = json.loads((path.parents[1] / "truth" / f"rank_{rank}.json").read_text())["layout"]
        strategy = read_strategy(path)
        staged = "pp2" in str(path)
        assert strategy.stages == ((rank // 4,) if staged else (0,))
        assert strategy.devices_per_stage == (4 if staged else 8)
        assert strategy.save_count == 2
        assert [layout.parameter for layout in strategy.layouts] == sorted(
            layout.parameter for layout in strategy.layouts
        )
        compared = 0
        for layout in strategy.layouts:
            if layout.parameter in truth:
                matrix, tensor_map = truth[layout.parameter][:2]
                assert list(layout.device_matrix) == matrix, (path, layout)
                assert [list(axes) or [-1] for axes in layout.tensor_map] == [[axis] for axis in tensor_map]
                compared += 1
        assert compared >= 6, path


def test_optimizer_shards_are_read(data: Path) -> None:
    def sizes(name: str) -> set[int]:
        strategy = read_strategy(data / "fixtures" / name / "ckpt_dir0" / "strategy.ckpt")
        return {layout.opt_shard_size for layout in strategy.layouts}

    assert sizes("dp2_mp4") == {0}
    assert 2 in sizes("dp4_mp2_opt2")
    assert -1 in sizes("dp4_mp2_optfull")


def test_nested_tensor_maps(put: Put) -> None:
    path = put(
        encoded(
            ("flat", [2, 2, 2], [[2, -1]]),
            ("two", [2, 2, 2], [[-1], [1, 0]]),
            ("one", [2, 2, 2], [[1, 0], []]),
            ("scalar", [8], [[]]),
        )
    )
    assert read_strategy(path) == Strategy(
        (0,),
        2,
        (
            Layout("flat", (2, 2, 2), ((2,), ()), 4, -1),
            Layout("one", (2, 2, 2), ((1, 0),), 4, -1),
            Layout("scalar", (8,), (), 4, -1),
            Layout("two", (2, 2, 2), ((), (1, 0)), 4, -1),
        ),
        operators=1,
    )


def test_stages_come_from_the_operators(put: Put) -> None:
    strategy = read_strategy(put(encoded(stages=(3, 1, 3))))
    assert (strategy.stages, strategy.operators, strategy.layouts) == ((1, 3), 3, ())


def test_other_files_are_refused_by_name(data: Path, put: Put, tmp_path: Path) -> None:
    folder = data / "fixtures" / "dp2_mp4" / "ckpt_dir0"
    for path, kind in (
        (folder / "group_info.pb", "a group_info.pb"),
        (folder / "test-1_77.ckpt", "a slice"),
        (put(b"", "empty"), "empty"),
        (put(b'{"current_stage": 2}', "strategy.json"), "only the protobuf form"),
        (put(b"\x08\x01\x22\x05\x0a\x03abc", "graph.meta"), "a graph.meta"),
        (tmp_path, "this is a directory"),
    ):
        with pytest.raises(FormatError) as caught:
            read_strategy(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert kind in str(caught.value)
    with pytest.raises(MissingInputError, match="a strategy file was expected"):
        read_strategy(tmp_path / "no")


def test_every_truncation_but_between_items_is_refused(data: Path, put: Put) -> None:
    whole = (data / "fixtures" / "dp2_mp4" / "ckpt_dir0" / "strategy.ckpt").read_bytes()
    taken = 0
    for end in range(len(whole)):
        try:
            read_strategy(put(whole[:end]))
        except FormatError:
            continue
        taken += 1
    assert taken == 12 + 36  # behind current_stage and behind every item but the last: protobuf cannot tell


@pytest.mark.parametrize(
    ("data_", "reason"),
    [
        (encoded(("w", [2, 0], [[0, -1]])), r"device matrix \[2, 0\] of 'w' cannot be meant"),
        (encoded(("w", [], [[-1]])), r"device matrix \[\] of 'w' cannot be meant"),
        (encoded(("w", [1 << 20, 1 << 20], [[-1]])), "cannot be meant"),
        (encoded(("w", [1] * 100, [[-1]])), "cannot be meant"),
        (encoded(("w", [2, 2], [[2]])), "'w' is split over axis 2 of 2"),
        (encoded(("w", [2, 2], [[-2]])), "'w' is split over axis -2 of 2"),
        (encoded(("w", [2, 2], [[-1, 0], [1]])), "'w' is split over axis -1 of 2"),
        (encoded(("w", [2], [[0]]), ("w", [2], [[0]])), "two layouts for one parameter"),
        (encoded() + b"\x20\x01", "bytes that MindSpore does not write there"),
        (b"\x08\x02\x1a\x03\x0a\x01w", "a required field is missing"),
    ],
)
def test_contents_that_cannot_be_meant(put: Put, data_: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        read_strategy(put(data_, "strategy.ckpt"))
    assert "strategy.ckpt: unusable strategy file: " in str(caught.value)


def test_a_layout_without_a_device_matrix(put: Put) -> None:
    message = message_class("ParallelStrategyMap")()
    message.current_stage = 1
    item = message.parallel_layout_item.add()
    item.param_name = "w"
    layouts: Any = item.parallel_layouts
    layouts.field = layouts.opt_weight_shard_step = layouts.opt_weight_shard_size = 0
    with pytest.raises(FormatError, match="'w' has 0 device matrices"):
        read_strategy(put(message.SerializeToString()))
