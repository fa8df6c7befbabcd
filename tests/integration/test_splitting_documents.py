"""What the documents of model splitting show and say, as they write it; and outputs that are not the model's."""

import os
import signal
import types

import numpy as np
import pytest

pytestmark = [pytest.mark.mindspore, pytest.mark.usefixtures("watched")]
ms = pytest.importorskip("mindspore")

from mindspore import Tensor, nn, ops  # noqa: E402

from ms_recover.errors import DeviceLostError, UsageError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter  # noqa: E402
from tests.support.splitting import close_to, wait_for  # noqa: E402

WARNING = "Skipping device {} due to previous failure"


class MyModel(nn.Cell):
    def __init__(self):
        super(MyModel, self).__init__()  # noqa: UP008 (as written there)
        self.layer1 = nn.Dense(64, 128)
        self.layer2 = nn.Dense(128, 128)
        self.layer3 = nn.Dense(128, 64)
        self.layer4 = nn.Dense(64, 10)

    def construct(self, x):
        x = ops.relu(self.layer1(x))
        x = self.layer2(x)
        x = self.layer3(x)
        x = self.layer4(x)
        return x  # noqa: RET504


class DocumentedSplitter(ModelSplitter):
    """The fault tolerance of the second document, on the parts of the first."""

    def __init__(self, model, num_devices):
        super(DocumentedSplitter, self).__init__(model, num_devices)  # noqa: UP008
        self.device_states = [True] * num_devices

    def forward(self, x):
        for i, part in enumerate(self.model_parts):
            if self.device_states[i]:
                try:
                    x = part(x)
                except Exception as e:
                    print(f"Device {i} failed: {e}")
                    self.device_states[i] = False
            else:
                print(f"Skipping device {i} due to previous failure")
        return x

    def reset_device_states(self):
        self.device_states = [True] * self.num_devices


def test_the_documents_example_runs():
    model = MyModel()
    splitter = ModelSplitter(model, num_devices=4)
    input_data = Tensor(np.random.rand(100, 64), ms.float32)
    output = splitter.forward(input_data)
    assert splitter.num_devices == len(splitter.model_parts) == 4
    assert output.shape == (100, 10)
    assert close_to(output.asnumpy(), model(input_data).asnumpy())
    splitter.close()


def test_the_documents_own_subclass_runs(capsys):
    model = MyModel()
    splitter = DocumentedSplitter(model, 2)
    input_data = Tensor(np.random.rand(100, 64), ms.float32)
    want = model(input_data).asnumpy()
    assert np.array_equal(splitter.forward(input_data).asnumpy(), want)
    assert np.array_equal(splitter(input_data).asnumpy(), want)
    first, second = splitter.model_parts
    assert [*first.stages, *second.stages] == list(range(5))
    assert np.array_equal(second(first(input_data)).asnumpy(), want)
    with pytest.raises(UsageError, match="takes one argument"):
        second(input_data, input_data)
    os.kill(splitter.processes[1], signal.SIGKILL)
    halfway = splitter.forward(input_data).asnumpy()
    assert np.array_equal(halfway, first(input_data).asnumpy())
    assert splitter.device_states == [True, False]
    assert np.array_equal(splitter.forward(input_data).asnumpy(), halfway)
    said = capsys.readouterr().out
    assert "Device 1 failed: device 1, part 1: " in said
    assert "FaultTolerantModelSplitter, which goes on" in said
    assert "reset_device_states" not in said, "this class has none"
    assert said.count(WARNING.format(1)) == 1
    splitter.reset_device_states()
    assert splitter.device_states == [True, True]
    splitter.close()
    with pytest.raises(UsageError, match="closed"):
        first(input_data)


def test_devices_are_taken_out_and_brought_back_and_skipping_goes_on(caplog):
    model = MyModel()
    input_data = Tensor(np.random.rand(100, 64), ms.float32)
    want = model(input_data).asnumpy()

    def right():
        caplog.clear()
        assert close_to(splitter.forward(input_data).asnumpy(), want)
        assert splitter.last_report.missing == ()
        return [record.getMessage() for record in caplog.records if "Skipping" in record.getMessage()]

    with FaultTolerantModelSplitter(model, 2, on_failure="skip", cut_at=["layer3"], heartbeat=1.0) as splitter:
        assert splitter.parts == (range(3), range(3, 5))
        assert right() == []
        before = splitter.processes
        splitter.device_states[1] = False
        assert splitter.device_states == [True, False]
        assert splitter.processes == [before[0], None]
        assert right() == [WARNING.format(1)]
        for wrong in ([True], [True] * 3, [True, None], "TT", 1):
            with pytest.raises(UsageError):
                splitter.device_states = wrong
        with pytest.raises(UsageError):
            splitter.device_states[1] = 1
        splitter.device_states[1] = True
        assert splitter.device_states == [True, True]
        assert right() == []
        os.kill(splitter.processes[0], signal.SIGKILL)
        wait_for(lambda: splitter.device_states == [False, True], "the loss is noticed")
        for _ in range(2):
            assert right() == [WARNING.format(0)]
        splitter.device_states = [True, True]
        assert right() == []
        empty = splitter.forward(input_data.asnumpy()[:0])
        assert (empty.shape, empty.dtype) == ((0, 10), ms.float32)
    assert splitter.device_states == [False, False]
    assert splitter.processes == [None, None]
    assert "closed" in splitter.summary()
    with pytest.raises(UsageError, match="closed"):
        splitter.device_states[0] = True


def test_outputs_that_are_not_the_models_are_never_returned():
    """A construct replaced on the instance, before the splitter or, for the sample, before anything is started."""
    model = nn.SequentialCell(nn.Dense(64, 32), nn.ReLU(), nn.Dense(32, 10))
    x = np.random.default_rng(0).standard_normal((100, 64), np.float32)
    with ModelSplitter(model, 1) as splitter:
        model.construct = types.MethodType(lambda self, x: self[2](self[0](x)), model)
        for _ in range(2):
            with pytest.raises(UsageError, match="the parts give another output than the model for rows"):
                splitter.forward(x)
    stages = [model[0], model[1], model[2]]
    with pytest.raises(UsageError, match="the parts give another output than the model for rows"):
        ModelSplitter(model, 1, stages=stages, sample=Tensor(x))
    with ModelSplitter(model, 1, stages=stages, check=False) as splitter:
        assert close_to(splitter.forward(x).asnumpy(), model[2](model[1](model[0](Tensor(x)))).asnumpy())


def test_a_device_that_does_not_start_is_no_incomplete_answer(monkeypatch):
    monkeypatch.setattr("ms_recover.splitting.process._MAIN", "import sys; sys.exit(3)")
    with pytest.raises(DeviceLostError, match=r"exit code 3.*the splitter did not start") as caught:
        ModelSplitter(MyModel(), 1)
    assert "answer" not in str(caught.value)
    assert "reset_device_states" not in str(caught.value)
