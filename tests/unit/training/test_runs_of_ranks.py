"""All ranks resume the same run, whatever each of them sees."""

import os
import shutil
from contextlib import ExitStack
from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError, MsRecoverError, StorageError, UnrecoverableError, UsageError
from ms_recover.execution.directory_lock import is_held, lock_directory
from ms_recover.execution.manifests import write_manifest
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.manifest import RunStep, TrainingRecord
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import RunRecord
from ms_recover.testing.trees import make_tree, save_manifests

pytestmark = pytest.mark.mindspore

pytest.importorskip("mindspore")

from ms_recover.training.deciding.job import TrainingJob  # noqa: E402
from ms_recover.training.deciding.runs import agree_start, gather_runs  # noqa: E402
from ms_recover.training.found_slice import find_slice  # noqa: E402
from ms_recover.training.held_directories import Held  # noqa: E402
from ms_recover.training.search import Search  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402

SIZE = 4
OLD, NEW = "old", "new"
STARTED = {OLD: 1000, NEW: 2000}
FROM_OLD = RunStep(OLD, Step(1, 8), STARTED[OLD])


def steps(*texts):
    return tuple(map(Step.parse, texts))


def add_run(root, run, prefix, *texts, resumed_from=None):
    """Write the slices of a run for two pairs of ranks, 0 = 2 and 1 = 3, whose epochs have 8 steps."""
    make_tree(root / "made", steps=steps(*texts))
    save_manifests(root / "made", run)
    for path in sorted((root / "made").rglob("*.ckpt")):
        target = root / path.parent.name / path.name.replace("test-", f"{prefix}-")
        target.parent.mkdir(exist_ok=True)
        manifest = read_manifest(f"{path}{MANIFEST_SUFFIX}")
        step = manifest.step
        training = TrainingRecord(STARTED[run], resumed_from, epoch_steps=8)
        path.rename(target)
        changed = replace(
            manifest, file=target.name, training=training, cumulative_step=(step.epoch - 1) * 8 + step.step
        )
        write_manifest(str(target), changed)
    for path in (root / "made").rglob("group_info.pb"):
        path.replace(root / path.parent.name / path.name)
    shutil.rmtree(root / "made")


@pytest.fixture
def root(tmp_path):
    (tmp_path / "tree").mkdir()
    return tmp_path / "tree"


def found(roots, **options):
    """Have all ranks find their slices; return the path of each below its root, or what each raised."""
    roots = roots if isinstance(roots, list) else [roots] * SIZE
    jobs = thread_jobs(SIZE)

    def work(rank):
        judging = PlanOptions(world_size=SIZE, **options)
        search = Search(str(roots[rank]), ScanOptions(), judging, "refuse")
        slice_found = find_slice(jobs[rank], search, held[rank])
        slice_found.set_aside()
        return os.path.basename(slice_found.own.path), slice_found.steps.steps.run_of(slice_found.own.step)

    with ExitStack() as ends:
        held = [ends.enter_context(Held()) for _ in jobs]
        outcomes = on_all(SIZE, work)
    if any(isinstance(outcome, Exception) for outcome in outcomes):
        return outcomes
    assert len(set(outcomes)) == 1
    return outcomes[0]


def remove(root, rank, prefix):
    for path in (root / f"ckpt_dir{rank}").glob(f"{prefix}-*"):
        path.unlink()


def aside(root, rank=0):
    return sorted(path.name for path in (root / f"ckpt_dir{rank}").glob("*.superseded"))


def test_the_run_that_was_started_last_is_found_and_named(root, caplog):
    add_run(root, OLD, "test", "1_8", "3_4")
    add_run(root, NEW, "test_1", "2_2")
    assert found(root) == ("test_1-2_2.ckpt", RunStep(NEW, Step(2, 2), STARTED[NEW]))
    assert "training resumes from step 2_2 of run new" in caplog.text
    said = "step 3_4 of run old, started 1970-01-01 00:00:01 UTC is newer"
    assert f"{said}: --run old chooses it, or recover_train(run='old')" in caplog.text
    assert aside(root) == ["test-3_4.ckpt.superseded"]


def test_a_rank_without_any_slice_of_that_run_does_not_take_another_one(root, tmp_path):
    """It sees its own slices only, and gets nothing from others."""
    add_run(root, OLD, "test", "1_8", "3_4")
    add_run(root, NEW, "test_1", "2_2")
    roots = []
    for rank in range(SIZE):
        alone = tmp_path / f"node{rank}"
        alone.mkdir()
        (root / f"ckpt_dir{rank}").rename(alone / f"ckpt_dir{rank}")
        roots.append(alone)
    remove(roots[3], 3, "test_1")
    outcomes = found(roots)
    assert {type(outcome) for outcome in outcomes} == {UnrecoverableError}
    assert "rank 3 lacks step 3_4, 1_8: its slices are of run old" in str(outcomes[3])
    assert "--run old chooses it" in str(outcomes[3])
    assert aside(roots[0]) == []
    assert found(roots, run=OLD) == ("test-3_4.ckpt", RunStep(OLD, Step(3, 4), STARTED[OLD]))


def test_a_rank_that_does_not_see_the_resumed_run_goes_back_to_where_it_began(root, tmp_path):
    add_run(root, OLD, "test", "1_8", "3_4")
    add_run(root, NEW, "test_1", "2_2", resumed_from=FROM_OLD)
    alone = tmp_path / "node3"
    alone.mkdir()
    (root / "ckpt_dir3").rename(alone / "ckpt_dir3")
    remove(alone, 3, "test_1")
    assert found([root, root, root, alone]) == ("test-1_8.ckpt", RunStep(OLD, Step(1, 8), STARTED[OLD]))
    assert aside(alone, 3) == ["test-3_4.ckpt.superseded"]
    assert aside(root) == ["test-3_4.ckpt.superseded", "test_1-2_2.ckpt.superseded"]


def test_a_chosen_run_is_brought_back_on_each_rank_and_later_ones_make_way(root):
    add_run(root, OLD, "test", "1_8", "3_4")
    for path in root.rglob("test-*"):
        name = path.name.replace(".ckpt", ".ckpt.superseded")
        path.rename(path.with_name(name))
    add_run(root, NEW, "test_1", "1_4", "2_2")
    before = api.plan(api.scan(root))
    assert (before.step, before.run_id) == (Step(2, 2), NEW)
    assert "step 3_4 of run old" in before.warnings[0]
    assert found(root, run=OLD) == ("test-3_4.ckpt", RunStep(OLD, Step(3, 4), STARTED[OLD]))
    assert aside(root) == ["test_1-1_4.ckpt.superseded", "test_1-2_2.ckpt.superseded"]
    after = api.plan(api.scan(root))
    assert (after.step, after.run_id) == (Step(3, 4), OLD)
    assert [one.status for one in api.verify(api.scan(root)).checks] == ["sound"] * 2 * SIZE


def test_bringing_back_that_was_interrupted_is_finished(root):
    add_run(root, OLD, "test", "1_8", "3_4")
    add_run(root, NEW, "test_1", "2_2")
    for path in root.rglob("test-3_4.ckpt"):
        path.rename(path.with_name(f"{path.name}.superseded"))
    there = next(root.rglob("ckpt_dir1/test-3_4.ckpt.manifest.json"))
    for path in root.rglob("test-3_4.ckpt.manifest.json"):
        if path != there:
            path.rename(path.with_name(path.name.replace(".ckpt", ".ckpt.superseded")))
    assert found(root, run=OLD) == ("test-3_4.ckpt", RunStep(OLD, Step(3, 4), STARTED[OLD]))


def test_slices_that_were_all_set_aside_are_named_where_nothing_is_left(root):
    add_run(root, OLD, "test", "3_4")
    for path in root.rglob("test-*"):
        path.rename(path.with_name(path.name.replace(".ckpt", ".ckpt.superseded")))
    outcomes = found(root)
    assert {type(outcome) for outcome in outcomes} == {MissingInputError}
    assert "the slices of run old, " in str(outcomes[0])
    assert "up to step 3_4, were set aside" in str(outcomes[0])


def test_a_run_without_manifests_is_chosen_by_its_prefix_where_each_rank_sees_its_own_slices_only(root, tmp_path):
    for run, prefix, step in ((OLD, "alpha", "2_8"), (NEW, "beta", "2_8")):
        add_run(root, run, prefix, "1_8", step)
    for path in root.rglob(f"*{MANIFEST_SUFFIX}"):
        path.unlink()
    for path in root.rglob("alpha-*"):
        data = path.read_bytes()
        path.chmod(0o600)
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        os.utime(path, (1, 1))
    roots = []
    for rank in range(SIZE):
        (tmp_path / f"node{rank}").mkdir()
        shutil.copytree(root / f"ckpt_dir{rank}", tmp_path / f"node{rank}" / f"ckpt_dir{rank}")
        roots.append(tmp_path / f"node{rank}")
    for where in (root, roots):
        assert found(where)[0] == "beta-2_8.ckpt"
        assert found(where, run="alpha")[0] == "alpha-2_8.ckpt"
    outcomes = found(roots, run="gamma")
    assert {type(outcome) for outcome in outcomes} == {UsageError}
    assert "there is alpha (by the prefix of its slices); beta (by the prefix of its slices)" in str(outcomes[0])


def test_a_run_that_no_rank_sees_is_refused_on_all(root):
    add_run(root, OLD, "test", "3_4")
    outcomes = found(root, run="other")
    assert {type(outcome) for outcome in outcomes} == {UsageError}
    assert "no run 'other' here; there is old (run old, started 1970-01-01 00:00:01 UTC, up to 3_4)" in str(outcomes[0])


def test_where_one_directory_is_in_use_all_ranks_stop_and_nothing_is_renamed(root, monkeypatch):
    add_run(root, OLD, "test", "1_8", "3_4")
    add_run(root, NEW, "test_1", "2_2")
    real = lock_directory

    def in_use(folder, **options):
        if folder.endswith("ckpt_dir2"):
            raise StorageError("another training saves to it")
        return real(folder, **options)

    monkeypatch.setattr("ms_recover.training.held_directories.lock_directory", in_use)
    outcomes = found(root)
    assert type(outcomes[2]) is StorageError
    assert {type(outcome) for outcome in outcomes[:2]} == {MsRecoverError}
    assert aside(root) == []
    assert not any(is_held(str(root / f"ckpt_dir{rank}")) for rank in range(SIZE))


def test_what_ranks_see_is_put_together():
    jobs = thread_jobs(2)
    seen = [
        RunRecord(run_id="a-Ä", started=1, newest=Step(1, 8), written=3, newest_written=2),
        RunRecord(run_id="", newest=Step(1, 4), prefixes=("alpha", "beta_1")),
        RunRecord(run_id="b", started=None, resumed_from=RunStep("a-Ä", Step(1, 8), 1), begun=Step(1, 2)),
    ]
    both, also = on_all(2, lambda rank: gather_runs(jobs[rank], seen[rank:] if rank else seen[:1]))
    assert both == also == tuple(sorted(seen, key=lambda one: one.started or -1))
    assert on_all(1, lambda rank: gather_runs(thread_jobs(1)[0], [])) == [()]


@pytest.mark.parametrize("text", ["", "a", "abcd", "Ä" * 1000])
def test_texts_of_any_length_reach_all_ranks(text):
    jobs = thread_jobs(3)
    sent = [text, "", "other"]
    assert on_all(3, lambda rank: jobs[rank].gather_text(sent[rank])) == [sent] * 3


def test_a_run_starts_behind_those_that_any_rank_knows_whatever_the_clock_says(caplog):
    jobs = thread_jobs(2)
    now, future = 1_800_000_000, 1_900_000_000_000
    assert on_all(2, lambda rank: agree_start(jobs[rank], 5, lambda: now + rank)) == [now * 1000] * 2
    assert on_all(2, lambda rank: agree_start(jobs[rank], future * rank, lambda: now)) == [future + 1] * 2
    assert "the order is kept" in caplog.text
    assert agree_start(TrainingJob(0, 2), 5, lambda: now) is None


@pytest.mark.parametrize("run", [None, OLD])
def test_what_was_outvoted_is_neither_brought_back_nor_a_step_of_its_run(root, run):
    add_run(root, OLD, "test", "1_8", "3_4")
    for path in root.rglob("test-3_4*"):
        path.rename(path.with_name(path.name.replace(".ckpt", ".ckpt.outvoted")))
    outvoted = sorted(root.rglob("*outvoted*"))
    assert outvoted
    inventory = api.scan(root)
    assert inventory.set_aside == ()
    assert inventory.steps == (Step(1, 8),)
    assert found(root, run=run)[0] == "test-1_8.ckpt"
    assert sorted(root.rglob("*outvoted*")) == outvoted
