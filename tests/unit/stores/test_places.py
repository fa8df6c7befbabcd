"""The places of a plan's files as they lie on this host."""

import errno
import os
from dataclasses import replace

import pytest

from ms_recover.file_names import temporary_name
from ms_recover.model.actions import FileState
from ms_recover.model.places import FolderFacts, TargetFacts
from ms_recover.stores.places import look_at_folder, look_at_places, shared_targets


@pytest.fixture
def tree(tmp_path):
    root = tmp_path / "tree"
    for folder in ("here", "else/where"):
        (root / folder).mkdir(parents=True)
    (root / "here/file.ckpt").write_bytes(b"12345")
    (root / "link").symlink_to("else/where")
    (root / "nowhere").symlink_to("gone")
    (root / "circle").symlink_to("circle")
    (root / "to_file").symlink_to("here/file.ckpt")
    os.mkfifo(root / "here/pipe")
    os.link(root / "here/file.ckpt", root / "here/second.ckpt")
    (root / "here/own.ckpt").write_bytes(bytes(9000))
    return root


def facts(root, path):
    return look_at_places(str(root), (), (path,)).folders[path]


def test_folders_that_are_there_or_have_to_be_made(tree):
    there, disk = tree / "here", os.stat(tree).st_dev
    found = facts(tree, "here")
    assert found == FolderFacts(real=str(there), base=str(there), disk=disk)
    assert facts(tree, "here/new/deep") == replace(found, real=f"{there}/new/deep")
    linked = facts(tree, "link/new")
    assert linked == FolderFacts(real=f"{tree}/else/where/new", base=f"{tree}/else/where", linked=True, disk=disk)
    long = "x" * 300
    assert facts(tree, f"here/{long}") == replace(found, real=f"{there}/{long}")
    assert look_at_places(f"{tree}/here/file.ckpt", ()) is None


@pytest.mark.parametrize(
    ("name", "fault", "code"),
    [
        ("nowhere", "nowhere", errno.ENOENT),
        ("circle", "circle", errno.ELOOP),
        ("here/file.ckpt", "no folder", None),
        ("to_file", "no folder", None),
        ("here/pipe", "no folder", None),
    ],
)
@pytest.mark.parametrize("below", ["", "/deeper"])
def test_folders_that_are_none(tree, name, fault, code, below):
    found = facts(tree, name + below)
    assert (found.fault, found.at, found.words) == (fault, f"{tree}/{name}", "" if code is None else os.strerror(code))


def test_what_lies_under_a_name(tree):
    state = FileState(5, os.stat(tree / "here/file.ckpt").st_mtime_ns)
    own = os.stat(tree / "here/own.ckpt")
    expected = {
        "here/file.ckpt": TargetFacts(kind="file", state=state),  # which has a second name
        "here/own.ckpt": TargetFacts(kind="file", state=FileState(9000, own.st_mtime_ns), freed=own.st_blocks * 512),
        "here/new.ckpt": TargetFacts(),
        "else/where": TargetFacts(kind="folder"),
        "link": TargetFacts(kind="folder", linked=True),
        "to_file": TargetFacts(kind="file", linked=True, state=state),
        "nowhere": TargetFacts(kind="link", linked=True),
        "circle": TargetFacts(kind="link", linked=True),
        "here/pipe": TargetFacts(kind="other"),
        f"here/{'x' * 300}": TargetFacts(),
        "missing/new.ckpt": TargetFacts(),
        "nowhere/new.ckpt": TargetFacts(),
    }
    found = look_at_places(str(tree), expected)
    assert found.targets == expected
    assert found.folders.keys() == {"", "here", "else", "missing", "nowhere"}
    assert own.st_blocks
    (disk,) = found.disks.values()
    assert disk.longest_name == os.statvfs(tree).f_namemax


def test_an_unfinished_file_is_taken_over_and_nothing_else(tree):
    unfinished = tree / "here" / temporary_name("own.ckpt")
    for make, blocked in (
        (unfinished.touch, ""),
        (unfinished.mkdir, f"{unfinished} is in the way of a temporary file"),
    ):
        make()
        found = look_at_places(str(tree), ["here/own.ckpt"]).targets["here/own.ckpt"]
        assert found.blocked_by.startswith(blocked)
        assert bool(found.blocked_by) is bool(blocked)
        assert found.kind == "file"
        if not blocked:
            unfinished.unlink()


def test_a_folder_alone(tree):
    (tree / "real").symlink_to("here")
    found, disk = look_at_folder(f"{tree}/real/new")
    assert (found.real, found.base, found.linked) == (f"{tree}/here/new", f"{tree}/here", True)
    assert disk.block > 0
    assert look_at_folder("/")[0].real == "/"
    assert look_at_folder(f"{tree}/nowhere")[0].fault == "nowhere"


def test_blocks_are_shared_on_one_file_system_alone(tree):
    places = look_at_places(str(tree), ["here/new.ckpt"])
    there = shared_targets(places, [("here/own.ckpt", "here/new.ckpt"), ("gone", "here/new.ckpt")])
    assert there <= {"here/new.ckpt"}
    assert shared_targets(places, [("gone", "here/new.ckpt")]) == frozenset()
    folders = {path: replace(one, disk=-1) for path, one in places.folders.items()}
    assert shared_targets(replace(places, folders=folders), [("here/own.ckpt", "here/new.ckpt")]) == frozenset()
