"""What fails behind a step that is done, its snapshot or its save: the step counts, and the loss is not lost."""

import os
import pickle
import signal
import threading

import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.errors import DeviceLostError, StorageError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter, NotSavedError  # noqa: E402
from tests.support.split_training import OPTIMIZERS, Strike, batches, equal, network, one_process  # noqa: E402


@pytest.fixture(autouse=True)
def pynative():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


def made(directory, kind=FaultTolerantModelSplitter, **options):
    given = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": OPTIMIZERS["Adam"], "timeout": 120, "threads": 1}
    return kind(network(), 2, "layers", **{**given, "directory": directory, "save_steps": 2, **options})


def weights_of(splitter):
    return {name: weight.asnumpy() for name, weight in splitter.state_dict().items()}


def kill_at_write(splitter, device):
    """Kill the process of a device when it is asked to write a slice; return whether that has happened."""
    files, original = splitter._devices.files, splitter._devices.files._order
    struck = threading.Event()

    async def order(number, part, **fields):
        if number == device and fields["kind"] == "write" and not struck.is_set():
            struck.set()
            os.kill(splitter.processes[device], signal.SIGKILL)
        return await original(number, part, **fields)

    files._order = order
    return struck.is_set


@pytest.mark.parametrize("kind", [ModelSplitter, FaultTolerantModelSplitter])
def test_a_save_that_fails_within_a_step_carries_the_loss_and_the_step_counts(tmp_path, kind):
    directory, data = tmp_path / "slices", batches(5)
    with made(directory, kind) as splitter:
        losses = [splitter.train_step(*batch) for batch in data[:3]]
        (directory / "rank_3").rename(tmp_path / "gone")
        (directory / "rank_3").write_text("a file")
        said = r"step 4 is done and counts.*not saved in .*rank_3.*of step 2 are whole; mend this, then call save\(\)"
        with pytest.raises(NotSavedError, match=said) as caught:
            splitter.train_step(*data[3])
        error = caught.value
        assert isinstance(error, StorageError)
        losses.append(error.loss)
        assert (error.step, error.saved, error.loss.step, error.loss.rows, splitter.step) == (4, 2, 4, 200, 4)
        assert f"{error.loss:.6g}" in str(error)
        again = pickle.loads(pickle.dumps(error))
        assert (str(again), again.step, again.saved, again.loss, again.loss.rows) == (str(error), 4, 2, error.loss, 200)
        with pytest.raises(NotSavedError, match="step 4 is done and counts") as caught:
            splitter.save()
        assert caught.value.loss is None, "of no step that was called for now"
        (directory / "rank_3").unlink()
        (tmp_path / "gone").rename(directory / "rank_3")
        splitter.save()
        losses.append(splitter.train_step(*data[4]))
        found, chunks = weights_of(splitter), splitter.chunks(200)
    wanted, expected = one_process(5, chunks, "Adam")
    assert equal(found, wanted)
    assert losses == pytest.approx(expected, rel=1e-6)


def test_a_device_that_is_lost_while_a_step_is_saved_costs_no_step(tmp_path):
    data = batches(3)
    with made(tmp_path / "slices", on_failure="raise") as splitter:
        splitter.train_step(*data[0])
        struck = kill_at_write(splitter, 1)
        said = r"step 2 is done and counts.*device 1.*reset_device_states.*slices of step 0 are whole; then call save"
        with pytest.raises(NotSavedError, match=said) as caught:
            splitter.train_step(*data[1])
        assert struck()
        assert "before the step" not in str(caught.value)
        assert isinstance(caught.value.__cause__, DeviceLostError)
        assert (caught.value.loss.step, splitter.step) == (2, 2)
        splitter.reset_device_states()
        splitter.save()
        splitter.train_step(*data[2])
        found, chunks = weights_of(splitter), splitter.chunks(200)
    assert equal(found, one_process(3, chunks, "Adam")[0])


@pytest.mark.parametrize("kind", [ModelSplitter, FaultTolerantModelSplitter])
def test_a_device_that_is_lost_while_the_snapshot_of_a_step_is_taken_costs_no_step(tmp_path, kind):
    data, options = batches(3), {"on_failure": "raise"} if kind is FaultTolerantModelSplitter else {}
    with made(tmp_path / "slices", kind, save_steps=None, snapshot_steps=2, **options) as splitter:
        splitter.train_step(*data[0])
        strike = Strike(splitter, 1, "save")
        assert splitter.train_step(*data[1]).step == splitter.step == 2
        assert strike.done
        with pytest.raises(DeviceLostError, match=r"device 1.*the weights are those before the step"):
            splitter.train_step(*data[2])
        assert splitter.step == 2
        with pytest.raises(DeviceLostError, match=r"device 1.*the weights are those of step 2"):
            splitter.forward(data[0][0])
        if kind is FaultTolerantModelSplitter:
            splitter.reset_device_states()
            splitter.train_step(*data[2])
            assert equal(weights_of(splitter), one_process(3, splitter.chunks(200), "Adam")[0])
