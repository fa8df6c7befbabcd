"""A dry run ends as the run does where the file system does not take what is written: real disks, and a real user."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from ms_recover import api
from tests.support.command_line import in_this_process
from tests.support.unprivileged import as_nobody, open_to_all, reachable_folder

FIXTURE = Path(__file__).parents[1] / "data" / "fixtures" / "dp2_mp4"
LIMIT = 60
VERBS = {
    "copy": lambda tree, place: ["copy", tree, place / "backup"],
    "copy into a folder": lambda tree, place: ["copy", tree, place / "folder"],
    "reshard": lambda tree, place: ["reshard", tree, "--full", "-o", place / "whole"],
    "reshard into a folder": lambda tree, place: ["reshard", tree, "--full", "-o", place / "folder"],
    "complete": lambda tree, place: ["complete", tree, 1, "-o", place / "rank1.ckpt"],
    "complete in a new folder": lambda tree, place: ["complete", tree, 1, "-o", place / "new" / "rank1.ckpt"],
    "complete beside the slices": lambda tree, place: ["complete", place / "tree", 1],
    "seal": lambda tree, place: ["seal", place / "tree"],
}


@pytest.fixture
def disk(tmp_path):
    """Mount a small file system, with a tree and an empty folder in it."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m,mode=755", "tmpfs", str(place)]
    mounted = subprocess.run(mount, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield furnished(place)
    finally:
        subprocess.run(["umount", str(place)], check=True, timeout=LIMIT)


def furnished(place):
    shutil.copytree(FIXTURE, place / "tree", ignore=shutil.ignore_patterns("truth"))
    (place / "folder").mkdir()
    return place


def names(place):
    return sorted(str(path) for path in place.rglob("*"))


def ends_alike(place, command, code=None):
    """Run a command dry and for good; what a run that failed may have left are folders, and files that are whole."""
    before = names(place)
    dry = in_this_process(*command, "--dry-run")
    assert names(place) == before
    real = in_this_process(*command)
    assert "Traceback" not in dry.err + real.err
    assert dry.code == real.code, (dry.out, dry.err, real.out, real.err)
    assert code is None or dry.code == code, (dry.out, dry.err)
    return dry, real


@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_is_read_only(disk, verb):
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True, timeout=LIMIT)
    dry, _ = ends_alike(disk, VERBS[verb](FIXTURE, disk), 1)
    assert "read-only" in dry.out + dry.err


@pytest.mark.parametrize("verb", VERBS)
def test_a_disk_that_is_full(disk, verb):
    with (disk / "filler").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while file.write(bytes(4096)):
            pass
    dry, _ = ends_alike(disk, VERBS[verb](FIXTURE, disk), 1)
    assert "free" in dry.out + dry.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_is_another_users(verb):
    with reachable_folder() as top:
        place = furnished(top)
        tree = top / "source"
        shutil.copytree(FIXTURE, tree, ignore=shutil.ignore_patterns("truth"))
        open_to_all(top)
        in_this_process(*VERBS[verb](tree, top), "--dry-run")  # loads what is loaded on use
        with as_nobody():
            dry, _ = ends_alike(place, VERBS[verb](tree, place), 1)
        assert "permission denied" in dry.out + dry.err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user")
def test_some_folders_that_are_another_users(tmp_path):
    """One rank's directory may not be written: sealing ends alike, though others get their manifests."""
    with reachable_folder() as top:
        place = furnished(top)
        open_to_all(top)
        for path in place.rglob("ckpt_dir*"):
            if path.name != "ckpt_dir3":
                path.chmod(0o777)
        in_this_process("seal", place / "tree", "--dry-run")
        with as_nobody():
            ends_alike(place, ["seal", place / "tree"], 1)


def test_room_for_some_of_the_files(tmp_path, disk):
    """A reshard of two files, of which one finds room."""
    with (disk / "filler").open("wb") as file:
        room = os.statvfs(disk)
        size = sum(path.stat().st_size for path in (FIXTURE / "ckpt_dir0").glob("*2_77.ckpt"))
        file.write(bytes(room.f_bavail * room.f_frsize - size * 3))
    assert api.scan(disk / "tree").slices
    ends_alike(disk, ["reshard", FIXTURE, "--axes", "dp=2,tp=4", "-o", disk / "out"], 1)
