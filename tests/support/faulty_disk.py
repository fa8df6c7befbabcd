"""A tree whose recovery meets a fault at every one of its calls, and what must hold however it ends."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import MsRecoverError
from ms_recover.formats.plan_json import plan_from_json, plan_to_json
from ms_recover.model.outcome import Outcome
from ms_recover.model.plan import Plan
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.faults import WRITING, Faults
from tests.support.mishaps import overwrite

REPOSITORY = Path(__file__).parents[2]
MEMORY = Path("/dev/shm")
NAME = "test-1_8.ckpt"
OLD = b"what lay there before"
LIMIT = 60
MOST_CALLS = 1000


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: the walks make hundreds of trees."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            yield Path(folder)
    else:
        yield tmp_path


@dataclass
class Broken:
    """A tree that lost two ranks' slices: one with its directory, one damaged under its name."""

    template: Path
    root: Path
    truth: dict[int, bytes]
    old: dict[int, bytes | None] = field(default_factory=lambda: {0: None, 1: OLD})
    listed: frozenset[int] = frozenset(range(4))

    @classmethod
    def make(cls, base: Path, *, manifests: bool = True, elements: int = 64, data_parallel: int = 2) -> Broken:
        template = make_tree(
            base / "template", data_parallel=data_parallel, parameters={"w": elements, "global_step": 1}
        )
        if manifests:
            save_manifests(template)
        truth = {int(path.parent.name[8:]): path.read_bytes() for path in sorted(template.glob(f"*/{NAME}"))}
        shutil.rmtree(template / "ckpt_dir0")
        overwrite(template / "ckpt_dir1" / NAME, OLD)
        return cls(template, base / "tree", truth)

    def again(self) -> Plan:
        """Break the tree again and plan its recovery."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.template, self.root)
        plan = api.plan(api.scan(self.root))
        assert [action.rank for action in plan.actions] == sorted(self.old)
        return plan

    def path(self, rank: int) -> Path:
        return self.root / f"ckpt_dir{rank}" / NAME

    def check_final_names(self) -> None:
        """Every final name holds old bytes or new ones."""
        for rank, data in self.truth.items():
            old = self.old.get(rank, data)
            now = self.path(rank).read_bytes() if self.path(rank).exists() else None
            assert now in (old, data), f"rank {rank} holds {now and len(now)} bytes that are neither old nor new"
            if rank not in self.old:
                assert now == data

    def leftovers(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*.tmp"))

    def complete(self) -> None:
        """The next run brings everything to its end, and the one after that has nothing to do."""
        plan = api.plan(api.scan(self.root))
        outcome = api.apply(plan)
        assert outcome.exit_code == 0, outcome
        assert {rank: self.path(rank).read_bytes() for rank in self.truth} == self.truth
        assert all((self.path(rank).parent / "group_info.pb").exists() for rank in self.listed)
        assert self.leftovers() == []
        assert not (self.root / ".ms_recover.journal").exists()
        before = self.files()
        after = api.plan(api.scan(self.root))
        assert after.recoverable
        assert not after.actions
        assert not after.group_files
        assert not api.verify(api.scan(self.root)).wrong
        assert {result.status for result in api.apply(plan).results} <= {"already there"}
        assert self.files() == before

    def files(self) -> dict[str, int]:
        """Return the inode of every slice; one that was written again has another."""
        return {str(path): path.stat().st_ino for path in self.root.rglob("*.ckpt")}


def documented_codes() -> set[int]:
    text = (REPOSITORY / "docs" / "exit-codes.md").read_text()
    return {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}


def in_a_child(work: Callable[[], object]) -> int:
    """Run `work` in a child process; return its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pytest.fail(f"the child was still at work after {LIMIT} s")


def said(outcome: Outcome) -> list[str]:
    """Return what went wrong: errors first, then sources that were dropped."""
    errors = [result.error for result in outcome.results if result.error] + list(outcome.errors)
    return errors + [text for result in outcome.results for text in result.dropped]


def through_json(plan: Plan) -> Plan:
    return plan_from_json(json.dumps(plan_to_json(plan)), "test")


def change(path: Path, keep_time: bool) -> None:
    """Change the last byte as training or a bad controller would."""
    status = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    path.chmod(0o400)
    if keep_time:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def kill_at_every_call(broken: Broken, kind: str) -> None:
    """Recover once for each call that writes, and be killed there; every other time the same plan goes on."""
    struck = 0
    for number in range(1, MOST_CALLS):
        plan = through_json(broken.again())
        faults = Faults(str(broken.root), number, kind, WRITING)

        def work(plan: Plan = plan, faults: Faults = faults) -> None:
            with faults.installed():
                api.apply(plan)

        code = in_a_child(work)
        broken.check_final_names()
        if number % 2:
            assert api.apply(plan).exit_code == 0
            assert broken.leftovers() == []
        broken.complete()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        struck += 1
    assert 20 < struck < MOST_CALLS - 2


def fail_at_every_call(broken: Broken, code: str, calls: tuple[str, ...]) -> list[int]:
    """Recover once for each call, which meets an error; return the exit codes."""
    codes: list[int] = []
    while len(codes) < MOST_CALLS - 1:
        plan = broken.again()
        faults = Faults(str(broken.root), len(codes) + 1, code, calls)
        with faults.installed():
            try:
                outcome = api.apply(plan)
                exit_code, messages = outcome.exit_code, said(outcome)
            except MsRecoverError as error:
                exit_code, messages = error.exit_code, [str(error)]
        codes.append(exit_code)
        struck = faults.count >= len(codes)
        broken.check_final_names()
        assert broken.leftovers() == [], faults.trace[len(codes) - 1]
        assert exit_code in documented_codes()
        assert (exit_code == 0) == (not messages), messages
        for message in messages:
            assert str(broken.root) in message or "ckpt_dir" in message, message
        broken.complete()
        if not struck:
            assert len(codes) - codes.count(0) > 3
            return codes
    pytest.fail(f"after {MOST_CALLS} calls the recovery was not done")
