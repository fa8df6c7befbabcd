"""What is known of a place before anything is written there."""

import os

import pytest

from ms_recover.errors import StorageError, UsageError
from ms_recover.execution.writable import check_writable, free_bytes, refuse_inside
from ms_recover.file_names import temporary_name


def test_a_name_is_too_long_as_soon_as_that_of_the_temporary_file_is(tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX") - len(temporary_name(""))
    check_writable(str(tmp_path / ("n" * longest)))
    with pytest.raises(StorageError, match="File name too long"):
        check_writable(str(tmp_path / ("n" * (longest + 1))))
    (tmp_path / temporary_name("n" * longest)).touch()  # which the file system takes
    with pytest.raises(OSError, match="File name too long"):
        (tmp_path / temporary_name("n" * (longest + 1))).touch()


def test_names_are_measured_in_bytes_and_those_of_missing_directories_count(tmp_path):
    longest = os.pathconf(tmp_path, "PC_NAME_MAX")
    check_writable(str(tmp_path / ("n" * longest) / "slice"))
    for name in ("n" * (longest + 1), "\u00e9" * (longest // 2 + 1)):
        with pytest.raises(StorageError, match="File name too long"):
            check_writable(str(tmp_path / name / "slice"))


def test_there_must_be_room(tmp_path):
    free = free_bytes(str(tmp_path))
    check_writable(str(tmp_path / "missing" / "slice"), free // 2)
    with pytest.raises(StorageError, match="No space left"):
        check_writable(str(tmp_path / "missing" / "slice"), 2 * free + (1 << 30))


def test_no_file_is_written_below_another_file(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Not a directory"):
        check_writable(str(tmp_path / "file" / "slice"))


@pytest.mark.parametrize("target", ["tree", "tree/", "tree/below", "tree/../tree/a/b"])
def test_nothing_is_written_into_the_tree_itself(target, tmp_path):
    (tmp_path / "tree").mkdir()
    with pytest.raises(UsageError, match="where scans would find it: name a folder outside"):
        refuse_inside(tmp_path / "tree", f"{tmp_path}/{target}")


@pytest.mark.parametrize("target", ["trees", "tree-2", "other"])
def test_a_folder_beside_the_tree_is_none_of_its_own(target, tmp_path):
    (tmp_path / "tree").mkdir()
    refuse_inside(tmp_path / "tree", tmp_path / target)
