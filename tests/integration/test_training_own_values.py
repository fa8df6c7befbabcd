"""Two data-parallel ranks of one process with their own memory bank and batch statistics: a loop without Model.

Each rank has its own network and samples; gradients are averaged by hand. Saving and resuming run in a thread for each
rank, which exchange numbers as MindSpore's communication would.
"""

import shutil
import threading
from contextlib import suppress

import numpy as np
import pytest

from ms_recover.errors import UnrecoverableError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.rank_local import RESUME_CHOICE
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402

from ms_recover.training import SliceSaver, resume, resuming, slice_saver  # noqa: E402
from tests.support.rank_local_training import Remembering  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402

RANKS, END, EVERY = range(2), 8, 3
OWN = ("bank", "norm.moving_mean", "norm.moving_variance")


class Rank:
    """A network, its optimizer and its samples."""

    def __init__(self, rank):
        rng = np.random.default_rng(5 + rank)
        self.batches = [[ms.Tensor(rng.random((4, size), np.float32)) for size in (3, 2)] for _ in range(END)]
        self.network = Remembering().set_train()
        self.optimizer = nn.Adam(self.network.trainable_params(), 0.01)
        loss_of = nn.MSELoss()

        def forward(x, y):
            return loss_of(self.network(x), y)

        self.gradients_of = ms.value_and_grad(forward, None, self.optimizer.parameters)
        self.losses = {}

    def values(self):
        parameters = (*self.network.get_parameters(), *self.optimizer.get_parameters())
        return {one.name: one.asnumpy().tobytes() for one in parameters}


class Job:
    """Both ranks; what runs for all ranks at once runs in threads."""

    def __init__(self, root, monkeypatch, **options):
        self.root, self.here, self.jobs = root, threading.local(), thread_jobs(2)
        for module in (slice_saver, resuming):
            monkeypatch.setattr(module, "current_job", lambda: self.jobs[self.here.rank])
        self.ranks = [Rank(rank) for rank in RANKS]

        def saver(rank):
            held = [self.ranks[rank].network, self.ranks[rank].optimizer]
            return SliceSaver(held, str(root / "ckpt_dir{rank}"), "test", group=RANKS, **options)

        self.savers = self.together(saver)

    def together(self, work):
        def here(rank):
            self.here.rank = rank
            return work(rank)

        return on_all(2, here)

    def train(self, done=0, end=END):
        for step in range(done + 1, end + 1):
            found = [rank.gradients_of(*rank.batches[step - 1]) for rank in self.ranks]
            mean = [(one + other) / 2 for one, other in zip(*(gradients for _, gradients in found), strict=True)]
            for rank, (loss, _) in zip(self.ranks, found, strict=True):
                rank.optimizer(tuple(mean))
                rank.losses[step] = loss.asnumpy().tobytes()
            if step % EVERY == 0 or step == END:
                assert self.together(lambda rank, step=step: self.savers[rank].save(step)) == [None, None]
        self.together(lambda rank: (self.savers[rank].flush(), self.savers[rank].release()))
        return self

    def resume(self, **options):
        def work(rank):
            one = self.ranks[rank]
            return resume([one.network, one.optimizer], self.root, **options)

        return self.together(work)


@pytest.fixture(scope="module", params=[("ckpt", False), ("safetensors", True)], ids=["sync ckpt", "async safetensors"])
def options(request):
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with suppress(SystemError):  # of the first operator with a shape, where MindSpore was built for an older numpy
        ops.reshape(ms.Tensor([1.0]), (1, 1))
    yield dict(zip(("format", "async_save"), request.param, strict=True))
    ms.set_context(mode=before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, options):
    with pytest.MonkeyPatch.context() as patch:
        yield Job(tmp_path_factory.mktemp("whole"), patch, **options).train()


@pytest.fixture
def copied(whole, tmp_path, monkeypatch, options):
    """Return a new job, and the slices without the last, with which nothing is left to train."""
    shutil.copytree(whole.root, tmp_path, dirs_exist_ok=True)
    for path in tmp_path.glob("ckpt_dir*/*-1_8.*"):
        path.unlink()
    return Job(tmp_path, monkeypatch, **options)


def lose(job, pattern="*"):
    for path in (job.root / "ckpt_dir1").glob(pattern):
        path.unlink()


def check_same(job, whole, done):
    for one, other in zip(job.ranks, whole.ranks, strict=True):
        assert one.losses == {step: loss for step, loss in other.losses.items() if step > done}
        assert one.values() == other.values()


def test_what_differs_is_recorded(whole):
    for rank in RANKS:
        found = [read_manifest(path) for path in whole.root.glob(f"ckpt_dir{rank}/*{MANIFEST_SUFFIX}")]
        assert {manifest.training.rank_local for manifest in found} == {OWN}
        assert len(found) == 3


def test_where_the_own_slices_live_training_goes_on_to_the_last_bit(copied, whole):
    assert [(one.step, one.rank_local_lost) for one in copied.resume()] == [(Step(1, 6), ())] * 2
    check_same(copied.train(6), whole, 6)


def test_a_lost_slice_sends_both_back_to_where_each_has_its_own(copied, whole, caplog):
    lose(copied, "*-1_6.*")
    assert [one.step for one in copied.resume()] == [Step(1, 3)] * 2
    assert "rank-local, lost: the own values of rank 1 in bank" in caplog.text
    check_same(copied.train(3), whole, 3)


def test_where_all_are_lost_nothing_is_loaded_and_the_choice_is_stated(copied):
    lose(copied)
    before = [one.values() for one in copied.ranks]
    errors = copied.resume()
    assert all(isinstance(error, UnrecoverableError) for error in errors)
    assert "rank-local, lost: the own values of rank 1 in bank" in str(errors[1])
    assert "rank_local='peer'" in str(errors[1])
    assert [one.values() for one in copied.ranks] == before


@pytest.mark.parametrize("choice", ["peer", "initial"])
def test_the_choice_is_carried_out_and_named(copied, caplog, choice):
    lose(copied)
    assert [one.rank_local_lost for one in copied.resume(rank_local=choice)] == [(), ("bank",)]
    one, other = (rank.values() for rank in copied.ranks)
    assert one["bank"] != bytes(32)
    assert other["bank"] == (one["bank"] if choice == "peer" else bytes(32))
    assert {name for name in one if one[name] != other[name]} <= {"bank"}
    assert "rank-local, lost: bank; the values are those of rank 0" in caplog.text
    assert "batch statistics of rank 0: norm.moving_mean, norm.moving_variance" in caplog.text


def test_a_retry_in_the_same_process_is_the_same_training(tmp_path, monkeypatch, whole, options):
    job = Job(tmp_path, monkeypatch, **options).train(end=7)
    assert [one.step for one in job.resume()] == [Step(1, 6)] * 2
    job.train(6)
    for one, other in zip(job.ranks, whole.ranks, strict=True):
        assert (one.losses, one.values()) == (other.losses, other.values())


def test_plan_and_apply_name_lost_values(whole, tmp_path, recover_ckpt):
    shutil.copytree(whole.root, tmp_path / "tree")
    shutil.rmtree(tmp_path / "tree" / "ckpt_dir1")
    lost = "rank 1: rank-local, lost: bank; the values are those of rank 0; batch statistics of rank 0"
    for command in ("plan", "apply", "plan"):
        done = recover_ckpt(command, tmp_path / "tree")
        assert done.code == 0, done.err
        assert f"WARNING: {lost}" in done.out
        assert f"WARNING: {RESUME_CHOICE}" in done.out
    (path,) = (tmp_path / "tree" / "ckpt_dir1").glob(f"*{MANIFEST_SUFFIX}")
    manifest = read_manifest(path)
    assert manifest.provenance.borrowed == OWN == manifest.training.rank_local
