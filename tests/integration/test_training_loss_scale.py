"""A step that overflows the loss scale leaves the weights as they are, and nothing is lost by that."""

import logging

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import amp, nn, ops  # noqa: E402
from mindspore.train import Model  # noqa: E402

from ms_recover.model.steps import Step  # noqa: E402
from ms_recover.training import recover_train  # noqa: E402
from tests.support.trainings import STEPS, checkpoint, make_network, rows, values  # noqa: E402


@pytest.fixture(autouse=True)
def pynative():
    """MindSpore's cells with a loss scale are not compiled on CPU."""
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


def make_dataset():
    """The gradients of the last step of each epoch overflow."""
    samples = rows(4 * STEPS)
    samples[-4:] = [(x, np.full_like(y, 3e38)) for x, y in samples[-4:]]
    return ds.GeneratorDataset(samples, ["x", "y"], shuffle=False).batch(4)


class OnCpu(nn.TrainOneStepWithLossScaleCell):
    """MindSpore's cell, whose operator that looks for an overflow is not for CPU."""

    def get_overflow_status(self, status, compute_output):
        return ops.logical_not(amp.all_finite(compute_output))


class Scaled(nn.Cell):
    """A train step of a program of its own, with a scaler in an attribute."""

    def __init__(self, network, optimizer, scaler):
        super().__init__()
        self.network, self.optimizer, self.scaler = network, optimizer, scaler

        def forward(x, y):
            return scaler.scale(network(x, y))

        self.gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)

    def construct(self, x, y):
        loss, gradients = self.gradients_of(x, y)
        gradients = self.scaler.unscale(gradients)
        finite = amp.all_finite(gradients)
        if finite:
            self.optimizer(gradients)
        self.scaler.adjust(finite)
        return self.scaler.unscale(loss)


def make_model(kind, factor=2, window=None):
    network = make_network()
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    loss = nn.WithLossCell(network, nn.MSELoss())
    if kind == "dynamic":
        step = OnCpu(loss, optimizer, nn.DynamicLossScaleUpdateCell(1024.0, factor, window or 4))
    elif kind == "fixed":
        step = OnCpu(loss, optimizer, nn.FixedLossScaleUpdateCell(1024.0))
    else:
        scaler = amp.DynamicLossScaler(1024, factor, window or 50) if kind == "amp" else amp.StaticLossScaler(1024)
        step = Scaled(loss, optimizer, scaler)
    return Model(step)


@pytest.mark.parametrize("kind", ["dynamic", "fixed", "amp", "static"])
def test_a_loss_scale_overflow_is_not_said_to_have_accumulated_gradients(tmp_path, caplog, kind):
    caplog.set_level(logging.INFO)
    whole = make_model(kind)
    whole.train(2, make_dataset())
    model = make_model(kind)
    before = [one.asnumpy().copy() for one in model.train_network.trainable_params()]
    model.train(1, make_dataset(), callbacks=[checkpoint(tmp_path, 4)])
    assert any(
        (one.asnumpy() != old).any() for one, old in zip(model.train_network.trainable_params(), before, strict=True)
    )
    said = [one.getMessage() for one in caplog.records if "has not updated the weights" in one.getMessage()]
    if kind == "static":  # nothing shows its overflow: both are named
        assert (
            "step 8, the last one, has not updated the weights: unless the loss scale overflowed, gradients"
            in (said[-1])
        )
    else:
        assert said == []
    caplog.clear()
    again = make_model(kind)
    resumed = recover_train(again, make_dataset(), tmp_path, 2, [checkpoint(tmp_path, 4)])
    assert resumed.step == Step(1, STEPS)
    assert values(again) == values(whole)


def test_a_due_step_that_overflows_is_saved_behind_the_next_update_and_named_so(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    make_model("dynamic").train(2, make_dataset(), callbacks=[checkpoint(tmp_path, 8)])
    assert "step 8 overflowed the loss scale: the slice is saved behind the next update" in caplog.text
    assert (tmp_path / "ckpt_dir0" / "test-2_1.ckpt").exists()


@pytest.mark.parametrize(
    ("kind", "scale", "window"), [("dynamic", "DynamicLossScaleUpdateCell", 4), ("amp", "DynamicLossScaler", 50)]
)
def test_each_setting_of_a_loss_scale_that_differs_is_one_warning_with_both_values(
    tmp_path, caplog, capfd, kind, scale, window
):
    make_model(kind).train(1, make_dataset(), callbacks=[checkpoint(tmp_path, 4)])
    recover_train(make_model(kind), make_dataset(), tmp_path, 2, [checkpoint(tmp_path, 4)])
    assert "when the slice was saved" not in caplog.text
    capfd.readouterr()
    recover_train(make_model(kind, 4, 7), make_dataset(), tmp_path, 3)
    said = [one for one in caplog.records if "when the slice was saved" in one.getMessage()]
    assert {one.levelname for one in said} == {"WARNING"}
    assert [one.getMessage().split(".ckpt: ")[1] for one in said] == [
        f"{scale}.scale_factor is 4 in the program, and was 2 when the slice was saved: the program's is taken",
        f"{scale}.scale_window is 7 in the program, and was {window} when the slice was saved: the program's is taken",
    ]
    (line,) = [one for one in capfd.readouterr().err.splitlines() if one.startswith("ms_recover:")]
    assert f"settings not proven: {scale}.scale_factor is 4 and was 2, {scale}.scale_window is 7 and was" in line
