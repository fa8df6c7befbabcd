"""A fault at every call of a recovery: the old bytes or the new ones, a message, and the next run completes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import StorageError
from ms_recover.execution.lock import lock_tree
from ms_recover.formats.plan_json import plan_from_json, plan_to_json
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support import faulty_disk as support
from tests.support.faults import OPENING, READING, WRITING, Faults
from tests.support.faulty_disk import (
    LIMIT,
    MOST_CALLS,
    OLD,
    REPOSITORY,
    Broken,
    change,
    documented_codes,
    fail_at_every_call,
    in_a_child,
    kill_at_every_call,
    through_json,
)
from tests.support.mishaps import manifest_of, overwrite

base, quiet = support.base, support.quiet  # fixtures


@pytest.mark.parametrize("manifests", [True, False], ids=["manifests", "no manifests"])
@pytest.mark.parametrize("kind", ["kill", "kill after"])
def test_sigkill_at_every_call(kind: str, manifests: bool, base: Path) -> None:
    kill_at_every_call(Broken.make(base, manifests=manifests), kind)


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("ENOSPC", WRITING),
        ("EIO", WRITING),
        ("EIO", READING),
        ("EACCES", (*WRITING, *OPENING)),
        ("EROFS", (*WRITING, *OPENING)),
        ("ESTALE", (*WRITING, *READING, *OPENING)),
    ],
    ids=["no space", "writing fails", "reading fails", "no permission", "read-only", "stale handle"],
)
def test_an_error_at_every_call(code: str, calls: tuple[str, ...], base: Path) -> None:
    fail_at_every_call(Broken.make(base), code, calls)


def test_a_full_disk(tmp_path: Path) -> None:
    """A real one: room for one of two slices, then for both."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        broken = Broken.make(tmp_path, elements=80_000)
        broken.root = disk / "tree"
        plan = broken.again()
        filler = disk / "filler"
        room = os.statvfs(disk)
        filler.write_bytes(bytes(room.f_bavail * room.f_bsize - 400_000))
        outcome = api.apply(plan)
        assert outcome.exit_code == 1
        assert [result.status for result in outcome.results] == ["copied", "failed"]
        assert outcome.results[1].error.startswith("there is no room on the file system of")
        broken.check_final_names()
        assert broken.leftovers() == []
        filler.unlink()
        broken.complete()
    finally:
        subprocess.run(["umount", str(disk)], check=True, timeout=LIMIT)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv")
@pytest.mark.parametrize("closed", ["target", "source", "root"])
def test_without_rights(closed: str, tmp_path: Path) -> None:
    """A user who may not write, or not read, what the recovery needs: a message that names it and a documented code."""
    broken = Broken.make(tmp_path)
    broken.again()
    for folder in [broken.root, *broken.root.parents][:-1]:
        folder.chmod(folder.stat().st_mode | 0o755)
    for path in broken.root.rglob("*"):
        os.chown(path, 65534, 65534)
    os.chown(broken.root, 65534, 65534)
    if closed == "source":
        broken.path(2).chmod(0)
    else:
        folder = broken.root / "ckpt_dir1" if closed == "target" else broken.root
        os.chown(folder, 0, 0)
        folder.chmod(0o755)
    code = "import sys; from ms_recover.cli.entry import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-c", code]
        + ["apply", str(broken.root)],
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert "Traceback" not in done.stderr
    broken.check_final_names()
    assert broken.leftovers() == []
    if closed == "source":
        assert done.returncode == 1, done.stderr  # no permission is no damage, and may be given
        assert "ckpt_dir2" in done.stdout
        broken.path(2).chmod(0o400)
    else:
        assert done.returncode in documented_codes() - {0}, done.stderr
        assert f"ckpt_dir{1 if closed == 'target' else 0}" in done.stderr
    broken.complete()


def test_two_recoveries_exclude_each_other_and_a_killed_one_does_not(base: Path) -> None:
    broken = Broken.make(base)
    plan = broken.again()
    told, tell = os.pipe()

    def hold(count: int) -> None:
        os.write(tell, b"x")
        time.sleep(2 * LIMIT)

    pid = os.fork()
    if pid == 0:
        try:
            api.apply(plan, progress=hold)
        finally:
            os._exit(99)
    try:
        os.close(tell)
        assert os.read(told, 1) == b"x"
        before = broken.files()
        with pytest.raises(StorageError, match=r"another recovery is at work on .*wait for it"):
            api.apply(plan)
        with pytest.raises(StorageError, match="another recovery is at work"):
            api.apply(plan, ranks={0}, lock_timeout=0.2)
        assert broken.files() == before
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(told)
    broken.check_final_names()
    assert api.apply(plan).exit_code == 0
    broken.complete()


def test_ranks_that_recover_only_themselves_go_together(base: Path) -> None:
    broken = Broken.make(base)
    plan = broken.again()
    with lock_tree(str(broken.root), shared=True):
        assert api.apply(plan, ranks={0}, lock_timeout=0.0).exit_code == 0
        with pytest.raises(StorageError, match="another recovery"):
            api.apply(plan)
    assert broken.path(0).read_bytes() == broken.truth[0]
    assert broken.path(1).read_bytes() == OLD
    broken.complete()


@pytest.mark.parametrize("keep_time", [False, True], ids=["new time", "same time"])
@pytest.mark.parametrize("data_parallel", [2, 3])
def test_a_source_that_changes_while_it_is_copied(data_parallel: int, keep_time: bool, base: Path) -> None:
    broken = Broken.make(base, elements=3 << 20, data_parallel=data_parallel)
    plan = broken.again()
    source = broken.root / plan.actions[0].source
    whole = source.read_bytes()
    changed = []

    def strike(count: int) -> None:
        if not changed:
            change(source, keep_time)
            changed.append(source.read_bytes())

    outcome = api.apply(plan, progress=strike)
    assert changed
    assert outcome.exit_code == 5
    first = outcome.results[0]
    assert broken.leftovers() == []
    assert source.read_bytes() == changed[0]  # the bad slice is reported, never deleted
    if data_parallel == 2:
        assert first.status == "failed"
        assert str(source) in first.error
        assert not broken.path(0).exists()
    else:
        assert first.status == "copied"
        assert first.source != plan.actions[0].source
        assert str(source) in first.dropped[0]
        assert broken.path(0).read_bytes() == broken.truth[0]
    overwrite(source, whole)
    broken.complete()


@pytest.mark.parametrize("gone", ["target", "source", "root"])
def test_a_directory_that_vanishes_while_it_is_copied(gone: str, base: Path) -> None:
    broken = Broken.make(base, elements=3 << 20)
    plan = broken.again()
    folder = {
        "target": broken.root / "ckpt_dir0",
        "source": (broken.root / plan.actions[0].source).parent,
        "root": broken.root,
    }[gone]
    vanished = []

    def strike(count: int) -> None:
        if not vanished:
            shutil.rmtree(folder)
            vanished.append(folder)

    outcome = api.apply(plan, progress=strike)
    assert vanished
    first, second = outcome.results
    assert outcome.exit_code in ((0, 1, 3) if gone == "source" else (1, 3))
    if first.status == "copied":  # the bytes of a file that is open are still there
        assert gone == "source"
        assert broken.path(0).read_bytes() == broken.truth[0]
    else:
        assert str(broken.root / ("ckpt_dir2" if gone == "source" else "")) in first.error
        assert not broken.path(0).exists()
    if gone == "root":
        assert second.status == "failed"
        assert not broken.root.exists()
        return
    assert second.status == "copied"
    assert broken.path(1).read_bytes() == broken.truth[1]
    assert broken.leftovers() == []
    if gone == "target":
        broken.complete()


def test_sources_that_vanish_before_the_copy_are_replaced_by_others(base: Path) -> None:
    broken = Broken.make(base, data_parallel=3)
    plan = broken.again()
    (broken.root / plan.actions[0].source).unlink()
    outcome = api.apply(plan)
    assert outcome.exit_code == 5
    assert outcome.results[0].status == "copied"
    assert plan.actions[0].source in outcome.results[0].dropped[0]
    assert broken.path(0).read_bytes() == broken.truth[0]
    broken.complete()


CLOCKS: dict[str, Callable[[int, int], int]] = {
    "zero": lambda place, count: 0,
    "before 1970": lambda place, count: -(10**18) + place,
    "far in the future": lambda place, count: 2**33 * 10**9 + place,
    "backwards": lambda place, count: (count - place) * 10**9,
    "every other in the future": lambda place, count: (place % 2) * 2**33 * 10**9 + place,
}


@pytest.mark.parametrize("manifests", [True, False], ids=["manifests", "no manifests"])
@pytest.mark.parametrize("clock", CLOCKS)
def test_a_clock_that_jumps_changes_neither_step_nor_source(clock: str, manifests: bool, base: Path) -> None:
    steps = [Step(1, 8), Step(2, 8), Step(3, 8)]
    root = make_tree(base / "tree", data_parallel=3, steps=steps)
    if manifests:
        save_manifests(root)
    truth = {rank: (root / f"ckpt_dir{rank}" / "test-3_8.ckpt").read_bytes() for rank in range(6)}
    (root / "ckpt_dir0" / "test-3_8.ckpt").unlink()
    overwrite(root / "ckpt_dir3" / "test-3_8.ckpt", truth[3][:-5])
    usual = decisions(api.plan(api.scan(root)))
    paths = sorted(root.rglob("*.ckpt"))
    for place, path in enumerate(paths):
        os.utime(path, ns=(CLOCKS[clock](place, len(paths)),) * 2)
    plan = api.plan(api.scan(root))
    assert plan.step == Step(3, 8)
    assert decisions(plan) == usual
    assert api.apply(plan).exit_code == 0
    assert {rank: (root / f"ckpt_dir{rank}" / "test-3_8.ckpt").read_bytes() for rank in truth} == truth
    assert not api.plan(api.scan(root)).actions


def decisions(plan: Plan) -> Plan:
    """Return a plan without the times in it."""
    text = re.sub(r'("(?:source_)?mtime_ns": )-?\d+', r"\g<1>0", json.dumps(plan_to_json(plan)))
    return plan_from_json(text, "test")


@pytest.mark.parametrize("manifests", [True, False], ids=["manifests", "no manifests"])
def test_what_a_killed_recovery_had_finished_is_not_done_again(manifests: bool, base: Path) -> None:
    broken = Broken.make(base, manifests=manifests)
    halfway = 0
    for number in range(1, MOST_CALLS):
        plan = through_json(broken.again())
        faults = Faults(str(broken.root), number, "kill", WRITING)

        def work(plan: Plan = plan, faults: Faults = faults) -> None:
            with faults.installed():
                api.apply(plan)

        if in_a_child(work) == 0:
            break
        journal = broken.root / ".ms_recover.journal"
        lines = journal.read_text().splitlines() if journal.exists() else []
        finished = [json.loads(line)["target"] for line in lines]
        before = {target: (broken.root / target).stat().st_ino for target in finished}
        trace = Faults(str(broken.root), 0, "never", WRITING)
        with trace.installed():
            outcome = api.apply(plan)
        assert outcome.exit_code == 0
        for target, inode in before.items():
            assert (broken.root / target).stat().st_ino == inode
            assert [call for call in trace.trace if call.endswith(target)] == []
            (result,) = [result for result in outcome.results if result.target == target]
            assert result.status == "already there"
        halfway += len(finished) == 1
        broken.complete()
    assert halfway > 5


def test_a_journal_is_believed_only_while_its_targets_are_what_it_tells(base: Path) -> None:
    broken = Broken.make(base)
    plan = broken.again()
    assert api.apply(replace(plan, actions=plan.actions[:1])).exit_code == 0
    status = broken.path(0).stat()
    line = {
        "target": plan.actions[0].target,
        "inode": status.st_ino,
        "bytes": status.st_size,
        "mtime_ns": status.st_mtime_ns,
        "digest": plan.actions[0].replica.digest,
    }
    journal = broken.root / ".ms_recover.journal"
    for lie in ({"inode": 1}, {"bytes": 3}, {"mtime_ns": 5}, {"digest": "xxh3_128:" + "0" * 32}, {"target": 7}):
        journal.write_text(json.dumps({**line, **lie}) + "\n{cut off")
        trace = Faults(str(broken.root), 0, "never", READING)
        with trace.installed():
            assert api.apply(plan).exit_code == 0
        assert any(call.endswith(plan.actions[0].target) for call in trace.trace), lie
    journal.write_bytes(os.urandom(500))
    assert api.apply(plan).exit_code == 0
    manifest_of(broken.path(0)).unlink()
    journal.write_text(json.dumps(line) + "\n")
    assert api.apply(plan).exit_code == 0
    assert manifest_of(broken.path(0)).exists()
    broken.complete()
