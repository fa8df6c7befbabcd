"""The places of a recovery, one by one: plan names what is in the way and what to do, and apply does the same."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.options import PlanOptions
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.circumstances import CIRCUMSTANCES, HALF, RANKS, Scene
from tests.support.command_line import Recovered, in_this_process
from tests.support.faults import unreadable
from tests.support.unprivileged import as_nobody, open_to_all, reachable_folder

NAME = "test-1_8.ckpt"


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene.make(tmp_path, manifests=True)


def plan(scene: Scene, *options: object) -> Recovered:
    return in_this_process("plan", scene.root, *options)


def apply(scene: Scene, *options: object) -> Recovered:
    return in_this_process("apply", scene.root, *options)


def is_blocked(scene: Scene, words: str, code: int, *options: object) -> Recovered:
    """Check that plan names an obstacle, with what to do, and that apply ends as plan does and for the same reason."""
    planned = plan(scene, *options)
    assert planned.code == code, planned.out + planned.err
    assert "BLOCKED at step 1_8" in planned.out
    assert words in planned.out
    assert "plan again" not in planned.out
    assert "Next:" not in planned.out
    applied = apply(scene, *options)
    assert applied.code == code, applied.out
    assert words in applied.out
    assert "plan again" not in applied.out
    return planned


def is_applied(scene: Scene, *options: object) -> None:
    planned = plan(scene, *options)
    assert planned.code == 0, planned.out + planned.err
    applied = apply(scene, *options)
    assert applied.code == 0, applied.out + applied.err
    assert "COMPLETE" in plan(scene, *options).out


@pytest.mark.parametrize("name", sorted(CIRCUMSTANCES))
def test_whatever_lies_in_the_place_of_a_slice(name: str, scene: Scene) -> None:
    circumstance = CIRCUMSTANCES[name]
    scene.lose(1)
    circumstance.strike(scene, 1)
    if circumstance.words and name != "a link to another rank's directory":  # whose list is found twice
        code = 3 if "link" in name and "leads" not in name else 1 if "leads" in name else 5
        is_blocked(scene, circumstance.words, code)
    if circumstance.mend is not None:
        circumstance.mend(scene, 1)
    is_applied(scene, *circumstance.options(scene, 1))


def test_follow_writes_below_the_named_directory_alone(scene: Scene, tmp_path: Path) -> None:
    other = tmp_path / "other disk"
    other.mkdir()
    for rank, disk in ((0, scene.disk), (1, other)):
        scene.lose(rank)
        (disk / f"ckpt_dir{rank}").mkdir()
        shutil.rmtree(scene.folder(rank))
        scene.folder(rank).symlink_to(disk / f"ckpt_dir{rank}")
    is_blocked(scene, f"ckpt_dir1 leads out of {scene.root} through a link", 3, "--follow", scene.disk)
    assert (scene.disk / "ckpt_dir0" / NAME).exists()
    assert list(other.rglob("*")) == [other / "ckpt_dir1"]
    is_applied(scene, "--follow", scene.disk, "--follow", other)
    assert (other / "ckpt_dir1" / NAME).read_bytes() == scene.slice(5).read_bytes()
    assert (other / "ckpt_dir1" / f"{NAME}{MANIFEST_SUFFIX}").exists()


def test_a_saved_plan_carries_what_may_be_followed(scene: Scene, tmp_path: Path) -> None:
    scene.lose(1)
    CIRCUMSTANCES["a link out of the root"].strike(scene, 1)
    file = tmp_path / "plan.json"
    link = tmp_path / "link"
    link.symlink_to(scene.disk)
    assert plan(scene, "-o", file).code == 3
    saved = json.loads(file.read_text())
    assert {(one["rank"], one["path"], one["kind"]) for one in saved["obstacles"]} == {
        (1, f"ckpt_dir1/{NAME}", "elsewhere"),
        (1, "ckpt_dir1/group_info.pb", "elsewhere"),
    }
    assert in_this_process("apply", file).code == 3
    assert plan(scene, "--follow", link, "-o", file).code == 0
    saved = json.loads(file.read_text())
    assert saved["follow"] == [str(scene.disk)]
    assert "obstacles" not in saved
    assert in_this_process("apply", file).code == 0
    assert "COMPLETE" in plan(scene).out


def test_a_dry_run_of_a_saved_plan_looks_again(scene: Scene, tmp_path: Path) -> None:
    scene.lose(1)
    file = tmp_path / "plan.json"
    assert plan(scene, "-o", file).code == 0
    CIRCUMSTANCES["a pipe under the slice's name"].strike(scene, 1)
    seen = in_this_process("apply", file, "--dry-run")
    assert seen.code == 5
    assert "BLOCKED" in seen.out
    assert in_this_process("apply", file).code == 5
    scene.slice(1).unlink()
    assert in_this_process("apply", file, "--dry-run").code == 0
    assert in_this_process("apply", file).code == 0


@pytest.mark.parametrize("path", ["relative", "/tmp/../etc", "//etc", "/etc/", "/a\0b"])
def test_a_saved_plan_that_follows_no_real_path_is_refused(path: str, scene: Scene, tmp_path: Path) -> None:
    scene.lose(1)
    file = tmp_path / "plan.json"
    assert plan(scene, "-o", file).code == 0
    file.write_text(json.dumps({**json.loads(file.read_text()), "follow": [path]}))
    refused = in_this_process("apply", file)
    assert refused.code == 3
    assert "no plan that can be trusted" in refused.err or "not a plan that can be trusted" in refused.err


def test_what_is_to_be_followed_must_be_there(scene: Scene) -> None:
    missing = plan(scene, "--follow", scene.disk / "nowhere")
    assert missing.code == 2
    assert "is no directory of this host" in missing.err


def test_the_library_follows_too(scene: Scene) -> None:
    scene.lose(1)
    CIRCUMSTANCES["a link out of the root"].strike(scene, 1)
    inventory = api.scan(scene.root)
    obstacle, _ = api.plan(inventory).obstacles
    assert obstacle.rank == 1
    assert f"--follow {scene.disk}" in obstacle.reason
    made = api.plan(inventory, PlanOptions(follow=(str(scene.disk),)))
    assert made.obstacles == ()
    assert made.follow == (str(scene.disk),)
    assert api.apply(made).exit_code == 0


def test_two_ranks_in_one_directory_out_of_the_root_never_overwrite_each_other(scene: Scene) -> None:
    shared = scene.disk / "all"
    shared.mkdir()
    for rank in (0, 1):
        scene.lose(rank)
        shutil.rmtree(scene.folder(rank))
        scene.folder(rank).symlink_to(shared)
    is_blocked(scene, "is the same file as ckpt_dir0/test-1_8.ckpt, of rank 0", 3, "--follow", scene.disk)
    scene.folder(1).unlink()
    is_applied(scene, "--follow", scene.disk)
    assert (shared / NAME).read_bytes() == scene.slice(4).read_bytes()


@pytest.mark.parametrize("length", [225, 226, 241, 255])
def test_a_name_without_room_for_what_lies_beside_it(length: int, tmp_path: Path) -> None:
    prefix = "n" * (length - len("-1_8.ckpt"))
    scene = Scene.make(tmp_path, manifests=False, prefix=prefix)
    scene.lose(1)
    if length == 225:  # the temporary name of the manifest is the longest
        is_applied(scene)
        return
    is_blocked(scene, f"has {length} bytes", 1)
    for rank in range(RANKS):
        if rank != 1:
            scene.slice(rank).rename(scene.folder(rank) / NAME)
    is_applied(Scene(scene.root, scene.disk))


def test_a_directory_that_may_not_be_written() -> None:
    with reachable_folder() as top:
        scene = Scene.make(top, manifests=True)
        scene.lose(1)
        open_to_all(top)
        for rank in range(RANKS):
            os.chown(scene.folder(rank), 65534, 65534)
        os.chown(scene.root, 65534, 65534)
        os.chown(scene.folder(1), 0, 0)
        with as_nobody():
            is_blocked(scene, f"{scene.folder(1)} may not be written: permission denied for user nobody", 1)
            os.umask(0o022)
        os.chown(scene.folder(1), 65534, 65534)
        with as_nobody():
            is_applied(scene)


@contextmanager
def mounted(folder: Path, *options: str) -> Iterator[None]:
    command = ["mount", *options, str(folder)]
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True, timeout=60)


def fill(disk: Path, left: int) -> Path:
    room = os.statvfs(disk)
    filler = disk / "filler"
    filler.write_bytes(bytes(room.f_bavail * room.f_bsize - left))
    return filler


@pytest.mark.processes
def test_a_full_disk_is_seen_before(tmp_path: Path) -> None:
    top = tmp_path / "disk"
    top.mkdir()
    with mounted(top, "-t", "tmpfs", "-o", "size=8m,mode=700", "tmpfs"):
        root = make_tree(top / "tree", parameters={"w": 100_000})
        save_manifests(root)
        scene = Scene(root, top)
        for rank in (0, 1):
            scene.lose(rank)
        filler = fill(top, 600_000)
        is_blocked(scene, f"there is no room on the file system of {scene.folder(0)}", 1)
        assert scene.slice(0).exists()  # for one there is
        assert not scene.slice(1).exists()
        assert list(root.rglob(".*.tmp")) == []
        filler.unlink()
        is_applied(scene)


@pytest.mark.processes
def test_whatever_room_there_is_apply_ends_as_plan_does(tmp_path: Path) -> None:
    """Three lost slices and a damaged one, from no room at all to room for all."""
    top = tmp_path / "disk"
    top.mkdir()
    codes = []
    with mounted(top, "-t", "tmpfs", "-o", "size=12m,mode=700", "tmpfs"):
        for left in range(0, 2_400_001, 200_000):
            root = make_tree(top / "tree", data_parallel=2, model_parallel=HALF, parameters={"w": 100_000})
            save_manifests(root)
            scene = Scene(root, top)
            for rank in (0, 1, 2):
                scene.lose(rank)
            damaged = scene.slice(3)
            damaged.chmod(0o600)
            damaged.write_bytes(b"\xff" * damaged.stat().st_size)
            filler = fill(top, left)
            planned, applied = plan(scene), apply(scene)
            assert (planned.code == 0) == (applied.code == 0), (left, planned.out, applied.out)
            assert "No space left" not in applied.out + applied.err
            codes.append(planned.code)
            filler.unlink()
            is_applied(scene)
            shutil.rmtree(root)
    assert codes == sorted(codes, reverse=True)
    assert codes[0] == 1
    assert codes[-1] == 0


@pytest.mark.processes
def test_slices_that_give_their_room_back_are_replaced_one_after_the_other(tmp_path: Path) -> None:
    """Four damaged slices and room for one more: each is written before the next, and nothing is refused."""
    top = tmp_path / "disk"
    top.mkdir()
    with mounted(top, "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs"):
        root = make_tree(top / "tree", data_parallel=3, model_parallel=4, parameters={"w": 100_000})
        save_manifests(root)
        scene = Scene(root, top)
        for rank in range(4):
            path = scene.slice(rank)
            path.chmod(0o600)
            path.write_bytes(b"\xff" * path.stat().st_size)
        fill(top, 700_000)
        is_applied(scene)


@pytest.mark.processes
def test_a_file_system_without_room_for_more_files(tmp_path: Path) -> None:
    top = tmp_path / "disk"
    top.mkdir()
    with mounted(top, "-t", "tmpfs", "-o", "size=8m,nr_inodes=40,mode=700", "tmpfs"):
        root = make_tree(top / "tree")
        scene = Scene(root, top)
        scene.lose(1)
        used = os.statvfs(top).f_ffree - 1
        for number in range(used):
            (top / f"filler{number}").touch()
        is_blocked(scene, "has room for 1 more files", 1)
        for number in range(used):
            (top / f"filler{number}").unlink()
        is_applied(scene)


@pytest.mark.processes
def test_a_file_system_that_is_mounted_read_only(tmp_path: Path) -> None:
    scene = Scene.make(tmp_path, manifests=True)
    scene.lose(1)
    with mounted(scene.root, "--bind", str(scene.root)):
        subprocess.run(["mount", "-o", "remount,bind,ro", str(scene.root)], check=True)
        is_blocked(scene, "the file system is mounted read-only", 1)
    is_applied(scene)


@pytest.mark.parametrize("manifests", [True, False])
def test_a_device_that_does_not_give_the_first_block_of_a_slice(manifests: bool, tmp_path: Path) -> None:
    """It is set aside, because what it holds may be right, and written."""
    scene = Scene.make(tmp_path, manifests=manifests)
    bad = scene.slice(1)
    held = bad.read_bytes()
    with unreadable(bad):
        planned = plan(scene, "--json")
        assert planned.code == 0, planned.out
        (action,) = planned.json["actions"]
        assert action["set_aside"] == f"ckpt_dir1/{NAME}.outvoted"
        applied = apply(scene)
        assert applied.code == 0, applied.out + applied.err
    assert bad.read_bytes() == held
    assert bad.with_name(f"{NAME}.outvoted").read_bytes() == held


def test_a_backup_stays_as_it_is_in_plan_and_apply(scene: Scene, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    assert in_this_process("copy", scene.root, backup).code == 0
    before = sorted(backup.rglob("*"))
    (index,) = backup.glob("steps/*.json")
    for root in (backup, index):
        for command in ("plan", "apply") if root == backup else ("plan",):  # a file is a plan to apply
            done = in_this_process(command, root, "--lost", "1")
            assert done.code == 3, done.out + done.err
            assert f"{root} is a backup, which stays as it is" in done.out
            assert f"--from {root}" in done.out
        assert in_this_process("plan", root).code == 0
    assert sorted(backup.rglob("*")) == before
