"""group_info.pb: read, refused by name of what it is, written as MindSpore writes it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ms_recover.errors import FormatError, InputError, MissingInputError
from ms_recover.formats import reading
from ms_recover.formats.group_info import (
    MAX_RANK,
    encode_group_info,
    read_group_info,
)
from ms_recover.model.groups import GroupInfo, RankGroup

Put = Callable[..., Path]


def fixture_files(data: Path) -> list[Path]:
    files = sorted((data / "fixtures").glob("*/ckpt_dir*/group_info.pb"))
    assert len(files) == 32
    return files


def test_every_fixture_says_what_mindspore_said(data: Path) -> None:
    for path in fixture_files(data):
        rank = int(path.parent.name.removeprefix("ckpt_dir"))
        truth = json.loads((path.parents[1] / "truth" / f"rank_{rank}.json").read_text())
        info = read_group_info(path, owner=rank, world_size=8)
        assert list(info.restore_ranks) == truth["group"], path


def test_every_fixture_round_trips_byte_for_byte(data: Path) -> None:
    for path in fixture_files(data):
        assert encode_group_info(read_group_info(path)) == path.read_bytes(), path


def test_groups_are_read(data: Path) -> None:
    info = read_group_info(data / "fixtures" / "dp2_mp4" / "ckpt_dir0" / "group_info.pb")
    assert info == GroupInfo(
        (0, 4), (RankGroup("4-6301172352641561019", (0, 1, 2, 3)), RankGroup("2-16453000547691086251", (0, 4)))
    )


@pytest.mark.mindspore
def test_mindspore_reads_what_we_write(written_now: tuple[Path, dict[str, Any]]) -> None:
    _, oracle = written_now
    assert oracle["group_files"] == {"restore_list.pb": [1, 5], "full.pb": [0, 300]}


# --- refusals -------------------------------------------------------------------------------------------------------


def test_other_files_are_refused_by_name(data: Path, put: Put, tmp_path: Path) -> None:
    folder = data / "fixtures" / "dp2_mp4" / "ckpt_dir0"
    for path, kind in (
        (folder / "strategy.ckpt", "a strategy file"),
        (folder / "test-1_77.ckpt", "a slice"),
        (data / "formats" / "encrypted_AES-GCM.ckpt", "an encrypted slice"),
        (data / "formats" / "model.safetensors", "a safetensors file"),
        (data / "formats" / "oracle.json", "a JSON file"),
        (put(b"", "empty.pb"), "the file is empty"),
        (put(bytes(100), "zeros.pb"), "zeros where it should begin"),
        (put(bytes(range(255, 0, -1)), "garbage.pb"), "of no kind known here"),
        (put(b"\x08\x01\x22\x05\x0a\x03abc", "graph.pb"), "a graph.meta"),
        (tmp_path, "this is a directory"),
    ):
        with pytest.raises(FormatError) as caught:
            read_group_info(path)
        assert str(caught.value).startswith(f"{path}: "), path
        assert kind in str(caught.value), path


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"no\.pb: no such file; a group_info\.pb was expected there"):
        read_group_info(tmp_path / "no.pb")


def test_every_truncation_is_refused(data: Path, put: Put) -> None:
    whole = (data / "fixtures" / "dp2_mp2_pp2" / "ckpt_dir3" / "group_info.pb").read_bytes()
    for end in range(len(whole)):
        with pytest.raises(FormatError, match=r"net-1_1\.ckpt: "):
            read_group_info(put(whole[:end]))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda w: w.message(1, w.message(1, b"2-7") + w.message(2, w.ranks(0, 1))), "a required field is missing"),
        (lambda w: w.message(2, b""), "its restore list is empty"),
        (lambda w: w.message(2, w.ranks(1, 2, 1)), "restore list names rank 1 twice"),
        (lambda w: w.message(2, w.ranks(0, MAX_RANK)), "restore list names rank 16777216, ranks go from 0 to 16777215"),
        (lambda w: w.message(2, w.ranks(0, 0xFFFFFFFF)), "restore list names rank 4294967295"),
        (lambda w: w.message(2, w.ranks(-1, 0)), "bytes that MindSpore does not write there"),
        (lambda w: w.message(2, w.ranks(0, 1 << 32)), "bytes that MindSpore does not write there"),
        (lambda w: w.message(2, w.ranks(0)) * 2, "bytes that MindSpore does not write there"),
        (lambda w: w.message(2, w.ranks(0)) + b"\x18\x01", "bytes that MindSpore does not write there"),
        (lambda w: w.message(2, w.ranks(0) + b"\x10\x01"), "bytes that MindSpore does not write there"),
        (
            lambda w: w.message(1, w.message(1, b"2-7") + w.message(2, w.ranks(3, 3))) + w.message(2, w.ranks(3)),
            "its group '2-7' names rank 3 twice",
        ),
        (
            lambda w: w.message(1, w.message(1, b"\xff\xfe") + w.message(2, w.ranks(0))) + w.message(2, w.ranks(0)),
            "cannot be decoded",
        ),
    ],
)
def test_contents_that_cannot_be_meant(wire: Any, put: Put, make: Callable[[Any], bytes], reason: str) -> None:
    path = put(make(wire), "group_info.pb")
    with pytest.raises(FormatError) as caught:
        read_group_info(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert reason in str(caught.value)
    assert isinstance(caught.value, InputError)


def test_owner_and_world_size(wire: Any, put: Put) -> None:
    path = put(wire.message(2, wire.ranks(1, 5)))
    assert read_group_info(path, owner=5, world_size=6).restore_ranks == (1, 5)
    with pytest.raises(FormatError, match=r"restore list \[1, 5\] does not name rank 0, to which the file belongs"):
        read_group_info(path, owner=0)
    with pytest.raises(FormatError, match="restore list names rank 5, ranks go from 0 to 4"):
        read_group_info(path, world_size=5)


def test_a_long_list_is_not_printed_whole(wire: Any, put: Put) -> None:
    path = put(wire.message(2, wire.ranks(*range(1, 5000))))
    with pytest.raises(FormatError, match="does not name rank 0") as caught:
        read_group_info(path, owner=0)
    assert len(str(caught.value)) < 400


def test_large_files_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "group_info.pb"
    path.touch()
    os.truncate(path, reading.MAX_SMALL_FILE + 1)
    monkeypatch.setattr(os, "pread", lambda *_: pytest.fail("the file was read"))
    with pytest.raises(FormatError, match=r"16777217 bytes, and a group_info\.pb never has more than 16777216"):
        read_group_info(path)
