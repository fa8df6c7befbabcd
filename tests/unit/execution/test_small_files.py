import os

import pytest

from ms_recover.errors import FormatError, VerificationError
from ms_recover.execution.destination import LocalDestination
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.execution.small_files import write_rank_list
from ms_recover.formats.group_info import read_group_info
from ms_recover.model.plan import GroupWrite

NAME = "group_info.pb"
WRITE = GroupWrite(rank=3, target=f"ckpt_dir3/{NAME}", restore_ranks=(1, 3))


@pytest.fixture
def target(tmp_path):
    (tmp_path / "ckpt_dir3").mkdir()
    return tmp_path / WRITE.target


def test_a_planned_list_is_written_once_and_belongs_to_the_owner_of_its_directory(target, tmp_path):
    if os.geteuid() == 0:
        os.chown(target.parent, 65534, 65534)
    assert write_rank_list(LocalDestination(str(tmp_path)), WRITE)
    assert read_group_info(target, owner=3).restore_ranks == (1, 3)
    assert target.stat().st_uid == target.parent.stat().st_uid
    before = target.stat().st_ino
    assert not write_rank_list(LocalDestination(str(tmp_path)), WRITE)
    assert target.stat().st_ino == before


def test_a_damaged_list_that_the_plan_saw_is_replaced(target, tmp_path):
    target.write_bytes(b"\xff damaged")
    assert write_rank_list(LocalDestination(str(tmp_path)), WRITE, damaged=True)
    assert read_group_info(target, owner=3).restore_ranks == (1, 3)


@pytest.mark.parametrize("content", [b"", b"\xff damaged"])
def test_a_file_that_the_plan_did_not_see_is_kept(content, target, tmp_path):
    target.write_bytes(content)
    with pytest.raises(VerificationError, match="nothing was replaced: plan again"):
        write_rank_list(LocalDestination(str(tmp_path)), WRITE)
    assert target.read_bytes() == content


@pytest.mark.parametrize("damaged", [True, False])
def test_a_sound_list_that_appeared_after_the_plan_is_kept(damaged, target, tmp_path):
    write_group_info(target, [2, 3])
    with pytest.raises(VerificationError, match="nothing was replaced: plan again"):
        write_rank_list(LocalDestination(str(tmp_path)), WRITE, damaged=damaged)
    assert read_group_info(target).restore_ranks == (2, 3)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_kept(make, target, tmp_path):
    make(target)
    with pytest.raises(VerificationError, match="in the way of one: move it away"):
        write_rank_list(LocalDestination(str(tmp_path)), WRITE, damaged=True)


def test_a_directory_that_is_a_link_out_of_the_tree_gets_no_list(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "ckpt_dir3").symlink_to(tmp_path / "outside")
    with pytest.raises(FormatError, match="through a link"):
        write_rank_list(LocalDestination(str(tmp_path / "root")), WRITE)
    assert list((tmp_path / "outside").iterdir()) == []
