"""Savers of a loop on several ranks: each in a thread, exchanging numbers as MindSpore would."""

import shutil
import threading

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.formats.group_info import read_group_info
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.training import SliceSaver, obtained, resume, resuming, slice_saver, snapshot  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402


class Loop:
    """A network and an optimizer all of whose values are those of the step."""

    def __init__(self):
        self.network = nn.Dense(3, 2)
        self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
        self.parameters = [self.network, self.optimizer]

    def step(self, number):
        for parameter in {*self.network.get_parameters(), *self.optimizer.get_parameters()}:
            parameter.asnumpy()[...] = number

    def value(self):
        every = {value for one in self.optimizer.get_parameters() for value in one.asnumpy().reshape(-1).tolist()}
        (value,) = every
        return value


@pytest.fixture
def ranks(monkeypatch):
    """Run a function for each of some ranks, in threads, each of which has the job of its rank."""
    own, one_at_a_time, load = threading.local(), threading.Lock(), obtained.load_into

    def load_into(*arguments, **options):
        with one_at_a_time:  # MindSpore computes in one thread of a process
            load(*arguments)

    monkeypatch.setattr(obtained, "load_into", load_into)
    for module in (slice_saver, resuming):
        monkeypatch.setattr(module, "current_job", lambda: own.job)

    def run(size, work):
        jobs = thread_jobs(size)

        def as_rank(rank):
            own.job = jobs[rank]
            return work(rank)

        return on_all(size, as_rank)

    return run


def saver(root, loop, **options):
    return SliceSaver(loop.parameters, f"{root}/ckpt_dir{{rank}}", "loop", group=range(3), **options)


@pytest.mark.parametrize("async_save", [False, True])
def test_all_ranks_save_and_resume_together(ranks, tmp_path, async_save):
    def train(rank):
        loop = Loop()
        with saver(tmp_path, loop, keep=2, async_save=async_save) as saving:
            for number in range(1, 6):
                loop.step(number)
                saving.save(number)
        return saving.run_id

    assert len(set(ranks(3, train))) == 1
    for rank in range(3):
        names = {path.name for path in (tmp_path / f"ckpt_dir{rank}").glob("*.ckpt")}
        assert names == {"loop-1_4.ckpt", "loop-1_5.ckpt"}
        assert read_group_info(tmp_path / f"ckpt_dir{rank}" / "group_info.pb").restore_ranks == (0, 1, 2)
    shutil.rmtree(tmp_path / "ckpt_dir1")

    def go_on(rank):
        loop = Loop()
        resumed = resume(loop.parameters, tmp_path)
        return resumed.step, resumed.source_rank, loop.value()

    assert ranks(3, go_on) == [(Step(1, 5), source, 5) for source in (None, 0, None)]


def test_a_mistake_on_one_rank_ends_the_run_on_all_before_it_begins(ranks, tmp_path):
    def train(rank):
        loop = Loop()
        saving = saver(tmp_path, loop)
        if rank == 2:
            loop.network.insert_param_to_cell("odd", ms.Parameter(ms.Tensor(np.zeros(2, np.complex64)), name="phase"))
        saving.save(1)

    stopped = ranks(3, train)
    assert isinstance(stopped[2], UsageError)
    assert "parameter phase is of type Complex64" in str(stopped[2])
    for rank in (0, 1):
        assert f"rank {rank} stops because beginning to save failed on rank(s) 2" in str(stopped[rank])
    assert not list(tmp_path.rglob("*.ckpt"))


def test_a_failed_save_ends_the_loop_on_all_ranks(ranks, tmp_path, monkeypatch):
    write = snapshot.write_slice

    def fails_once(path, *arguments):
        if "ckpt_dir1" in path and "1_2" in path:
            raise OSError(28, "No space left on device")
        return write(path, *arguments)

    monkeypatch.setattr(snapshot, "write_slice", fails_once)

    def train(rank):
        loop = Loop()
        with saver(tmp_path, loop) as saving:
            for number in range(1, 6):
                loop.step(number)
                saving.save(number)

    stopped = ranks(3, train)
    assert "rank 1, step 1_2, " in str(stopped[1])
    assert all(isinstance(error, MsRecoverError) and "rank(s) 1: Storage" in str(error) for error in stopped[::2])
    plan = api.plan(api.scan(tmp_path))
    assert (plan.step, [action.rank for action in plan.actions]) == (Step(1, 2), [1])


def test_an_exception_in_the_loop_waits_for_the_save_in_flight(tmp_path):
    loop = Loop()
    saving = SliceSaver(loop.parameters, f"{tmp_path}/ckpt_dir{{rank}}", "loop", async_save=True)
    with pytest.raises(ZeroDivisionError), saving:
        loop.step(1)
        saving.save(1)
        raise ZeroDivisionError
    assert saving.committed == Step(1, 1)
    assert resume(loop.parameters, tmp_path).step == Step(1, 1)


def test_begin_takes_the_parameters_that_the_constructor_did_not_have(tmp_path):
    saving = SliceSaver(None, f"{tmp_path}/ckpt_dir{{rank}}", "loop")
    with pytest.raises(UsageError, match="NoneType is neither a cell nor a parameter"):
        saving.save(1)
    saving.begin(Loop().parameters)
    saving.save(1)
    saving.flush()
    assert saving.committed == Step(1, 1)
