"""A reshard that is killed, that runs out of space, or whose sources prove wrong: nothing wrong gets a final name."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import MsRecoverError, StorageError, UsageError, VerificationError
from ms_recover.file_names import RESHARD_NAME, TRACKER_NAME
from ms_recover.formats.header import read_header
from ms_recover.model.options import PlanOptions
from ms_recover.model.reshard import OutputFormat, ReshardOptions, ReshardPlan
from tests.support import faulty_disk
from tests.support.cuts import cut_layout
from tests.support.faults import OPENING, READING, WRITING, Faults
from tests.support.faulty_disk import MOST_CALLS, in_a_child
from tests.support.reshard import COUNTER, Job, check_tree, make_job_tree, write_strategies

base, quiet = faulty_disk.base, faulty_disk.quiet  # fixtures
EVERY = 1 if "MS_RECOVER_EXAMPLES" in os.environ else 9
"""Every so many calls one is struck; all of them where examples are asked for."""

SOURCE = Job(4, [{"rows": cut_layout("rows", (2, 2), (0,), ()), "columns": cut_layout("columns", (2, 2), (), (0,))}])
TARGET = Job(2, [{"rows": cut_layout("rows", (2,), (), (0,)), "columns": cut_layout("columns", (2,), (0,), ())}])
REPLICAS = Job(2, [{"rows": cut_layout("rows", (2,), (), ()), "columns": cut_layout("columns", (2,), (), ())}])
"""Two ranks that hold the same, so that their files are written together."""
NAME = "test-1_8.ckpt"


class Scene:
    """A tree, and the output that a plan makes of it."""

    def __init__(
        self, base: Path, *, manifests: bool = True, form: OutputFormat | None = None, target: Job = TARGET
    ) -> None:
        self.target = target
        numbers = np.random.default_rng(5)
        self.arrays = {name: numbers.random((8, 12), np.float32) for name in ("rows", "columns")}
        self.arrays[COUNTER] = np.int8(8)
        self.root = make_job_tree(base / "source", SOURCE, self.arrays, manifests=manifests)
        self.output = base / "output"
        strategy = str(write_strategies(base / "target", target))
        common = (("global_batch_size", 4),) if form == "mindformers" else ()
        self.options = ReshardOptions(strategy=strategy, form=form, common=common)

    def plan(self) -> ReshardPlan:
        return api.plan_reshard(api.scan(self.root), self.output, self.options)

    def files(self) -> dict[str, bytes]:
        """Return every finished file of the output."""
        return {
            str(path.relative_to(self.output)): path.read_bytes()
            for path in self.output.rglob("*")
            if path.is_file() and not path.name.endswith(".tmp")
        }

    def complete(self) -> None:
        """The next run brings everything to its end, and the one after that writes nothing."""
        outcome = api.reshard(self.plan(), compare=True)
        assert (outcome.exit_code, outcome.errors) == (0, ())
        if self.options.form is None:
            check_tree(self.output, self.target, self.arrays)
        else:
            assert is_complete(self.output)
        assert not list(self.output.rglob("*.tmp"))
        assert not api.verify(api.scan(self.output)).wrong
        before = {path: path.stat().st_mtime_ns for path in self.output.rglob("*")}
        again = api.reshard(self.plan())
        assert {one.status for one in again.results} == {"already there"}
        assert {path: path.stat().st_mtime_ns for path in self.output.rglob("*")} == before


def is_complete(output: Path) -> bool:
    """Whether every rank has its slice, and no document is to be written again."""
    plan = api.plan(api.scan(output))
    return plan.recoverable and not plan.changes_anything


def truth_of(base: Path, form: OutputFormat | None = None, target: Job = TARGET) -> dict[str, bytes]:
    """Return the files of a run that nothing disturbed."""
    scene = Scene(base / "truth", form=form, target=target)
    scene.complete()
    found = scene.files()
    shutil.rmtree(base / "truth")
    return found


def check_names(scene: Scene, truth: dict[str, bytes]) -> None:
    """Every final name holds what it must."""
    for name, data in scene.files().items() if scene.output.exists() else ():
        if name.endswith((".ckpt", ".pb", ".safetensors", "metadata.json", "common.json", ".txt")):
            assert data == truth[name], name


@pytest.mark.parametrize(
    ("form", "target"), [(None, TARGET), (None, REPLICAS), ("mindformers", TARGET)], ids=["ckpt", "replicas", "new"]
)
@pytest.mark.parametrize("kind", ["kill", "kill after"])
def test_killed_at_any_call_it_goes_on(kind: str, form: OutputFormat | None, target: Job, base: Path) -> None:
    scene, truth = Scene(base, form=form, target=target), truth_of(base, form, target)
    struck = 0
    for number in range(1, MOST_CALLS, EVERY):
        shutil.rmtree(scene.output, ignore_errors=True)
        plan = scene.plan()
        scene.output.mkdir(exist_ok=True)

        def work(plan: ReshardPlan = plan, number: int = number) -> None:
            with Faults(str(scene.output), number, kind, WRITING).installed():
                api.reshard(plan)

        code = in_a_child(work)
        check_names(scene, truth)
        if form and (scene.output / TRACKER_NAME).exists():
            assert is_complete(scene.output)
        scene.complete()
        assert scene.files().keys() == truth.keys()
        if code == 0:
            break
        assert code == -signal.SIGKILL
        struck += 1
    assert struck * EVERY > 20


@pytest.mark.parametrize(
    ("code", "calls"),
    [("ENOSPC", WRITING), ("EIO", (*WRITING, *READING, *OPENING))],
    ids=["no space", "the device fails"],
)
@pytest.mark.parametrize("target", [TARGET, REPLICAS], ids=["", "replicas"])
def test_an_error_at_any_call(code: str, calls: tuple[str, ...], target: Job, base: Path) -> None:
    scene, truth = Scene(base, target=target), truth_of(base, target=target)
    wrong = 0
    for number in range(1, MOST_CALLS, EVERY):
        shutil.rmtree(scene.output, ignore_errors=True)
        plan = scene.plan()
        scene.output.mkdir()
        faults = Faults(str(scene.output), number, code, calls)
        with faults.installed():
            try:
                outcome = api.reshard(plan)
                found, texts = outcome.exit_code, [one.error for one in outcome.results if one.error]
                texts += outcome.errors
            except MsRecoverError as error:
                found, texts = error.exit_code, [str(error)]
        check_names(scene, truth)
        assert not list(scene.output.rglob("*.tmp")), faults.trace[-1]
        assert bool(found) == bool(texts), (found, texts)
        for text in texts:
            assert str(scene.output) in text or "ckpt_dir" in text
        wrong += bool(found)
        struck = faults.count >= number
        scene.complete()
        if not struck:
            break
    assert wrong > 2


def flip(path: Path) -> None:
    """Change a byte of ``rows``, and nothing else that shows."""
    header, status = read_header(path), path.stat()
    [place] = header.contents[[one.name for one in header.parameters].index("rows")]
    data = bytearray(path.read_bytes())
    data[place.end - 1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("manifests", [True, False])
def test_a_damaged_slice_gives_nothing(manifests: bool, base: Path) -> None:
    """Its parameter comes from the replica, where manifests say which of the two is right."""
    scene = Scene(base, manifests=manifests)
    flip(scene.root / "ckpt_dir0" / NAME)
    plan = scene.plan()
    if manifests:
        assert api.reshard(plan, compare=True).exit_code == 0
        check_tree(scene.output, TARGET, scene.arrays)
        return
    assert plan.disagreements
    assert not plan.complete
    assert api.reshard(plan, partial=True).exit_code == VerificationError.exit_code


def test_a_source_that_changes_after_the_plan_is_passed_over(base: Path) -> None:
    scene = Scene(base)
    plan = scene.plan()
    flip(scene.root / "ckpt_dir0" / NAME)
    outcome = api.reshard(plan)
    assert outcome.exit_code == VerificationError.exit_code
    assert any("ckpt_dir0" in text for one in outcome.results for text in one.dropped)
    check_tree(scene.output, TARGET, scene.arrays)
    api.reshard(plan, compare=True)


def test_a_source_without_replica_that_changes_leaves_no_file(base: Path) -> None:
    scene = Scene(base)
    for rank in (2, 3):
        (scene.root / f"ckpt_dir{rank}" / NAME).unlink()
    plan = scene.plan()
    assert plan.complete
    flip(scene.root / "ckpt_dir0" / NAME)
    outcome = api.reshard(plan)
    assert outcome.exit_code == VerificationError.exit_code
    assert all("plan again" in (one.error or "") for one in outcome.results)
    assert not list(scene.output.rglob("*.ckpt"))


def test_the_cut_back_finds_a_file_that_was_changed(base: Path) -> None:
    scene = Scene(base)
    assert api.reshard(scene.plan(), compare=True).compared == 5
    path = scene.output / "ckpt_dir1" / NAME
    plan, data = scene.plan(), path.read_bytes()
    manifest = path.with_name(f"{NAME}.manifest.json")
    text = manifest.read_text()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    outcome = api.reshard(plan)
    assert [one.status for one in outcome.results] == ["already there", "failed"]
    assert "holds other bytes: move it away" in str(outcome.results[1].error)
    path.write_bytes(data)
    manifest.write_text(text)
    assert api.reshard(plan, compare=True).exit_code == 0


def test_the_output_belongs_to_one_plan(base: Path) -> None:
    scene = Scene(base)
    scene.output.mkdir()
    (scene.output / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="which no reshard wrote"):
        api.reshard(scene.plan())
    (scene.output / "notes.txt").unlink()
    assert api.reshard(scene.plan()).exit_code == 0
    (scene.output / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="no part of this reshard"):
        api.reshard(scene.plan())
    (scene.output / "notes.txt").unlink()
    other = api.plan_reshard(api.scan(scene.root), scene.output, ReshardOptions(full=True))
    with pytest.raises(UsageError, match="another reshard"):
        api.reshard(other)
    (scene.output / RESHARD_NAME).write_text("{")
    with pytest.raises(UsageError, match="another reshard"):
        api.reshard(scene.plan())


@pytest.mark.parametrize("where", ["source", "source/new", "source/ckpt_dir0"])
def test_nothing_is_written_into_the_tree(where: str, base: Path) -> None:
    scene = Scene(base)
    before = sorted(scene.root.rglob("*"))
    plan = api.plan_reshard(api.scan(scene.root), base / where, scene.options)
    with pytest.raises(UsageError, match="name a folder outside"):
        api.reshard(plan)
    (base / "link").symlink_to(scene.root)
    plan = api.plan_reshard(api.scan(scene.root), base / "link" / "new", scene.options)
    with pytest.raises(UsageError, match="name a folder outside"):
        api.reshard(plan)
    assert sorted(scene.root.rglob("*")) == before


def test_two_at_once_are_refused(base: Path) -> None:
    import fcntl

    scene = Scene(base)
    plan = scene.plan()
    api.reshard(plan)
    descriptor = os.open(scene.output, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="at work"):
            api.reshard(plan)
    finally:
        os.close(descriptor)


def test_quick_reads_no_more_than_it_takes(base: Path) -> None:
    scene = Scene(base)
    plan = api.plan_reshard(api.scan(scene.root), scene.output, scene.options, PlanOptions(quick=True))
    assert api.reshard(plan, compare=True).exit_code == 0
    check_tree(scene.output, TARGET, scene.arrays)
