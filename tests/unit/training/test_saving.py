"""Ranks that save at the same steps: each in a thread, telling each other what MindSpore would."""

import logging
import threading
import time
from types import SimpleNamespace

import pytest

from ms_recover import api
from ms_recover.errors import MsRecoverError, StorageError, VerificationError
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.training import SliceCheckpoint, run_directory, slice_saver, snapshot  # noqa: E402
from ms_recover.training.deciding.job import TrainingJob  # noqa: E402
from tests.support.ranks import WAIT, on_all, thread_jobs  # noqa: E402

BATCHES = 4


class Training:
    """What `Model.train` does for a callback."""

    def __init__(self, callback):
        self.callback = callback
        network = nn.Dense(3, 2)
        self.params = SimpleNamespace(
            batch_num=BATCHES,
            cur_step_num=0,
            cur_epoch_num=1,
            train_network=nn.TrainOneStepCell(
                nn.WithLossCell(network, nn.MSELoss()), nn.Momentum(network.trainable_params(), 0.1, 0.9)
            ),
        )
        self.context = SimpleNamespace(original_args=lambda: self.params)

    def begin(self):
        self.callback.on_train_begin(self.context)
        return self

    def steps(self, count):
        for _ in range(count):
            self.params.cur_step_num += 1
            self.params.cur_epoch_num = (self.params.cur_step_num - 1) // BATCHES + 1
            for parameter in self.params.train_network.get_parameters():
                parameter.asnumpy()[...] = self.params.cur_step_num
            self.callback.on_train_step_end(self.context)

    def end(self):
        self.callback.on_train_end(self.context)


def committed(folder):
    """Steps whose slice and manifest are there, oldest first."""
    manifests = [read_manifest(path) for path in folder.glob(f"*{MANIFEST_SUFFIX}")]
    assert {manifest.file for manifest in manifests} == {path.name for path in folder.glob("*.ckpt")}
    return [str(manifest.step) for manifest in sorted(manifests, key=lambda manifest: manifest.step)]


@pytest.fixture
def one(tmp_path, monkeypatch):
    """Make the training of a single rank."""
    monkeypatch.setattr(slice_saver, "current_job", lambda: TrainingJob(0, 1))
    return lambda **options: Training(SliceCheckpoint(str(tmp_path), "test", 1, **options)).begin()


@pytest.fixture
def ranks(tmp_path, monkeypatch):
    """Run a function for each of some ranks, in threads; return what each returned or raised."""

    def run(size, work, **options):
        trainings = []
        for job in thread_jobs(size):
            monkeypatch.setattr(slice_saver, "current_job", lambda job=job: job)
            callback = SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", "test", 1, group=range(size), **options)
            trainings.append(Training(callback))
        return on_all(size, lambda rank: work(rank, trainings[rank].begin()))

    return run


def test_a_slice_says_whose_it_is(one, tmp_path, monkeypatch):
    monkeypatch.setenv("MS_RECOVER_RUN_ID", "night-7")
    training = one()
    training.steps(6)
    training.end()
    manifest = read_manifest(tmp_path / f"test-2_2.ckpt{MANIFEST_SUFFIX}")
    assert (manifest.step, manifest.cumulative_step, manifest.run_id) == (Step(2, 2), 6, "night-7")
    assert (manifest.rank, manifest.world_size, manifest.group, manifest.provenance.kind) == (0, 1, (0,), "saved")
    assert training.callback.committed == Step(2, 2)


def test_the_group_that_the_compiler_wrote_is_in_the_manifest(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(slice_saver, "current_job", lambda: TrainingJob(1, 4))
    training = Training(SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", "test", 1)).begin()
    assert training.callback.run_id == ""
    write_group_info(tmp_path / "ckpt_dir1" / "group_info.pb", [1, 3])
    training.steps(1)
    assert read_manifest(tmp_path / "ckpt_dir1" / f"test-1_1.ckpt{MANIFEST_SUFFIX}").group == (1, 3)
    training = Training(SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", "test", 1)).begin()
    write_group_info(tmp_path / "ckpt_dir1" / "group_info.pb", [0, 2])
    training.steps(1)
    assert read_manifest(tmp_path / "ckpt_dir1" / f"test_1-1_1.ckpt{MANIFEST_SUFFIX}").group == (1,)
    assert "does not name rank 1" in caplog.text


@pytest.mark.parametrize("keep", [2, 3, 4])
@pytest.mark.parametrize("async_save", [False, True])
def test_rotation(one, tmp_path, keep, async_save):
    training = one(keep=keep, async_save=async_save)
    for done in range(1, 7):
        training.steps(1)
        training.callback.saver._background.outcome()
        assert len(committed(tmp_path)) == min(done, keep)
    training.end()
    assert committed(tmp_path) == ["1_3", "1_4", "2_1", "2_2"][-keep:]


def test_a_second_training_leaves_the_slices_of_the_first(one, tmp_path):
    training = one(keep=2)
    training.steps(5)
    training.end()
    training.params.cur_step_num = 0
    first = training.callback.run_id
    training.begin()
    training.steps(3)
    training.end()
    assert sorted(path.name for path in tmp_path.glob("*.ckpt")) == [
        "test-1_4.ckpt",
        "test-2_1.ckpt",
        "test_1-1_2.ckpt",
        "test_1-1_3.ckpt",
    ]
    assert training.callback.run_id != first


@pytest.mark.parametrize("async_save", [False, True])
def test_stalls_are_recorded_and_logged(one, async_save, caplog):
    caplog.set_level(logging.INFO)
    training = one(async_save=async_save)
    training.steps(3)
    training.end()
    stalls = training.callback.stalls
    assert [str(stall.step) for stall in stalls] == ["1_1", "1_2", "1_3", *(["1_3"] if async_save else [])]
    assert all(0 <= stall.seconds < WAIT for stall in stalls)
    assert "rank 0, step 1_2: training stood still for 0." in caplog.text


def test_training_goes_on_while_a_slice_is_written(one, tmp_path, monkeypatch):
    go, write = threading.Event(), snapshot.write_slice

    def slow(*arguments):
        assert go.wait(WAIT)
        return write(*arguments)

    training = one(async_save=True)
    monkeypatch.setattr(snapshot, "write_slice", slow)
    training.steps(1)
    assert training.callback.committed is None
    for parameter in training.params.train_network.get_parameters():
        parameter.asnumpy()[...] = 99
    go.set()
    training.end()
    assert training.callback.committed == Step(1, 1)
    loaded = ms.load_checkpoint(str(tmp_path / "test-1_1.ckpt"))
    assert all((parameter.asnumpy() == 1).all() for parameter in loaded.values())


@pytest.mark.parametrize("when", ["next save", "end"])
def test_a_write_that_failed_beside_reaches_the_training(one, tmp_path, monkeypatch, when):
    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    training = one(async_save=True)
    training.steps(1)
    assert training.callback.saver._background.outcome() is None
    monkeypatch.setattr(snapshot, "write_slice", full)
    training.steps(1)
    with pytest.raises(StorageError, match=r"rank 0, step 1_2, .*test-1_2.ckpt was not saved: .*No space.* free some"):
        training.steps(1) if when == "next save" else training.end()
    assert committed(tmp_path) == ["1_1"]
    deadline = time.monotonic() + WAIT
    while any("save-" in thread.name for thread in threading.enumerate()):  # it ends behind what it leaves
        assert time.monotonic() < deadline


@pytest.mark.parametrize("async_save", [False, True])
@pytest.mark.parametrize(
    ("failure", "kind"), [(RuntimeError("no such stream"), MsRecoverError), (MemoryError(), MsRecoverError)]
)
def test_whatever_mindspore_raises_names_rank_and_step(one, monkeypatch, async_save, failure, kind):
    def fail(*arguments, **options):
        raise failure

    monkeypatch.setattr(snapshot.ms, "save_checkpoint", fail)
    monkeypatch.setattr(slice_saver, "read_contents", lambda network: None)
    training = one(async_save=async_save)
    with pytest.raises(kind, match=r"rank 0, step 1_1, .*test-1_1.ckpt was not saved: (no such stream|MemoryError)"):
        training.steps(2)


def test_what_is_written_wrongly_is_not_committed(one, tmp_path, monkeypatch):
    write = snapshot.write_slice

    def cut(path, form, parameters, values):
        kept = [index for index, parameter in enumerate(parameters) if parameter.name != "moments.weight"]
        return write(path, form, [parameters[index] for index in kept], [values[index] for index in kept])

    monkeypatch.setattr(snapshot, "write_slice", cut)
    with pytest.raises(VerificationError, match=r"rank 0, step 1_1, .*not whole: .*moments.weight"):
        one().steps(1)
    assert committed(tmp_path) == []


@pytest.mark.parametrize("async_save", [False, True])
def test_parameters_that_mindspore_has_to_read_out_are_saved_at_once(one, tmp_path, monkeypatch, async_save):
    monkeypatch.setattr(slice_saver, "read_contents", lambda network: None)
    training = one(async_save=async_save)
    training.steps(3)
    training.end()
    assert committed(tmp_path) == ["1_1", "1_2", "1_3"]


@pytest.mark.parametrize("async_save", [False, True])
def test_ranks_have_one_run_and_the_same_steps(ranks, tmp_path, async_save):
    def work(rank, training):
        training.steps(6)
        training.end()
        return training.callback.run_id

    run_ids = ranks(3, work, keep=2, async_save=async_save)
    assert len(set(run_ids)) == 1
    assert len(run_ids[0]) == 32
    for rank in range(3):
        assert committed(tmp_path / f"ckpt_dir{rank}") == ["2_1", "2_2"]
    plan = api.plan(api.scan(tmp_path))
    assert (plan.step, plan.actions, plan.run_id) == (Step(2, 2), (), run_ids[0])


@pytest.mark.parametrize("async_save", [False, True])
def test_when_one_rank_cannot_save_all_stop_and_its_last_step_stays(ranks, tmp_path, monkeypatch, async_save):
    """The others have not removed a step that rank 1 still needs them to have."""
    write = snapshot.write_slice

    def fails_once(path, *arguments):
        if "ckpt_dir1" in path and "test-1_3" in path:
            raise OSError(28, "No space left on device")
        return write(path, *arguments)

    monkeypatch.setattr(snapshot, "write_slice", fails_once)

    def work(rank, training):
        training.steps(6)
        training.end()

    stopped = ranks(3, work, keep=2, async_save=async_save)
    assert "rank 1, step 1_3, " in str(stopped[1])
    assert isinstance(stopped[1], StorageError)
    for rank in (0, 2):
        assert f"rank {rank} stops because saving a slice failed on rank(s) 1: StorageError: rank 1, step 1_3, " in str(
            stopped[rank]
        )
        assert committed(tmp_path / f"ckpt_dir{rank}") == ["1_1", "1_2", "1_3"][async_save:]
    assert committed(tmp_path / "ckpt_dir1") == ["1_1", "1_2"]
    plan = api.plan(api.scan(tmp_path))
    assert plan.step == Step(1, 3)
    assert [action.rank for action in plan.actions] == [1]


def test_a_slice_that_cannot_be_removed_does_not_stop_the_training(one, tmp_path, monkeypatch, caplog):
    def fail(*arguments):
        raise PermissionError(13, "Permission denied", "test-1_1.ckpt")

    training = one(keep=2)
    with monkeypatch.context() as patch:
        patch.setattr(run_directory, "rotate", fail)
        training.steps(3)
    assert "rank 0, step 1_3: old slices not removed" in caplog.text
    assert committed(tmp_path) == ["1_1", "1_2", "1_3"]
    training.steps(1)
    assert committed(tmp_path) == ["1_3", "1_4"]
