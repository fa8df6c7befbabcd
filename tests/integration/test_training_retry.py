"""A retry in the process of an error that came out of the network: MindSpore is left recording a gradient."""

from contextlib import contextmanager, suppress

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402
from mindspore.train import Callback, Model  # noqa: E402

from ms_recover.model.steps import Step  # noqa: E402
from ms_recover.training import SliceSaver, recover_train, resume  # noqa: E402
from ms_recover.training.gradients import end_recording  # noqa: E402
from ms_recover.training.run import forget_resumed  # noqa: E402
from tests.support.trainings import STEPS, Losses, checkpoint, make_dataset, make_network, values  # noqa: E402

FAULT = {"kind": None}
"""What fails at present: no network keeps it."""

ERRORS = {
    "operator": ValueError,
    "assert": AssertionError,
    "interrupt": KeyboardInterrupt,
    "operator, raised late": KeyboardInterrupt,
}


@pytest.fixture(autouse=True)
def pynative():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)
    end_recording()
    forget_resumed()  # as a process of its own would


class Failing(nn.Cell):
    """Fails at its fourth forward, after a part of it is recorded, where `FAULT` says so.

    It keeps a mean that each forward moves, in a parameter that is not trained.
    """

    def __init__(self):
        super().__init__()
        self.inner = make_network()
        self.calls = 0
        self.mean = ms.Parameter(ms.Tensor([0.0], ms.float32), name="mean", requires_grad=False)

    def construct(self, x):
        self.calls += 1
        found = self.inner(x)
        ops.assign(self.mean, 0.5 * (self.mean + ops.stop_gradient(found).mean()))
        if self.calls == 4 and FAULT["kind"] == "operator":
            return ops.concat((found, x), 0)
        if self.calls == 4 and FAULT["kind"] == "assert":
            assert x.sum() > 100, "a bad sample"
        if self.calls == 4 and FAULT["kind"] == "operator, raised late":
            with suppress(RuntimeError):  # MindSpore raises it when it waits for it; where it does not wait, at once
                ops.matmul(x, ms.Tensor(np.zeros((3, 5, 7), np.float32)))
            raise KeyboardInterrupt
        if self.calls == 4 and FAULT["kind"] == "interrupt":
            raise KeyboardInterrupt
        return found


@contextmanager
def failing(kind):
    FAULT["kind"] = kind
    try:
        with pytest.raises(ERRORS[kind]):
            yield
    finally:
        FAULT["kind"] = None
        for wait in (ms.runtime.synchronize, make_network):  # an operator's error is raised once more by the next one
            with suppress(RuntimeError):
                wait()


class Scaled(Callback):
    """Its state is taken up by writing a parameter of its own in place."""

    def __init__(self):
        super().__init__()
        self.scale = ms.Parameter(ms.Tensor([1.0], ms.float32), name="scale")

    def on_train_step_end(self, run_context):
        ops.assign(self.scale, self.scale * 2)

    def state_dict(self):
        return {"scale": ms.Tensor(self.scale.asnumpy())}

    def load_state_dict(self, state):
        self.scale.copy_(state["scale"])


def make_model():
    network = Failing()
    return Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))


@pytest.mark.parametrize("kind", ERRORS)
def test_a_retry_behind_an_error_out_of_the_network_goes_on_to_the_last_bit(tmp_path, kind):
    alone, whole = make_model(), Losses()
    alone.train(2, make_dataset(), callbacks=[whole])
    model = make_model()
    with failing(kind):
        model.train(2, make_dataset(), callbacks=[checkpoint(tmp_path, 2), Scaled()])
    for again in (model, make_model()):  # the one that failed, and from then on every one in the process
        losses, scaled = Losses(), Scaled()
        resumed = recover_train(
            again, make_dataset(), tmp_path, 2, [losses, scaled, checkpoint(tmp_path, 2)], step="1_2"
        )
        assert resumed.step == Step(1, 2)
        assert losses.seen == {step: loss for step, loss in whole.seen.items() if step > 2}
        assert values(again) == values(alone)
        assert scaled.scale.asnumpy()[0] == 2.0 ** (2 * STEPS)


@pytest.mark.parametrize("kind", ERRORS)
def test_a_loop_is_resumed_in_the_process_of_an_error_out_of_its_network(tmp_path, kind):
    def train(done=0, saver=None):
        network = Failing()
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        loss_of = nn.MSELoss()
        gradients_of = ms.value_and_grad(lambda x, y: loss_of(network(x), y), None, optimizer.parameters)
        if done:
            assert resume([network, optimizer], tmp_path).step == Step(1, done)
        dataset = make_dataset()
        dataset.set_init_step(done)
        seen, saving = {}, SliceSaver([network, optimizer], f"{tmp_path}/ckpt_dir{{rank}}") if saver else None
        for step, (x, y) in enumerate(dataset.create_tuple_iterator(num_epochs=1), done + 1):
            loss, gradients = gradients_of(x, y)
            optimizer(gradients)
            seen[step] = loss.asnumpy().tobytes()
            if saving is not None and step == 2:
                saving.save(step)
                saving.release()
        return seen, {one.name: one.asnumpy().tobytes() for one in network.get_parameters()}

    whole, last = train()
    with failing(kind):
        train(saver=True)
    for _ in range(2):
        seen, end = train(done=2)
        assert seen == {step: loss for step, loss in whole.items() if step > 2}
        assert end == last


@pytest.mark.parametrize("kind", ERRORS)
def test_a_training_that_begins_anew_behind_an_error_out_of_the_network_runs_it_once_a_step(tmp_path, kind):
    """Also where nothing is resumed, by ``Model.train`` alone: what the network keeps moves once."""
    alone, whole = make_model(), Losses()
    alone.train(2, make_dataset(), callbacks=[whole])
    with failing(kind):
        make_model().train(2, make_dataset())
    again, losses = make_model(), Losses()
    again.train(2, make_dataset(), callbacks=[losses, checkpoint(tmp_path, 2)])
    assert losses.seen == whole.seen
    assert again.train_network.network._backbone.calls == alone.train_network.network._backbone.calls
    assert values(again) == values(alone)
