import stat

import pytest

from ms_recover.errors import MissingInputError, StorageError, UsageError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.group_info import MAX_RANK, read_group_info
from ms_recover.model.groups import GroupInfo
from tests.support.faults import Faults

NAME = "group_info.pb"


def test_written_files_read_back(tmp_path):
    path = tmp_path / NAME
    write_group_info(path, {7, 3, 300})
    assert read_group_info(path, owner=7) == GroupInfo((3, 7, 300))
    assert path.read_bytes() == b"\x12\x07\x08\x03\x08\x07\x08\xac\x02" + b"\x0a\x00"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    write_group_info(path, [1], mode=0o640)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [path]


def test_a_read_only_file_is_replaced(tmp_path):
    path = tmp_path / NAME
    path.write_bytes(b"old")
    path.chmod(0o400)
    write_group_info(path, [0, 1], mode=0o400)
    assert read_group_info(path).restore_ranks == (0, 1)


@pytest.mark.parametrize("ranks", [[], [1, 1], [-1], [MAX_RANK]])
def test_ranks_that_no_list_can_hold_are_refused(tmp_path, ranks):
    with pytest.raises(UsageError, match=r"these ranks make no valid group_info\.pb: its restore list"):
        write_group_info(tmp_path / NAME, ranks)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, call):
    path = tmp_path / NAME
    path.write_bytes(b"old")
    with Faults(str(tmp_path), 1, "ENOSPC", (call,)).installed(), pytest.raises(StorageError, match="free some space"):
        write_group_info(path, [0, 1])
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_until_it_is_complete_a_list_has_a_hidden_temporary_name(tmp_path):
    with Faults(str(tmp_path), 0, "never", ("write", "rename")).installed() as faults:
        write_group_info(tmp_path / NAME, [0])
    assert faults.trace == [f"write .{NAME}.ms_recover.tmp", f"rename .{NAME}.ms_recover.tmp"]


def test_a_missing_directory_is_missing_input(tmp_path):
    with pytest.raises(MissingInputError, match="No such file or directory"):
        write_group_info(tmp_path / "no" / NAME, [0])
