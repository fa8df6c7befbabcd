"""Strategy files: layouts, stages, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ms_recover.errors import FormatError, MissingInputError, UsageError
from ms_recover.formats.proto import message_class
from ms_recover.formats.strategy import encode_strategy, read_strategy
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
        (put(b'{"ranks": 2}', "other.json"), "a JSON file"),
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
        (encoded(("w", [2, 0], [[0, -1]])), r"device matrix \[2, 0\] of 'w' is invalid"),
        (encoded(("w", [], [[-1]])), r"device matrix \[\] of 'w' is invalid"),
        (encoded(("w", [1 << 20, 1 << 20], [[-1]])), "is invalid"),
        (encoded(("w", [1] * 100, [[-1]])), "is invalid"),
        (encoded(("w", [2, 2], [[2]])), "'w' is split over axis 2 of 2"),
        (encoded(("w", [2, 2], [[-2]])), "'w' is split over axis -2 of 2"),
        (encoded(("w", [2, 2], [[-1, 0], [1]])), "'w' is split over axis -1 of 2"),
        (encoded(("w", [2], [[0]]), ("w", [2], [[0]])), "two layouts for one parameter"),
        (encoded(("w", [2, 2], [[0, 0]])), "'w' is split over axis 0 twice"),
        (encoded(("w", [2, 2], [[-1] * 33])), "'w' has 33 dimensions"),
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


def json_file(layout: dict[str, Any] | None = None, **more: Any) -> bytes:
    """A strategy file as MindSpore's compiler writes it in JSON: keys sorted, no spaces."""
    plain = {"dev_matrix": [2, 2, 2], "field": 0, "opt_weight_shard_size": 0, "opt_weight_shard_step": 0}
    plain |= {"tensor_map": [-1, 1, 0], "tensor_shape": [32, 2, 32]}
    content = {
        "current_stage": 2,
        "parallel_layout_item": {"w1": plain | (layout or {})},
        "parallel_strategy_item": {"MatMul0": {"parallel_strategy": [[2, 1], [1, 4]], "stage": 3}},
    }
    return json.dumps(content | more, sort_keys=True, separators=(",", ":")).encode()


def test_the_json_form(put: Put) -> None:
    by_hand = {
        "tensor_map": [0, -1],
        "tensor_shape": [10, 4],
        "param_split_shape": [6, 4],
        "indices_offset": [0, 6],
        "field": 1,
        "opt_weight_shard_size": -1,
        "opt_weight_shard_step": 4,
    }
    for name in ("strategy.json", "strategy.ckpt"):
        assert read_strategy(put(json_file(), name)) == Strategy(
            (3,), 2, (Layout("w1", (2, 2, 2), ((), (1,), (0,)), tensor_shape=(32, 2, 32)),), operators=1
        )
    (layout,) = read_strategy(put(json_file(by_hand))).layouts
    assert layout == Layout("w1", (2, 2, 2), ((0,), ()), 4, -1, (6, 4), (0, 6), 1, (10, 4))
    spaced = json.dumps(json.loads(json_file()), indent=2).encode()
    assert read_strategy(put(spaced)) == read_strategy(put(json_file(), "other"))


@pytest.mark.parametrize(
    ("data_", "reason"),
    [
        (json_file()[:-1], "it is cut or damaged"),
        (json_file() + b"x", "it is cut or damaged"),
        (json_file() + b"\xff", "it is not UTF-8"),
        (json_file({"tensor_map": [0, -1]}), "3 dimensions in tensor_shape and 2 in tensor_map"),
        (json_file({"tensor_map": [0, -2, 1]}), "no tensor_map that can be meant"),
        (json_file({"tensor_map": [0, 3, -1]}), "'w1' is split over axis 3 of 3"),
        (json_file({"tensor_map": [0, 0, -1]}), "'w1' is split over axis 0 twice"),
        (json_file({"tensor_map": [0, True, -1]}), "no tensor_map that can be meant"),
        (json_file({"tensor_map": 0}), "no tensor_map that can be meant"),
        (json_file({"dev_matrix": [0]}), "the device matrix"),
        (json_file({"dev_matrix": None}), "no dev_matrix"),
        (json_file({"field": "0"}), "has an optimizer shard or a field that is not a number"),
        (json_file({"field": -1}), "field -1"),
        (json_file({"opt_weight_shard_size": -2}), "-2 optimizer shards"),
        (json_file({"opt_weight_shard_step": 1 << 40}), "does not fit into 32 bits"),
        (json_file({"param_split_shape": [1, 2], "indices_offset": [0]}), "is split by hand into"),
        (json_file({"param_split_shape": [-1], "indices_offset": [0]}), "no param_split_shape"),
        (json_file({"tensor_shape": [1.5, 2, 2]}), "the number 1.5, which is not whole"),
        (json_file({"tensor_shape": [float("nan"), 2, 2]}), "the number NaN"),
        (json_file().replace(b"32", b"1" * 5000), "it is damaged"),
        (json_file(parallel_layout_item=[1]), "parallel_layout_item is no object of objects"),
        (json_file(parallel_layout_item={"w": 1}), "parallel_layout_item is no object of objects"),
        (json_file(parallel_layout_item={"\ud800": {}}), "parallel_layout_item is no object of objects"),
        (json_file(parallel_strategy_item={"op": {"stage": -1}}), "its stages are invalid"),
        (json_file(parallel_strategy_item={"op": {}}), "its stages are invalid"),
        (json_file(current_stage="x"), "its stages are invalid"),
        (b'{"current_stage":1}', "names no operator and no parameter"),
        (b'{"current_stage":1,"current_stage":1}', "'current_stage' occurs twice"),
        (b'{"current_stage":' + b"[" * 100_000, "nested too deeply"),
        (b'{"current_stage":' + b"[" * 2_000_000, "too many entries"),
        (b'{"current_stage":[' + b"1," * 5_000_000, "too many entries"),
    ],
)
def test_json_that_cannot_be_meant(put: Put, data_: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        read_strategy(put(data_, "strategy.json"))
    assert "strategy.json: unusable strategy file: " in str(caught.value)
    assert len(str(caught.value)) < 1000


LAYOUTS = (
    Layout("bias", (2, 4), ((0,),), 0, 0),
    Layout("both", (2, 2, 2), ((1, 0),), 4, -1),
    Layout("by_hand", (2,), ((0,), ()), 0, 0, (6, 4), (0, 6), 1),
    Layout("scalar", (8,), ()),
    Layout("w1", (2, 2, 2), ((), (1, 0)), 4, 2),
    Layout("w2", (2, 2, 2), ((2,), (0,)), 2, -1),
)


def test_what_is_encoded_is_read_back(put: Put) -> None:
    for stages in ((), (1,), (0, 3)):
        strategy = Strategy(stages, 2, LAYOUTS, operators=len(stages))
        assert read_strategy(put(encode_strategy(strategy), f"strategy{len(stages)}")) == strategy


def test_real_files_are_encoded_as_their_layouts(data: Path, put: Put) -> None:
    for path in sorted((data / "fixtures").glob("*/ckpt_dir0/strategy.ckpt")):
        strategy = read_strategy(path)
        again = read_strategy(put(encode_strategy(strategy), "again.ckpt"))
        assert (again.layouts, again.stages, again.save_count) == (strategy.layouts, strategy.stages, 2)
        original, ours = message_class("ParallelStrategyMap")(), message_class("ParallelStrategyMap")()
        original.ParseFromString(path.read_bytes())
        ours.ParseFromString(encode_strategy(strategy))
        by_name = {item.param_name: item for item in original.parallel_layout_item}
        assert [by_name[item.param_name] for item in ours.parallel_layout_item] == list(ours.parallel_layout_item)


def test_what_cannot_be_encoded() -> None:
    for layout, reason in (
        (Layout("w", (2,), ((1,),)), "axis 1 of 1"),
        (Layout("w", (0,), ((0,),)), "device matrix"),
        (Layout("w", (2,), ((0,),), 1 << 40), "32 bits"),
        (Layout("w", (2,), ((0,),), tensor_shape=(4,)), "JSON form"),
    ):
        with pytest.raises(UsageError, match=reason):
            encode_strategy(Strategy((0,), 1, (layout,)))
    with pytest.raises(UsageError, match="one layout per parameter"):
        encode_strategy(Strategy((0,), 1, LAYOUTS[:1] * 2))


@pytest.mark.mindspore
def test_mindspore_reads_what_is_encoded(put: Put) -> None:
    pytest.importorskip("mindspore")
    from mindspore import build_searched_strategy
    from mindspore.parallel._parallel_serialization import _extract_layout_map

    path = put(encode_strategy(Strategy((0,), 2, LAYOUTS)), "strategy.ckpt")
    assert set(build_searched_strategy(str(path))) == {layout.parameter for layout in LAYOUTS}
    assert {name: told[:6] for name, told in _extract_layout_map(str(path)).items()} == {
        "bias": [[2, 4], [0], [], 0, 0, 0],
        "both": [[2, 2, 2], [[1, 0]], [], 0, 4, -1],
        "by_hand": [[2], [0, -1], [6, 4], 1, 0, 0],
        "scalar": [[8], [], [], 0, 0, 0],
        "w1": [[2, 2, 2], [[-1], [1, 0]], [], 0, 4, 2],
        "w2": [[2, 2, 2], [2, 0], [], 0, 2, -1],
    }
    same = put(json_file(), "strategy.json")
    (read,) = read_strategy(same).layouts
    assert _extract_layout_map(str(same))["w1"][:2] == [
        list(read.device_matrix),
        [axes[0] if axes else -1 for axes in read.tensor_map],
    ]
