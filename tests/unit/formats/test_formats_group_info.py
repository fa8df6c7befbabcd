"""group_info.pb: read, refused by name of what it is, written as MindSpore writes it."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ms_recover.errors import FormatError, InputError, MissingInputError, StorageError, UsageError
from ms_recover.file_names import TEMPORARY_SUFFIX
from ms_recover.formats import reading
from ms_recover.formats.group_info import MAX_RANK, encode_group_info, read_group_info, write_group_info
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


# --- writing --------------------------------------------------------------------------------------------------------


def test_written_files_read_back(tmp_path: Path) -> None:
    path = tmp_path / "group_info.pb"
    write_group_info(path, {7, 3, 300})
    assert read_group_info(path, owner=7) == GroupInfo((3, 7, 300))
    assert path.read_bytes() == b"\x12\x07\x08\x03\x08\x07\x08\xac\x02"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_group_info(path, [1], mode=0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_read_only_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "group_info.pb"
    path.write_bytes(b"old")
    path.chmod(0o400)
    write_group_info(path, [0, 1], mode=0o400)
    assert read_group_info(path).restore_ranks == (0, 1)


@pytest.mark.parametrize("ranks", [[], [1, 1], [-1], [MAX_RANK]])
def test_ranks_that_cannot_be_written(tmp_path: Path, ranks: list[int]) -> None:
    with pytest.raises(UsageError, match=r"no group_info\.pb can say that: its restore list"):
        write_group_info(tmp_path / "group_info.pb", ranks)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["write", "fchmod", "fsync", "replace"])
def test_a_failure_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "group_info.pb"
    path.write_bytes(b"old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "write":
        fdopen = os.fdopen

        def opened(descriptor: int, mode: str) -> Any:
            file = fdopen(descriptor, mode, buffering=0)
            return _FullDisk(file)

        monkeypatch.setattr(os, "fdopen", opened)
    elif step == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr(os, step, fail)
    with pytest.raises(StorageError, match=r"group_info\.pb: cannot write group_info\.pb: No space left on device"):
        write_group_info(path, [0, 1])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


class _FullDisk:
    def __init__(self, file: Any) -> None:
        self.file = file

    def __enter__(self) -> _FullDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def write(self, _: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_what_lies_there_meanwhile_is_hidden_and_marked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    mkstemp = tempfile.mkstemp

    def watched(*arguments: Any) -> tuple[int, str]:
        made = mkstemp(*arguments)
        names.append(made[1])
        return made

    monkeypatch.setattr(tempfile, "mkstemp", watched)
    write_group_info(tmp_path / "group_info.pb", [0])
    [name] = names
    assert Path(name).parent == tmp_path
    assert Path(name).name.startswith(".group_info.pb.")
    assert name.endswith(TEMPORARY_SUFFIX)


def test_a_missing_directory(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file or directory; check the directory and free space"):
        write_group_info(tmp_path / "no" / "group_info.pb", [0])
