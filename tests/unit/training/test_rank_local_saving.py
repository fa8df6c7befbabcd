"""Two ranks save, each in a thread: what each has of its own is named and stands in the manifests."""

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import StorageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.training import SliceSaver, rank_local, slice_saver  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402


def parameter(name, value):
    return ms.Parameter(ms.Tensor(np.full((4,), value, np.float32)), name=name, requires_grad=False)


@pytest.fixture
def savers(tmp_path, monkeypatch):
    """Return savers of two ranks with a weight and a queue, and a function that saves a step with these values."""

    def make(**options):
        held, made = [], []
        for rank, job in enumerate(thread_jobs(2)):
            monkeypatch.setattr(slice_saver, "current_job", lambda job=job: job)
            held.append([parameter("weight", 1), parameter("queue", 0)])
            made.append(SliceSaver(held[rank], str(tmp_path / "ckpt_dir{rank}"), "test", group=[0, 1], **options))

        def save(step, *queues, weights=(1, 1)):
            def work(rank):
                for one, value in zip(held[rank], (weights[rank], queues[rank]), strict=True):
                    one.asnumpy()[...] = value
                made[rank].save(step)

            return on_all(2, work)

        return made, save

    return make


def said(caplog):
    """Return what was logged, but for what losing the one host would cost."""
    return sorted(one.getMessage() for one in caplog.records if one.name != "ms_recover.training.headline")


def recorded(tmp_path, rank):
    found = [read_manifest(path) for path in (tmp_path / f"ckpt_dir{rank}").glob(f"*{MANIFEST_SUFFIX}")]
    return {str(manifest.step): manifest.training.rank_local for manifest in found}


@pytest.mark.parametrize("async_save", [False, True], ids=["sync", "async"])
def test_what_differs_is_named_once_and_stands_in_every_manifest(savers, tmp_path, caplog, async_save):
    made, save = savers(async_save=async_save)
    caplog.clear()
    save(1, 7, 8)
    assert said(caplog) == [
        f"rank {rank}, step 1_1: ranks 0, 1 differ in queue: recorded as rank-local; a lost rank's values cannot come "
        "back, see rank_local of recover_train"
        for rank in range(2)
    ]
    caplog.clear()
    save(2, 9, 8)
    on_all(2, lambda rank: made[rank].flush())
    assert said(caplog) == []
    for rank in range(2):
        assert recorded(tmp_path, rank) == {"1_1": ("queue",), "1_2": ("queue",)}
    plan = api.plan(api.scan(tmp_path))
    assert (plan.disagreements, plan.actions) == ((), ())
    assert api.verify(api.scan(tmp_path)).ok


@pytest.mark.parametrize("async_save", [False, True], ids=["sync", "async"])
def test_what_begins_to_differ_later_is_written_into_the_manifest_of_that_step(savers, tmp_path, caplog, async_save):
    made, save = savers(async_save=async_save)
    save(1, 0, 0)
    save(2, 7, 8)
    on_all(2, lambda rank: made[rank].flush())
    assert "step 1_2: ranks 0, 1 differ in queue since this save, which were equal before" in caplog.text
    for rank in range(2):
        assert recorded(tmp_path, rank) == {"1_1": (), "1_2": ("queue",)}
    assert api.plan(api.scan(tmp_path)).disagreements == ()


def test_ranks_that_differ_in_everything_are_named_as_no_replicas(savers, caplog):
    _, save = savers()
    save(1, 7, 8, weights=(1, 2))
    assert "ranks 0, 1 should hold the same, but differ in every parameter" in caplog.text


def test_a_record_that_cannot_be_written_is_raised_at_the_next_save(savers, monkeypatch):
    _, save = savers()
    real = rank_local.write_manifest

    def refuse(path, manifest):
        if manifest.rank == 1:
            raise OSError(28, "No space left on device")
        real(path, manifest)

    monkeypatch.setattr(rank_local, "write_manifest", refuse)
    assert save(1, 7, 8) == [None, None]
    one, other = save(2, 7, 8)
    assert isinstance(other, StorageError)
    assert "No space left" in str(other)
    assert "saving a slice failed on rank(s) 1: StorageError: " in str(one)
    assert "No space left" in str(one)
