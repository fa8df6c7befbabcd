import logging
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import numpy as np  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.train import Model  # noqa: E402

from ms_recover.training import SliceCheckpoint, SliceSaver, recover_train, resume  # noqa: E402
from ms_recover.training.cells import rounding_optimizers  # noqa: E402

NAMED = "RMSProp: on CPU MindSpore's kernel rounds by how often it ran"


@pytest.fixture(autouse=True)
def graph_mode():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    yield
    ms.set_context(mode=before)


def make_model(optimizer):
    network = nn.Dense(2, 1)
    return Model(network, nn.MSELoss(), optimizer(network.trainable_params(), learning_rate=0.1))


def test_an_optimizer_that_rounds_otherwise_is_named(tmp_path, caplog):
    rows = [(np.ones(2, np.float32), np.ones(1, np.float32))] * 4

    def data():
        return ms.dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(2)

    def save():
        return SliceCheckpoint(str(tmp_path / "ckpt_dir{rank}"), "net")

    make_model(nn.RMSProp).train(1, data(), callbacks=[save()])
    with caplog.at_level(logging.WARNING):
        recover_train(make_model(nn.RMSProp), data(), tmp_path, 2, [save()])
    assert caplog.text.count(NAMED) == 1
    assert rounding_optimizers(make_model(nn.Adam).train_network) == []


def test_it_is_named_in_a_loop(tmp_path, caplog, capfd):
    model = make_model(nn.RMSProp)
    with SliceSaver([model.train_network], str(tmp_path / "ckpt_dir{rank}")) as saver:
        saver.save(1)
    resumed = resume([make_model(nn.RMSProp).train_network], tmp_path)
    resumed.prove(iter(()), allow_dataset_change=True)
    assert caplog.text.count(NAMED) == 1
    assert "optimizer not proven: RMSProp rounds by how often its kernel ran" in capfd.readouterr().err


def test_on_other_devices_nothing_is_said(monkeypatch):
    from ms_recover.training import cells

    monkeypatch.setattr(cells, "device_target", lambda: "Ascend")
    assert rounding_optimizers(SimpleNamespace()) == []
