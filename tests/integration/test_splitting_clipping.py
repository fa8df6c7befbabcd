"""A clip by the common norm of all parts: the bits of one process, also when devices are lost (real processes)."""

import os
import signal

import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402

from ms_recover.errors import DeviceLostError, UsageError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter  # noqa: E402
from tests.support.split_training import (  # noqa: E402
    OPTIMIZERS,
    OneProcess,
    Strike,
    batches,
    current_weights,
    equal,
    network,
    one_process,
)

MORE = "MS_RECOVER_EXAMPLES" in os.environ
on_request = pytest.mark.skipif(not MORE, reason="only with MS_RECOVER_EXAMPLES: each case starts processes")
LOW, HIGH = 0.25, 100.0
"""Below and above the norms of the first steps: a clip that changes nothing multiplies and divides all the same."""


@pytest.fixture
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=before)


def made(split, devices, optimizer="Adam", kind=FaultTolerantModelSplitter, **options):
    given = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": OPTIMIZERS[optimizer], "timeout": 120, **options}
    return kind(network(), devices, split, **{"clip_norm": LOW, **given})


def check_same(split, devices, optimizer, clip_norm, steps=5):
    with made(split, devices, optimizer, ModelSplitter, clip_norm=clip_norm) as splitter:
        for x, y in batches(steps):
            splitter.train_step(x, y)
        found, chunks = current_weights(splitter), splitter.chunks(200)
    assert equal(found, one_process(steps, chunks, optimizer, clip_norm=clip_norm)[0])
    clipped = not equal(found, one_process(steps, chunks, optimizer)[0])
    assert clipped or clip_norm == HIGH


@pytest.mark.parametrize("mode", [ms.GRAPH_MODE], indirect=True)
def test_the_norm_of_all_parts_clips_with_the_bits_of_one_process(mode):
    check_same("layers", 2, "Momentum", LOW)


@on_request
@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], indirect=True, ids=["graph", "PyNative"])
@pytest.mark.parametrize("clip_norm", [LOW, HIGH])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("split", "devices"), [("layers", 1), ("layers", 3), ("layers", 5), ("batch", 2)])
def test_every_optimizer_is_clipped_with_the_bits_of_one_process(mode, split, devices, optimizer, clip_norm):
    check_same(split, devices, optimizer, clip_norm)


STRIKES = {
    2: (0, "norm", 1, signal.SIGKILL),
    3: (1, "norm", 1, signal.SIGKILL),
    4: (0, "update", 1, signal.SIGKILL),
    5: (1, "update", 1, signal.SIGKILL),
    7: (0, "backward", 8, signal.SIGKILL),
    8: (1, "both", 8, signal.SIGKILL),
    9: (1, "norm", 1, signal.SIGSTOP),
}
"""By step: device, action, how often before, and the signal; 8 is the last chunk, in front of the norm."""
FEW = {2: STRIKES[2], 4: STRIKES[3], 5: STRIKES[5]}


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_a_loss_where_the_norm_is_exchanged_changes_no_bit(mode):
    strikes, steps = (STRIKES, 10) if MORE else (FEW, 6)
    with made("layers", 2, snapshot_steps=3, spares=1, heartbeat=2.0) as splitter:
        for number, (x, y) in enumerate(batches(steps), 1):
            strike = Strike(splitter, *strikes[number]) if number in strikes else None
            splitter.train_step(x, y)
            assert strike is None or strike.done, f"nothing was struck at step {number}"
        found, chunks = current_weights(splitter), splitter.chunks(200)
        assert len([event for event in splitter.events if event.kind == "lost"]) == len(strikes)
    assert equal(found, one_process(steps, chunks, "Adam", clip_norm=LOW)[0])


@on_request
@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
@pytest.mark.parametrize("kind", [FaultTolerantModelSplitter, ModelSplitter])
def test_a_loss_where_the_norm_is_exchanged_raises_and_no_weight_changes(mode, kind):
    options = {"on_failure": "raise"} if kind is FaultTolerantModelSplitter else {}
    first, second = batches(2)
    with made("layers", 2, kind=kind, **options) as splitter:
        splitter.train_step(*first)
        Strike(splitter, 1, "norm")
        with pytest.raises(DeviceLostError, match=r"device 1.*the weights are those before the step"):
            splitter.train_step(*second)
        assert splitter.step == 1
        if kind is FaultTolerantModelSplitter:
            splitter.reset_device_states()
            splitter.train_step(*second)
            assert equal(current_weights(splitter), one_process(2, splitter.chunks(200), "Adam", clip_norm=LOW)[0])


@on_request
@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_a_survivor_of_skipped_rows_clips_by_the_norm_of_the_others(mode):
    first, second = batches(2)
    with made("batch", 2, on_failure="skip") as splitter:
        splitter.train_step(*first)
        strike = Strike(splitter, 1, "both")
        loss = splitter.train_step(*second)
        assert strike.done
        assert (loss.rows, loss.total) == (100, 200)
        found = current_weights(splitter)
    single = OneProcess(network(), nn.CrossEntropyLoss(), OPTIMIZERS["Adam"], LOW)
    single.train_step(*first, [(0, 100), (100, 200)])
    single.train_step(second[0][:100], second[1][:100], [(0, 100)])
    for name, value in single.weights.items():
        assert abs(found[name] - value).max() <= 1e-6, name


def test_a_clipped_training_is_resumed_with_the_bits_of_one_process(tmp_path):
    options = {"directory": tmp_path / "slices", "resume": True, "save_steps": 2}
    for until in (3, 5):
        with made("layers", 2, **options) as splitter:
            assert splitter.step == (0 if until == 3 else 3)
            for x, y in batches(until)[splitter.step :]:
                splitter.train_step(x, y)
            splitter.save()
            weights = {name: weight.asnumpy() for name, weight in splitter.state_dict().items()}
            chunks = splitter.chunks(200)
    assert equal(weights, one_process(5, chunks, "Adam", clip_norm=LOW)[0])


class ClippedMomentum(nn.Momentum):
    """Clips by the norm of the gradients that it is given."""

    def construct(self, gradients):
        return super().construct(ops.clip_by_global_norm(gradients, LOW))


def clips_by_itself(weights):
    return ClippedMomentum(weights, 0.05, 0.9)


def test_a_clip_inside_the_optimizer_function_is_refused_under_layers():
    options = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": clips_by_itself}
    with pytest.raises(UsageError, match=r"optimizer=clips_by_itself .* gradient of another.*clip_norm="):
        ModelSplitter(network(), 2, "layers", **options)


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_a_clip_inside_the_optimizer_function_has_the_bits_of_one_process_under_batch(mode):
    options = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": clips_by_itself}
    with ModelSplitter(network(), 2, "batch", **options) as splitter:
        for x, y in batches(2):
            splitter.train_step(x, y)
        found, chunks = current_weights(splitter), splitter.chunks(200)
    assert equal(found, one_process(2, chunks, "Momentum", clip_norm=LOW)[0])
