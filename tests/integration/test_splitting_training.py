"""Training through a splitter: the bits of one process, also when devices are lost (real processes)."""

import os
import signal

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn

from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter
from tests.support.split_training import (
    OPTIMIZERS,
    Strike,
    batches,
    current_weights,
    equal,
    network,
    one_process,
)

MORE = "MS_RECOVER_EXAMPLES" in os.environ
on_request = pytest.mark.skipif(not MORE, reason="only with MS_RECOVER_EXAMPLES: each case starts processes")


@pytest.fixture
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=before)


def made(split, devices, optimizer="Adam", kind=FaultTolerantModelSplitter, **options):
    given = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": OPTIMIZERS[optimizer], "timeout": 120, **options}
    return kind(network(), devices, split, **given)


def check_same(split, devices, optimizer, steps=20, rows=200, **options):
    with made(split, devices, optimizer, ModelSplitter, **options) as splitter:
        losses = [splitter.train_step(x, y) for x, y in batches(steps, rows)]
        found, chunks = current_weights(splitter), splitter.chunks(rows)
        output = splitter.forward(batches(1, rows)[0][0]).asnumpy()
    wanted, expected = one_process(steps, chunks, optimizer, rows)
    assert equal(found, wanted)
    # the mean of a chunk's losses is summed by as many threads as a process has, which changes its last bit
    assert np.allclose(losses, expected, rtol=1e-6, atol=0)
    assert output.shape == (rows, 10)
    assert losses[-1].rows == losses[-1].total == rows


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE], indirect=True)
def test_layers_have_the_bits_of_one_process(mode):
    check_same("layers", 2, "Adam")


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_rows_have_the_bits_of_one_process(mode):
    check_same("batch", 2, "Momentum")


@on_request
@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], indirect=True, ids=["graph", "PyNative"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("split", ["layers", "batch"])
def test_every_optimizer_has_the_bits_of_one_process(mode, split, devices, optimizer):
    check_same(split, devices, optimizer)


@on_request
@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], indirect=True, ids=["graph", "PyNative"])
def test_recomputed_activations_have_the_same_bits(mode):
    check_same("layers", 3, "Adam", recompute=True)


STRIKES = {
    2: (0, "forward", 3, signal.SIGKILL),
    4: (1, "both", 4, signal.SIGKILL),
    6: (0, "backward", 2, signal.SIGKILL),
    8: (1, "update", 1, signal.SIGKILL),
    9: (0, "update", 1, signal.SIGKILL),
    10: (1, "save", 1, signal.SIGKILL),
    13: (0, "backward", 8, signal.SIGSTOP),
}
"""By step: device, action, how often before, and the signal."""


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_lost_devices_of_layers_come_back_with_the_same_bits(mode):
    with made("layers", 2, snapshot_steps=5, spares=1, heartbeat=1.0) as splitter:
        for number, (x, y) in enumerate(batches(15), 1):
            strike = Strike(splitter, *STRIKES[number]) if number in STRIKES else None
            loss = splitter.train_step(x, y)
            assert loss.rows == loss.total == 200
            if strike is not None:
                assert strike.done, f"nothing was struck at step {number}"
        found = current_weights(splitter)
        assert len([event for event in splitter.events if event.kind == "lost"]) == len(STRIKES)
    wanted, _ = one_process(15, splitter.chunks(200), "Adam")
    assert equal(found, wanted)


@on_request
@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], indirect=True, ids=["graph", "PyNative"])
def test_lost_devices_of_rows_come_back_with_the_same_bits(mode):
    struck = {2: (0, "both", 1, signal.SIGKILL), 4: (1, "update", 1, signal.SIGKILL), 7: (0, "both", 1, signal.SIGSTOP)}
    with made("batch", 2, snapshot_steps=5, heartbeat=1.0) as splitter:
        for number, (x, y) in enumerate(batches(12), 1):
            strike = Strike(splitter, *struck[number]) if number in struck else None
            assert splitter.train_step(x, y).rows == 200
            assert strike is None or strike.done
        found = current_weights(splitter)
    wanted, _ = one_process(12, splitter.chunks(200), "Adam")
    assert equal(found, wanted)
