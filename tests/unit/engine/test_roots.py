"""The roots that a host sees."""

import shutil
from dataclasses import replace

import pytest

from ms_recover.engine.roots import look_at, make_root, open_root, parse_roots, path_of
from ms_recover.errors import MissingInputError, StorageError, UsageError, VerificationError


def test_roots_lie_where_the_longest_part_says():
    roots = parse_roots("/data=/mnt/a:/data/ckpt=/mnt/b/")
    assert path_of("/data/ckpt/run", roots) == "/mnt/b/run"
    assert path_of("/data/ckpt", roots) == "/mnt/b"
    assert path_of("/data/other", roots) == "/mnt/a/other"
    assert path_of("/datax", roots) == "/datax"
    assert path_of("/x", {"/": "/mnt"}) == "/mnt/x"
    assert parse_roots("") == {}


@pytest.mark.parametrize("text", ["/data", "data=/x", "/data=x", "/a=/b:c"])
def test_an_invalid_variable_is_an_error(text):
    with pytest.raises(UsageError, match="MS_RECOVER_NODE_ROOTS"):
        parse_roots(text)


def test_a_root_is_known_by_machine_device_and_inode(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")
    seen, roots = look_at("/data", {"/data": str(tmp_path / "link")}), {"/data": str(tmp_path / "a")}
    assert seen.path == str(tmp_path / "a")
    assert seen.identity is not None
    assert 0 < seen.free_bytes <= seen.total_bytes
    assert replace(look_at("/data", roots), free_bytes=0) == replace(seen, free_bytes=0)  # others write meanwhile
    assert open_root("/data", {seen.identity}, roots) == str(tmp_path / "a")
    with pytest.raises(VerificationError, match="another tree"):
        open_root("/data", {replace(seen.identity, inode=1)}, roots)
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(MissingInputError, match="is gone"):
        open_root("/data", {seen.identity}, roots)


def test_a_listing_differs_with_names_and_times(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    assert look_at(str(tmp_path / "a"), {}).listing != look_at(str(tmp_path / "b"), {}).listing
    before = look_at(str(tmp_path / "a"), {}).listing
    (tmp_path / "a" / "x").touch()
    assert look_at(str(tmp_path / "a"), {}).listing != before


def test_a_root_that_cannot_be_used_has_a_problem(tmp_path):
    (tmp_path / "file").touch()
    nothing, file = look_at(str(tmp_path / "none"), {}), look_at(str(tmp_path / "file"), {})
    assert (nothing.missing, nothing.identity) == (True, None)
    assert (file.missing, file.identity) == (False, None)
    assert "cannot be read" in file.problem


def test_a_lost_root_is_made_in_a_directory_that_is_there(tmp_path):
    root = str(tmp_path / "ckpt")
    made = make_root(root, {})
    assert made == look_at(root, {}).identity
    assert make_root(root, {}) == made
    (tmp_path / "ckpt" / "x").touch()
    with pytest.raises(StorageError, match="appeared"):
        make_root(root, {})
    with pytest.raises(StorageError, match="mount the disk"):
        make_root(str(tmp_path / "no" / "disk"), {})
