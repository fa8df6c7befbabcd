"""The sample's loss over the micro batches of a pipeline, and the device that it asks for."""

import importlib
import sys
from types import SimpleNamespace

import pytest

from tests.support.sample import SAMPLE

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import numpy as np  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.nn.wrap.cell_wrapper import _TrainGradAccuStepCell  # noqa: E402

MODULES = ("dataset", "job", "layout", "model", "options", "parallel", "rank_table")


@pytest.fixture
def sample(monkeypatch):
    """Its modules, whose names are those of scripts."""
    monkeypatch.syspath_prepend(str(SAMPLE))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield importlib.import_module
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("micro", [2, 4])
def test_the_gradient_is_that_of_the_mean_over_all_micro_batches(sample, micro):
    layout = sample("layout").Layout(0, 1, 1)
    sizes = sample("model").Sizes(
        batch=8 // micro,
        src_len=3,
        tgt_len=5,
        vocab=16,
        hidden=8,
        ffn=8,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
    )
    network = sample("model").Transformer(sizes, layout, 1)
    pipeline = nn.PipelineCell(network, micro)
    trained = _TrainGradAccuStepCell(pipeline, nn.Momentum(network.trainable_params(), 0.1, 0.9))
    # MindSpore adds the micro batches' losses up and multiplies the gradients of the sum with `sens`
    assert network.share * trained.sens == pytest.approx(1 / (8 * 5), rel=1e-6)


def test_the_logged_loss_is_the_mean_as_well(sample, tmp_path, capsys):
    log = sample("job").LossLog(tmp_path / "loss.jsonl", 4)
    for outputs in (ms.Tensor(np.float32(6)), 6):
        params = SimpleNamespace(net_outputs=outputs, cur_step_num=3, batch_num=8, cur_epoch_num=1)
        log.on_train_step_end(SimpleNamespace(original_args=lambda params=params: params))
    assert capsys.readouterr().out.count("step: 3, loss is 1.5") == 2


@pytest.mark.parametrize(("table", "asked"), [(SAMPLE / "rank_table_8pcs.json", ("Ascend", 5)), (None, ("Ascend",))])
def test_a_rank_table_says_which_device_a_rank_has(sample, monkeypatch, tmp_path, table, asked):
    class AskedError(Exception):
        """Nothing more is prepared: there is no such device here."""

    def set_device(*arguments):
        raise AskedError(arguments)

    (tmp_path / "pairs.txt").write_text("a\tb\n")
    monkeypatch.setenv("RANK_ID", "5")
    monkeypatch.setenv("RANK_SIZE", "8")
    monkeypatch.setenv("RANK_TABLE_FILE", str(table or ""))
    options = sample("options").parse_options("", ["--file_path", str(tmp_path / "pairs.txt")])
    options.device_target = "Ascend"
    monkeypatch.setattr(sample("job").ms, "set_device", set_device)
    with pytest.raises(AskedError) as ended:
        sample("job").prepare(options)
    assert ended.value.args == (asked,)
