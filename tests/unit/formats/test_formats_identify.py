"""What a file is, from its first bytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ms_recover.errors import FormatError, MissingInputError
from ms_recover.formats.identify import DESCRIPTIONS, HEAD, classify, identify

Put = Callable[..., Path]


def test_committed_files(data: Path) -> None:
    for path in (data / "fixtures").glob("*/ckpt_dir*/*"):
        expected = {"group_info.pb": "group_info", "strategy.ckpt": "strategy"}.get(path.name, "ckpt")
        assert identify(path) == expected, path
    for path in (data / "formats").glob("*.ckpt"):
        assert identify(path) == ("encrypted-ckpt" if path.name.startswith("encrypted") else "ckpt"), path
    assert identify(data / "formats" / "model.safetensors") == "safetensors"
    assert identify(data / "formats" / "oracle.json") == "json"
    assert identify(data / "fixtures" / "dp2_mp4" / "truth" / "rank_0.json") == "json"


def test_a_slice_stays_a_slice_wherever_it_is_cut(data: Path) -> None:
    for name in ("types", "pieces", "cell", "crc"):
        whole = (data / "formats" / f"{name}.ckpt").read_bytes()
        for end in range(1, len(whole)):
            assert classify(whole[: min(end, HEAD)], end) == "ckpt", (name, end)


def test_a_group_file_stays_one_once_its_first_name_is_there(data: Path) -> None:
    whole = (data / "fixtures" / "dp2_mp4" / "ckpt_dir0" / "group_info.pb").read_bytes()
    for end in range(4 + 21, len(whole)):
        assert classify(whole[:end], end) == "group_info", end


def test_a_strategy_stays_one_once_its_first_item_begins(data: Path) -> None:
    whole = (data / "fixtures" / "dp2_mp4" / "ckpt_dir0" / "strategy.ckpt").read_bytes()
    for end in (2, *range(5, 400)):
        assert classify(whole[:end], end) == "strategy", end


def test_later_damage_does_not_matter(wire: Any, put: Put) -> None:
    record = wire.record("blocks.0.weight", (64, 64), content=bytes(64 * 64 * 4))
    path = put(record + record + b"\xff" * 1000)
    assert identify(path) == "ckpt"
    os.truncate(path, HEAD + 10)
    assert identify(path) == "ckpt"


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda w: b"", "empty"),
        (lambda w: bytes(10), "zeros"),
        (lambda w: w.message(2, w.ranks(0, 4)), "group_info"),
        (lambda w: w.message(2, b""), "group_info"),
        (lambda w: w.message(1, w.message(1, b"g") + w.message(2, b"")), "group_info"),
        (lambda w: w.message(1, w.message(1, b"g") + w.message(2, w.ranks(*range(9000)))), "group_info"),
        (lambda w: w.message(1, w.message(1, b"w") + w.message(2, b"\x0a\x01\x02\x12\x05Int32")), "ckpt"),
        (lambda w: w.record("w", ()), "ckpt"),
        (lambda w: w.record("w", (), content=b""), "ckpt"),
        (lambda w: w.record("n" * 4000), "ckpt"),
        (lambda w: w.record("n" * 9000), "ckpt"),
        (lambda w: w.map_record("m", w.tensor((1,), "int32", b"1234")), "ckpt"),
        (lambda w: b"\x08\x02", "strategy"),
        (lambda w: b"\x08\x02" + w.message(3, w.message(1, b"w")), "strategy"),
        (lambda w: b"\x08\x01\x22\xa8\x2c\x0a\x76", "graph.meta"),
        (lambda w: b"\x40\0\0\0\0\0\0\0" + b'{"__metadata__":{}', "safetensors"),
        (lambda w: b' \n{"a": 1}', "json"),
        (lambda w: b"\xef\xbb\xbf[1, 2]", "json"),
        (lambda w: b'{"caf\xc3', "json"),
        (lambda w: b'{"current_stage":2,"parallel_layout_item":{', "strategy"),
        (lambda w: b'{\n "parallel_layout_item": {', "strategy"),
        (lambda w: b"[WARNING] a log line", "unknown"),
        (lambda w: b'{"a": "\0"}', "unknown"),
        (lambda w: b"{\0\0\0", "unknown"),
        (lambda w: b"\nplain text\n", "unknown"),
        (lambda w: b"\x0a\x05\x0a\x01w\x00\x00\x00", "unknown"),
        (lambda w: b"\x0a\x05\x0a\x01w\x12\x02\x15\x00", "unknown"),
        (lambda w: b"\x0a\x05\x0a" + b"\xff" * 9 + b"\x7fw\x12\x00", "unknown"),
        (lambda w: b"PK\x03\x04 a zip archive", "unknown"),
        (lambda w: b"\xd8\x5e\x3a", "unknown"),
        (lambda w: b"\xd8\x5e\x3a\x7f", "encrypted-ckpt"),
    ],
)
def test_made_up_files(wire: Any, put: Put, make: Callable[[Any], bytes], kind: str) -> None:
    assert identify(put(make(wire))) == kind
    assert kind in DESCRIPTIONS


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no such file"):
        identify(tmp_path / "no")
    with pytest.raises(FormatError, match="this is a directory"):
        identify(tmp_path)
