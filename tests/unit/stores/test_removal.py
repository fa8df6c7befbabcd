"""Removing a large file: its name goes at once, and its blocks are free when a new file needs them."""

import os
import threading

import pytest

from ms_recover.stores.removal import remove_large, wait_until_freed


@pytest.mark.parametrize("size", [0, 1 << 16, 3 << 20])
def test_the_name_goes_at_once_and_the_blocks_follow(tmp_path, size):
    path = tmp_path / "old.ckpt"
    path.write_bytes(b"x" * size)
    path.chmod(0o400)
    before = len(os.listdir("/proc/self/fd"))
    remove_large(str(path))
    assert not path.exists()
    wait_until_freed()
    assert len(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "free-blocks"]


def test_what_is_no_file_that_can_be_read_is_removed_as_well(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "gone")
    remove_large(str(link))
    assert not link.is_symlink()
    with pytest.raises(FileNotFoundError):
        remove_large(str(link))


def test_a_name_that_cannot_be_removed_is_an_error(tmp_path):
    (tmp_path / "folder").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="folder"):
        remove_large(str(tmp_path / "folder"))
    assert len(os.listdir("/proc/self/fd")) == before
