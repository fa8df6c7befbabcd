"""A fault at every call of a recovery that sets slices aside: no name is empty, no byte lost, nothing kept twice."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import MsRecoverError
from ms_recover.execution.set_aside import rename_slice, supersede
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.model.actions import FileState
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import GivenUpSlice, Plan
from ms_recover.model.steps import Step
from ms_recover.stores.local_store import LocalStore
from ms_recover.testing.trees import make_tree
from tests.support import faulty_disk as support
from tests.support.faults import WRITING, Faults
from tests.support.faulty_disk import LIMIT, MOST_CALLS, documented_codes, in_a_child, said, through_json
from tests.support.mishaps import overwrite

base, quiet = support.base, support.quiet  # fixtures

CALLS = (*WRITING, "link")
NAME, NEWER = "test-1_8.ckpt", "test-1_9.ckpt"
BESIDE = {MANIFEST_SUFFIX: b"the manifest of a slice", STATE_SUFFIX: b"its state"}


@contextmanager
def no_links() -> Iterator[None]:
    """A file system that makes no hard links."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    link = os.link
    try:
        os.link = refuse
        yield
    finally:
        os.link = link


LINKS = pytest.mark.parametrize("links", [nullcontext, no_links], ids=["hard links", "no hard links"])


@dataclass
class Outvoted:
    """Twice three replicas without manifests, of which rank 1 has another bit, and a state beside its slice.

    Rank 2 alone has a slice of a newer step, which the plan gives up.
    """

    template: Path
    root: Path
    truth: bytes
    old: bytes
    newer: bytes

    @classmethod
    def make(cls, base: Path) -> Outvoted:
        steps, listed = [Step(1, 8), Step(1, 9)], {"w": 64, "global_step": 1}
        root = make_tree(base / "template", data_parallel=3, model_parallel=2, steps=steps, parameters=listed)
        for rank in (0, 1, 3, 4, 5):
            (root / f"ckpt_dir{rank}" / NEWER).unlink()
        for suffix, data in BESIDE.items():
            (root / "ckpt_dir2" / f"{NEWER}{suffix}").write_bytes(data)
        path = root / "ckpt_dir1" / NAME
        truth = path.read_bytes()
        old = truth[:-1] + bytes([truth[-1] ^ 1])
        overwrite(path, old)
        path.with_name(f"{NAME}{STATE_SUFFIX}").write_bytes(BESIDE[STATE_SUFFIX])
        return cls(root, base / "tree", truth, old, (root / "ckpt_dir2" / NEWER).read_bytes())

    def again(self) -> Plan:
        """Make the tree again and plan its recovery."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.template, self.root)
        plan = self.plan()
        assert [one.set_aside for one in plan.actions] == [f"ckpt_dir1/{NAME}.outvoted"]
        assert plan.set_aside
        return plan

    def plan(self) -> Plan:
        """Plan the recovery of the step that all ranks have; the newer slice is given up while it is in place."""
        plan = api.plan(api.scan(self.root))
        path = self.root / "ckpt_dir2" / NEWER
        if not path.exists():
            return plan
        status = path.stat()
        state = FileState(status.st_size, status.st_mtime_ns)
        one = GivenUpSlice(rank=2, path=f"ckpt_dir2/{NEWER}", state=state, reason="whole on no set of ranks")
        return replace(plan, set_aside=(one,))

    def check(self) -> None:
        """Nothing is lost: what lay under a name lies there or set aside, and the final name is never empty."""
        folder = self.root / "ckpt_dir1"
        now = (folder / NAME).read_bytes()
        assert now in (self.old, self.truth), f"{len(now)} bytes that are neither old nor new"
        if now == self.truth:
            assert (folder / f"{NAME}.outvoted").read_bytes() == self.old
            assert (folder / f"{NAME}.outvoted{STATE_SUFFIX}").read_bytes() == BESIDE[STATE_SUFFIX]
        folder = self.root / "ckpt_dir2"
        for suffix, data in {"": self.newer, **BESIDE}.items():
            places = [folder / f"{NEWER}{suffix}", folder / f"{NEWER}.superseded{suffix}"]
            assert {place.read_bytes() for place in places if place.exists()} == {data}, suffix
        check_whole(folder / NEWER, folder / f"{NEWER}.superseded")

    def complete(self) -> None:
        """The next run brings everything to its end, each slice set aside once, and the next has nothing to do."""
        outcome = api.apply(self.plan())
        assert outcome.exit_code == 0, outcome
        self.check()
        assert (self.root / "ckpt_dir1" / NAME).read_bytes() == self.truth
        aside = sorted(path.name for path in self.root.rglob("*.outvoted*"))
        assert aside == [f"{NAME}.outvoted", f"{NAME}.outvoted{STATE_SUFFIX}"]
        aside = sorted(path.name for path in self.root.rglob("*.superseded*"))
        assert aside == sorted(f"{NEWER}.superseded{suffix}" for suffix in ("", *BESIDE))
        assert not [*self.root.rglob("*.tmp")]
        assert not self.plan().changes_anything
        assert not api.verify(api.scan(self.root)).wrong


def check_whole(*paths: Path) -> None:
    """A slice is under one of the names, and under none of them without its manifest and its state."""
    there = [path for path in paths if path.exists()]
    assert there
    for path in there:
        assert {suffix: path.with_name(f"{path.name}{suffix}").read_bytes() for suffix in BESIDE} == BESIDE


@LINKS
@pytest.mark.parametrize("kind", ["kill", "kill after", "EIO"])
@pytest.mark.parametrize("way", ["away", "back"])
def test_a_strike_between_the_renames_never_leaves_a_slice_without_its_state(
    way: str, kind: str, links: Callable[[], AbstractContextManager[None]], base: Path
) -> None:
    """Struck at each call, and gone on with: the slice is whole under one name or the other, in the end under one."""
    folder = base / "ckpt_dir2"
    final, aside = folder / NEWER, folder / f"{NEWER}.superseded"
    begin, end = (final, aside) if way == "away" else (aside, final)
    store = LocalStore(str(folder))

    def work() -> None:
        if way == "away":
            supersede(store, NEWER)
        else:
            rename_slice(store, aside.name, NEWER)

    def again() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for suffix, data in {"": b"a slice", **BESIDE}.items():
            begin.with_name(f"{begin.name}{suffix}").write_bytes(data)

    def struck(faults: Faults) -> None:
        with links(), faults.installed(), suppress(MsRecoverError):
            work()

    again()
    whole = Faults(str(base), 0, kind, CALLS)
    struck(whole)
    assert len(whole.trace) >= 8
    for number in range(1, len(whole.trace) + 1):
        again()
        in_a_child(partial(struck, Faults(str(base), number, kind, CALLS)))
        check_whole(final, aside)
        with links():
            work()
        assert sorted(path.name for path in folder.iterdir()) == sorted(f"{end.name}{one}" for one in ("", *BESIDE))
        check_whole(end)


@LINKS
@pytest.mark.parametrize("kind", ["kill", "kill after"])
def test_sigkill_at_every_call(kind: str, links: Callable[[], AbstractContextManager[None]], base: Path) -> None:
    """Every other time the same plan goes on."""
    tree = Outvoted.make(base)

    def work(plan: Plan, faults: Faults) -> None:
        with links(), faults.installed():
            api.apply(plan)

    whole = Faults(str(tree.root), 0, kind, CALLS)
    work(tree.again(), whole)
    assert len(whole.trace) > 15
    killed = 0
    for number in range(1, len(whole.trace) + 1):
        plan = through_json(tree.again())
        code = in_a_child(partial(work, plan, Faults(str(tree.root), number, kind, CALLS)))
        killed += code == -signal.SIGKILL
        tree.check()
        with links():
            if number % 2:
                assert api.apply(plan).exit_code == 0
                tree.check()
            tree.complete()
    refused = sum(call.startswith("link") for call in whole.trace)
    assert killed >= len(whole.trace) - refused  # no link that is refused kills behind it


@LINKS
@pytest.mark.parametrize("code", ["ENOSPC", "EIO", "EACCES", "EROFS"])
def test_an_error_at_every_call(code: str, links: Callable[[], AbstractContextManager[None]], base: Path) -> None:
    tree = Outvoted.make(base)
    failed = 0
    for number in range(1, MOST_CALLS):
        plan = tree.again()
        faults = Faults(str(tree.root), number, code, CALLS)
        with links(), faults.installed():
            try:
                outcome = api.apply(plan)
                exit_code, messages = outcome.exit_code, said(outcome)
            except MsRecoverError as error:
                exit_code, messages = error.exit_code, [str(error)]
        tree.check()
        assert exit_code in documented_codes()
        assert (exit_code == 0) == (not messages), messages
        for message in messages:
            assert "ckpt_dir" in message or str(tree.root) in message, message
        tree.complete()
        failed += bool(messages)
        if faults.count < number:
            assert failed > 10
            return
    pytest.fail(f"after {MOST_CALLS} calls the recovery was not done")


def test_ranks_that_recover_only_themselves_set_only_their_own_slices_aside(base: Path) -> None:
    tree = Outvoted.make(base)
    plan = tree.again()
    outcome = api.apply(plan, ranks={1}, lock_timeout=0.0)
    assert (outcome.exit_code, outcome.set_aside) == (0, ())
    assert [one.set_aside for one in outcome.results] == [f"ckpt_dir1/{NAME}.outvoted"]
    assert (tree.root / "ckpt_dir2" / NEWER).exists()
    assert api.apply(plan, ranks={2}).set_aside == (f"ckpt_dir2/{NEWER}.superseded",)
    tree.complete()


def test_nothing_is_set_aside_for_a_slice_that_cannot_be_written(base: Path) -> None:
    """The source is gone: the outvoted slice has one name, and the newer one stays."""
    tree = Outvoted.make(base)
    plan = tree.again()
    for rank in (3, 5):
        (tree.root / f"ckpt_dir{rank}" / NAME).unlink()
    outcome = api.apply(plan)
    assert outcome.exit_code == 5
    assert outcome.set_aside == ()
    assert not [*tree.root.rglob("*.outvoted*"), *tree.root.rglob("*.superseded*")]
    assert (tree.root / "ckpt_dir1" / NAME).read_bytes() == tree.old


def test_the_commands_of_a_plan_take_a_slice_back_or_remove_it(base: Path) -> None:
    tree = Outvoted.make(base)
    api.apply(tree.again())
    folder = tree.root / "ckpt_dir1"
    back, remove = commands(tree.root)
    subprocess.run(["bash", "-ec", back], check=True, timeout=LIMIT)
    assert (folder / NAME).read_bytes() == tree.old
    assert sorted(path.name for path in folder.iterdir()) == ["group_info.pb", NAME, f"{NAME}{STATE_SUFFIX}"]
    assert [one.rank for one in tree.plan().actions] == [1]
    plan = api.plan(api.scan(tree.root), PlanOptions(lost=frozenset((3, 5))))
    assert [(one.rank, one.set_aside) for one in plan.actions] == [(3, None), (5, None)]
    api.apply(tree.plan())
    assert commands(tree.root) == (back, remove)
    subprocess.run(["bash", "-ec", remove], check=True, timeout=LIMIT)
    assert (folder / NAME).read_bytes() == tree.truth
    assert not [*tree.root.rglob("*.outvoted*")]


def commands(root: Path) -> tuple[str, str]:
    """Return the commands of the plan's note that take the outvoted slice back, and that remove it."""
    (note,) = [note for note in api.plan(api.scan(root)).notes if note.path.endswith(".outvoted")]
    found = re.search(r"; to take it back: (.*); then plan with --lost .*; to remove it: (.*)", note.reason)
    assert found is not None
    return found[1], found[2]
