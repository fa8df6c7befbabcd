"""Sound slices: what the walk finds in them, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ms_recover.formats.ckpt import parse_header
from ms_recover.formats.header import find_problem, read_header
from ms_recover.model.slices import ByteRange, Parameter

Put = Callable[..., Path]
REAL = ["types", "crc", "async", "cell", "pieces", "pieces_crc", "pieces_async"]


def answers(path: Path) -> dict[str, Any]:
    """What the walk says, in the oracle's form."""
    header = read_header(path)
    assert header.problems == ()
    assert header.kind == "ckpt"
    return {parameter.name: [parameter.dtype, list(parameter.shape)] for parameter in header.parameters}


@pytest.mark.parametrize("name", [*REAL, "zero_size_async"])
def test_agrees_with_what_mindspore_loaded(data: Path, name: str) -> None:
    oracle = json.loads((data / "formats" / "oracle.json").read_text())
    assert answers(data / "formats" / f"{name}.ckpt") == oracle[f"{name}.ckpt"]


@pytest.mark.mindspore
def test_agrees_with_the_installed_mindspore(written_now: tuple[Path, dict[str, Any]]) -> None:
    folder, oracle = written_now
    for name in [*REAL, "zero_size_async"]:
        assert answers(folder / f"{name}.ckpt") == oracle[f"{name}.ckpt"], name


@pytest.mark.mindspore
def test_the_committed_files_are_what_mindspore_still_writes(
    written_now: tuple[Path, dict[str, Any]], data: Path
) -> None:
    folder, _ = written_now
    for name in ("pieces", "pieces_crc", "pieces_async", "async"):
        assert (folder / f"{name}.ckpt").read_bytes() == (data / "formats" / f"{name}.ckpt").read_bytes(), name


def test_fixture_slices_have_the_shapes_of_the_compiler(data: Path) -> None:
    slices = sorted((data / "fixtures").glob("*/ckpt_dir*/*_77.ckpt"))
    assert len(slices) >= 32
    for path in slices:
        rank = path.parent.name.removeprefix("ckpt_dir")
        shapes = json.loads((path.parents[1] / "truth" / f"rank_{rank}.json").read_text())["local_shapes"]
        header = read_header(path)
        assert header.problems == (), path
        assert len(header.parameters) >= 24, path
        for parameter in header.parameters:
            assert list(parameter.shape) == shapes.get(parameter.name, []), (path, parameter)
            assert parameter.name in shapes or parameter.name in ("epoch_num", "step_num")


def test_contents_are_where_the_ranges_say(wire: Any, put: Put) -> None:
    path = put(wire.record("a", (2,), content=b"01234567") + wire.record("b", (3,), "Int16", b"abcdef"))
    header = read_header(path)
    whole = path.read_bytes()
    assert [whole[r.start : r.end] for ranges in header.contents for r in ranges] == [b"01234567", b"abcdef"]
    assert header.parameters == (Parameter("a", "Float32", (2,), 8), Parameter("b", "Int16", (3,), 6))
    assert header.size == len(whole)


def test_pieces_are_joined_in_order(data: Path) -> None:
    header = read_header(data / "formats" / "pieces.ckpt")
    assert [parameter.nbytes for parameter in header.parameters] == [2560, 2560, 84]
    assert [[r.length for r in ranges] for ranges in header.contents] == [[1024, 1024, 512], [1024, 1024, 512], [84]]


def test_empty_pieces_belong_to_the_tensor_before_them(data: Path) -> None:
    header = read_header(data / "formats" / "pieces_async.ckpt")
    assert [r.length for r in header.contents[0]] == [2800, 0, 0]
    assert header.parameters[0] == Parameter("w0", "Float32", (1, 700), 2800)


def test_complex_is_known_although_mindspore_cannot_load_it(data: Path) -> None:
    assert answers(data / "formats" / "complex.ckpt") == {
        "of.complex64": ["Complex64", [2, 3]],
        "of.complex128": ["Complex128", [2, 3]],
    }


def test_dims_of_zero_stand_for_a_scalar_or_for_nothing(wire: Any, put: Put) -> None:
    path = put(wire.record("scalar", (0,), content=b"1234") + wire.record("none", (0,), content=b""))
    header = read_header(path)
    assert header.problems == ()
    assert [parameter.shape for parameter in header.parameters] == [(), (0,)]


def test_fields_may_come_in_any_order_and_dims_packed(wire: Any, put: Put) -> None:
    tensor = wire.message(3, b"abcdefgh" * 3) + wire.message(2, b"Float32") + wire.message(1, b"\x02\x03")
    path = put(wire.message(1, wire.message(2, tensor) + wire.message(1, b"late")) + wire.record("next"))
    header = read_header(path)
    assert header.problems == ()
    assert header.parameters[0] == Parameter("late", "Float32", (2, 3), 24)
    assert path.read_bytes()[header.contents[0][0].start :].startswith(b"abcdefgh")


def test_map_parameters_join_their_rows(wire: Any, put: Put) -> None:
    def chunk(rows: int) -> bytes:
        status = wire.tensor((rows,), "int32", bytes(4 * rows))
        values = wire.tensor((rows, 2), "float32", bytes(8 * rows))
        return wire.map_record("table", wire.tensor((rows,), "int64", bytes(8 * rows)), values, status)

    header = read_header(put(wire.record("before") + chunk(3) + chunk(1) + wire.record("after")))
    assert header.problems == ()
    assert header.parameters[1] == Parameter("table", "MapTensor(int64,float32,int32)", (4, 2), 80)
    assert [r.length for r in header.contents[1]] == [24, 24, 12, 8, 8, 4]


def test_crc_is_recognised_and_agrees(data: Path) -> None:
    for name in ("crc", "pieces_crc"):
        path = data / "formats" / f"{name}.ckpt"
        header = read_header(path)
        assert header.crc == int.from_bytes(path.read_bytes()[-10:], "big")
        assert find_problem(path, header) is None


def test_without_a_trailer_there_is_no_crc_to_check(data: Path) -> None:
    path = data / "formats" / "pieces.ckpt"
    header = read_header(path)
    assert header.crc is None
    assert find_problem(path, header) is None


def test_crc_leaves_out_map_parameters(wire: Any, put: Put) -> None:
    import zlib

    keys, values, status = (wire.tensor((1, 1), dtype, b"1234") for dtype in ("int32", "float32", "int32"))
    table = wire.map_record("table", keys, values, status)
    for before, after in ((b"", wire.record("a")), (wire.record("a"), wire.record("b")), (wire.record("a"), b"")):
        trailer = b"crc_num" + zlib.crc32(before + after).to_bytes(10, "big")
        path = put(before + table + after + trailer)
        assert find_problem(path, read_header(path)) is None


def test_crc_check_can_be_stopped(data: Path) -> None:
    path = data / "formats" / "crc.ckpt"
    problem = find_problem(path, read_header(path), stop=lambda: True)
    assert problem is not None
    assert "stopped" in problem


@pytest.mark.parametrize("mode", ["AES-GCM", "AES-CBC", "SM4-CBC"])
def test_encrypted_slices_are_named_as_such(data: Path, mode: str) -> None:
    header = read_header(data / "formats" / f"encrypted_{mode}.ckpt")
    assert (header.kind, header.encryption, header.problems) == ("encrypted-ckpt", mode, ())
    assert header.parameters == ()


@pytest.mark.mindspore
def test_mindspore_opens_what_we_call_encrypted(written_now: tuple[Path, dict[str, Any]]) -> None:
    folder, oracle = written_now
    for mode in ("AES-GCM", "AES-CBC", "SM4-CBC"):
        assert read_header(folder / f"encrypted_{mode}.ckpt").encryption == mode
        assert set(oracle[f"encrypted_{mode}.ckpt"]) == {"w0", "w1", "w2"}
    assert oracle["encrypted_crc.ckpt"] is None
    assert "CRC trailer" in read_header(folder / "encrypted_crc.ckpt").problems[0]


def test_any_path_like_will_do_whatever_the_suffix(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "net-1_1.tmp"
    path.write_bytes((data / "formats" / "async.ckpt").read_bytes())
    assert read_header(path) == read_header(str(path))
    assert read_header(path).problems == ()


def test_contents_are_skipped_not_read(wire: Any) -> None:
    tensor_head = b"".join(wire.number(1, dim) for dim in (512, 512)) + wire.message(2, b"Float32") + b"\x1a"
    parts: list[tuple[int, bytes]] = []
    at = 0
    length = 512 * 512 * 4
    for i in range(64):
        tensor = tensor_head + wire.varint(length)
        value = wire.message(1, b"w%d" % i) + b"\x12" + wire.varint(len(tensor) + length) + tensor
        head = b"\x0a" + wire.varint(len(value) + length) + value
        parts.append((at, head))
        at += len(head) + length
    asked: list[int] = []

    def read_at(offset: int, count: int) -> bytes:
        asked.append(count)
        out = bytearray(count)
        for start, head in parts:
            if start < offset + count and offset < start + len(head):
                for i, byte in enumerate(head, start):
                    if offset <= i < offset + count:
                        out[i - offset] = byte
        return bytes(out[: max(at - offset, 0)])

    header = parse_header(read_at, at)
    assert header.problems == ()
    assert len(header.parameters) == 64
    assert header.contents[0] == (ByteRange(parts[0][0] + len(parts[0][1]), length),)
    assert len(asked) <= 66
    assert max(asked) <= 4096


def test_no_descriptor_is_left_open(data: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for name in ("crc", "pieces", "encrypted_AES-GCM"):
        path = data / "formats" / f"{name}.ckpt"
        find_problem(path, read_header(path))
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.processes
def test_importing_the_readers_is_cheap() -> None:
    code = (
        "import sys, ms_recover.formats.ckpt, ms_recover.formats.group_info, ms_recover.formats.strategy;"
        "heavy = {name for name in sys.modules} & {'google.protobuf', 'numpy', 'mindspore', 'click', 'fsspec'};"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
