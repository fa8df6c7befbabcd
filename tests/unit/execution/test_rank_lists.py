import os
import stat

import pytest

from ms_recover.errors import FormatError, MissingInputError, StorageError, UsageError, VerificationError
from ms_recover.execution.rank_lists import write_group_info, write_planned
from ms_recover.formats.group_info import MAX_RANK, read_group_info
from ms_recover.model.groups import GroupInfo
from ms_recover.model.plan import GroupWrite
from tests.support.faults import Faults

NAME = "group_info.pb"
WRITE = GroupWrite(rank=3, target=f"ckpt_dir3/{NAME}", restore_ranks=(1, 3))


@pytest.fixture
def target(tmp_path):
    (tmp_path / "ckpt_dir3").mkdir()
    return tmp_path / WRITE.target


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


def test_a_planned_list_is_written_once_and_belongs_to_the_owner_of_its_directory(target, tmp_path):
    if os.geteuid() == 0:
        os.chown(target.parent, 65534, 65534)
    assert write_planned(str(tmp_path), WRITE)
    assert read_group_info(target, owner=3).restore_ranks == (1, 3)
    assert target.stat().st_uid == target.parent.stat().st_uid
    before = target.stat().st_ino
    assert not write_planned(str(tmp_path), WRITE)
    assert target.stat().st_ino == before


def test_a_damaged_list_that_the_plan_saw_is_replaced(target, tmp_path):
    target.write_bytes(b"\xff damaged")
    assert write_planned(str(tmp_path), WRITE, damaged=True)
    assert read_group_info(target, owner=3).restore_ranks == (1, 3)


@pytest.mark.parametrize("content", [b"", b"\xff damaged"])
def test_a_file_that_the_plan_did_not_see_is_kept(content, target, tmp_path):
    target.write_bytes(content)
    with pytest.raises(VerificationError, match="nothing was replaced: plan again"):
        write_planned(str(tmp_path), WRITE)
    assert target.read_bytes() == content


@pytest.mark.parametrize("damaged", [True, False])
def test_a_sound_list_that_appeared_after_the_plan_is_kept(damaged, target, tmp_path):
    write_group_info(target, [2, 3])
    with pytest.raises(VerificationError, match="nothing was replaced: plan again"):
        write_planned(str(tmp_path), WRITE, damaged=damaged)
    assert read_group_info(target).restore_ranks == (2, 3)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_kept(make, target, tmp_path):
    make(target)
    with pytest.raises(VerificationError, match="in the way of one: move it away"):
        write_planned(str(tmp_path), WRITE, damaged=True)


def test_a_directory_that_is_a_link_out_of_the_tree_gets_no_list(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "ckpt_dir3").symlink_to(tmp_path / "outside")
    with pytest.raises(FormatError, match="through a link"):
        write_planned(str(tmp_path / "root"), WRITE)
    assert list((tmp_path / "outside").iterdir()) == []
