"""A fault at every call of a recovery that puts slices together, and sources that change under it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import MsRecoverError, VerificationError
from ms_recover.model.compose import ComposeAction
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Plan
from tests.support import faulty_disk as support
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.faults import OPENING, READING, WRITING, Faults
from tests.support.faulty_disk import (
    LIMIT,
    MOST_CALLS,
    NAME,
    OLD,
    Broken,
    change,
    fail_at_every_call,
    in_a_child,
    kill_at_every_call,
    said,
)
from tests.support.mishaps import manifest_of, overwrite

MATRIX = (3, 2)
EVERY = 1 if "MS_RECOVER_EXAMPLES" in os.environ else 3
"""Calls from one strike to the next, where a source changes in a way that resembles another."""
base, quiet = support.base, support.quiet  # fixtures
APPLY = [sys.executable, "-c", "import sys; from ms_recover.cli.entry import main; sys.exit(main())", "apply"]


def tensors(elements: int = 12) -> dict[str, CutTensor]:
    """Return parameters of which no other rank holds all; parts of ``columns`` lie with three, of ``rows`` with two."""
    source = np.random.default_rng(elements)
    arrays = {name: source.random((6, elements), np.float32) for name in ("columns", "rows")}
    return {
        "columns": CutTensor("Float32", arrays["columns"], cut_layout("columns", MATRIX, (), (0,))),
        "rows": CutTensor("Float32", arrays["rows"], cut_layout("rows", MATRIX, (1,), ())),
        "global_step": CutTensor("Int64", np.int64(8)),
    }


class Cut(Broken):
    """A tree that lost two ranks' slices, of which no other rank holds all."""

    @classmethod
    def make(cls, base: Path, *, manifests: bool = True, elements: int = 12, lost: tuple[int, ...] = (0, 3)) -> Cut:
        template = make_cut_tree(base / "template", tensors(elements), 6, manifests=manifests)
        truth = {rank: (template / f"ckpt_dir{rank}" / NAME).read_bytes() for rank in range(6)}
        shutil.rmtree(template / f"ckpt_dir{lost[0]}")
        for rank in lost[1:]:
            overwrite(template / f"ckpt_dir{rank}" / NAME, OLD)
        old = {rank: None if rank == lost[0] else OLD for rank in lost}
        return cls(template, base / "tree", truth, old, frozenset(range(6)) - {lost[0]})

    def again(self) -> Plan:
        plan = super().again()
        assert all(isinstance(action, ComposeAction) for action in plan.actions)
        return plan

    def giver(self, plan: Plan, name: str) -> Path:
        """Return the slice that the first action takes a parameter from."""
        [action, *_] = plan.actions
        assert isinstance(action, ComposeAction)
        [item] = [item for item in action.parameters if item.parameter.name == name]
        return self.root / action.sources[item.pieces[0].source].path


@pytest.mark.parametrize("manifests", [True, False], ids=["manifests", "no manifests"])
@pytest.mark.parametrize("kind", ["kill", "kill after"])
def test_sigkill_at_every_call(kind: str, manifests: bool, base: Path) -> None:
    kill_at_every_call(Cut.make(base, manifests=manifests), kind)


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("ENOSPC", WRITING),
        ("EIO", (*WRITING, *READING, *OPENING)),
    ],
    ids=["no space", "the device fails"],
)
def test_an_error_at_every_call(code: str, calls: tuple[str, ...], base: Path) -> None:
    codes = fail_at_every_call(Cut.make(base), code, calls)
    if "preadv" in calls:
        assert codes.count(VerificationError.exit_code) > 3, "another source was asked"


def rewrite(path: Path, data: bytes) -> None:
    """Put another file in place of one, as training that saves again does."""
    aside = path.with_name("aside")
    aside.write_bytes(data)
    os.utime(aside, ns=(0, path.stat().st_mtime_ns + 10**9))
    aside.replace(path)


def shifted(path: Path) -> bytes:
    """Return a slice of the same size whose contents lie elsewhere in it."""
    data = path.read_bytes()
    at = data.index(b"rows") - 4
    return data[at:] + data[:at]


LAID_OUT_DIFFERENTLY = "replaced by one that is laid out differently"
AT_EVERY_CALL = {"truncated", "changed", LAID_OUT_DIFFERENTLY}
MEANWHILE: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: (path.chmod(0o600), os.truncate(path, path.stat().st_size // 2)),
    "emptied": lambda path: (path.chmod(0o600), os.truncate(path, 0)),
    "grown": lambda path: (path.chmod(0o600), os.truncate(path, path.stat().st_size + 9)),
    "changed": lambda path: change(path, False),
    "replaced": lambda path: rewrite(path, bytes(path.stat().st_size)),
    LAID_OUT_DIFFERENTLY: lambda path: rewrite(path, shifted(path)),
    "removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize(
    ("what", "quick"),
    [
        *((what, False) for what in MEANWHILE),
        *((what, True) for what in sorted(AT_EVERY_CALL)),
    ],
)
def test_a_source_that_changes_at_any_call(what: str, quick: bool, base: Path) -> None:
    """What lands under the final name is right, or nothing does; also where no digests are known."""
    broken = Cut.make(base, manifests=not quick)
    template = broken.again()
    source = broken.giver(template, "columns")
    whole = source.read_bytes()
    refused = number = struck = 0
    while number < MOST_CALLS:
        number += 1 if quick or what in AT_EVERY_CALL else EVERY
        struck += 1
        broken.again()
        plan = api.plan(api.scan(broken.root), PlanOptions(quick=quick))
        assert broken.giver(plan, "columns") == source
        faults = Faults(str(broken.root), number, lambda call: MEANWHILE[what](source), (*READING, "open", "pwrite"))
        with faults.installed():
            outcome = api.apply(plan)
        for rank in (0, 3):
            now = broken.path(rank).read_bytes() if broken.path(rank).exists() else None
            assert now in (broken.old[rank], broken.truth[rank]), faults.trace[number - 1]
        assert broken.leftovers() == []
        assert outcome.exit_code in (0, 3, 5)
        assert (outcome.exit_code == 0) == (said(outcome) == [])
        refused += outcome.exit_code != 0
        if faults.count < number:
            break
        if struck % 7 == 0:
            if source.exists():
                source.chmod(0o600)
            source.write_bytes(whole)
            broken.complete()
    assert refused > 3
    assert number < MOST_CALLS


def test_another_form_to_follow_is_found_where_the_first_is_gone(base: Path) -> None:
    """The source that gives most bytes is the model for the file; three hold its part."""
    broken = Cut.make(base)
    plan = broken.again()
    [action, _] = plan.actions
    (broken.root / action.sources[action.model].path).unlink()
    outcome = api.apply(plan)
    assert outcome.exit_code == VerificationError.exit_code
    assert action.sources[action.model].path in outcome.results[0].dropped[0]
    assert broken.path(0).read_bytes() == broken.truth[0]


def test_a_target_that_appears_at_any_call_is_not_replaced(base: Path) -> None:
    broken = Cut.make(base)
    newer = b"what training saved meanwhile"
    number = kept = 0
    while number < MOST_CALLS:
        number += 1
        plan = broken.again()
        appeared = []

        def appear(call: str, appeared: list[str] = appeared) -> None:
            if not broken.path(0).exists() and broken.path(0).parent.exists():
                broken.path(0).write_bytes(newer)
                appeared.append(call)

        faults = Faults(str(broken.root), number, appear, (*READING, "open", "pwrite", "fsync", "mkdir", "unlink"))
        with faults.installed():
            outcome = api.apply(plan)
        if appeared:
            kept += 1
            assert broken.path(0).read_bytes() == newer, appeared
            assert outcome.exit_code == VerificationError.exit_code
            assert "appeared or changed after the plan was made" in said(outcome)[0]
        else:
            assert outcome.exit_code == 0
        assert broken.path(3).read_bytes() == broken.truth[3]
        assert broken.leftovers() == []
        if faults.count < number:
            break
    assert kept > 3
    assert number < MOST_CALLS


def test_the_same_plan_again_finds_everything_there(base: Path) -> None:
    broken = Cut.make(base)
    plan = broken.again()
    assert api.apply(plan).exit_code == 0
    before = broken.files()
    manifest_of(broken.path(0)).unlink()
    outcome = api.apply(plan)
    assert outcome.exit_code == 0
    assert {result.status for result in outcome.results} == {"already there"}
    assert manifest_of(broken.path(0)).exists()
    assert broken.files() == before
    broken.complete()


PARTIAL = "test-1_8.partial.ckpt"


@pytest.mark.parametrize("kind", ["kill", "kill after", "ENOSPC", "EIO"])
def test_what_survives_is_written_whole_or_not_at_all(kind: str, base: Path) -> None:
    """Ranks 0 and 1 are the only ones that hold the first part of ``rows``."""
    broken = Cut.make(base, lost=(0, 1))
    calls = (*WRITING, *READING, *OPENING) if kind == "EIO" else WRITING
    expected: dict[int, bytes] = {}
    number = failed = 0
    while number < MOST_CALLS:
        shutil.rmtree(broken.root, ignore_errors=True)
        shutil.copytree(broken.template, broken.root)
        plan = api.plan(api.scan(broken.root), PlanOptions(world_size=6))
        assert not plan.recoverable
        faults = Faults(str(broken.root), number, kind, calls)

        def work(plan: Plan = plan, faults: Faults = faults) -> None:
            with faults.installed():
                api.apply(plan, partial=True)

        code = 0
        if kind.startswith("kill"):
            code = in_a_child(work)
        else:
            with suppress(MsRecoverError):
                work()
            assert broken.leftovers() == []
        broken.check_final_names()
        names = {rank: broken.path(rank).with_name(PARTIAL) for rank in (0, 1)}
        held = {rank: path.read_bytes() for rank, path in names.items() if path.exists()}
        expected = expected or held  # the first run is not struck
        assert len(expected) == 2
        assert all(data == expected[rank] for rank, data in held.items())
        failed += len(held) < 2
        assert api.apply(plan, partial=True).exit_code == 4
        assert {rank: path.read_bytes() for rank, path in names.items()} == expected
        assert broken.leftovers() == []
        if number and code == 0 and (kind.startswith("kill") or faults.count < number):
            break
        number += 1
    assert failed > 3
    assert number < MOST_CALLS


@pytest.mark.parametrize("partial", [False, True], ids=["whole", "partial"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_no_temporary_file(number: int, partial: bool, tmp_path: Path) -> None:
    broken = Cut.make(tmp_path, elements=1 << 19, lost=(0, 1) if partial else (0, 3))
    arguments = [*APPLY, str(broken.root), "--jobs", "2", *(["--partial", "--world-size", "6"] if partial else [])]
    shutil.copytree(broken.template, broken.root)
    struck = 0
    for attempt in range(20):
        for rank in (0, *broken.old):
            for path in broken.path(rank).parent.glob("*.ckpt*") if broken.path(rank).parent.exists() else ():
                path.unlink()
        process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
        deadline = time.monotonic() + LIMIT
        while not broken.leftovers() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.002 * attempt)
        os.kill(process.pid, number)
        _, errors = process.communicate(timeout=LIMIT)
        assert broken.leftovers() == []
        assert b"Traceback" not in errors
        for rank in broken.old:
            assert not broken.path(rank).exists() or broken.path(rank).read_bytes() == broken.truth[rank]
        if process.returncode == 128 + number:
            struck += 1
            assert b"interrupted" in errors
        else:  # it was done, perhaps so far that the interpreter no longer listened
            assert process.returncode in (4 if partial else 0, -number), errors
        if struck >= 2:
            break
    assert struck > 0
