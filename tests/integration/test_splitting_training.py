"""Training through a splitter: the bits of one process, also when devices are lost (real processes)."""

import os
import signal

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.errors import DeviceLostError, PartError, UsageError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter  # noqa: E402
from tests.support.split_training import (  # noqa: E402
    OPTIMIZERS,
    HeldUp,
    OneProcess,
    Strike,
    batches,
    current_values,
    current_weights,
    equal,
    network,
    one_process,
)
from tests.support.splitting import close_to, outcome  # noqa: E402

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


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
@pytest.mark.parametrize("split", ["layers", "batch"])
def test_gradients_are_those_of_the_whole_model(mode, split):
    """What Momentum keeps after its first step is the gradient itself."""
    ((x, y),) = batches(1)
    with made(split, 2, "Momentum", ModelSplitter) as splitter:
        splitter.train_step(x, y)
        kept = current_values(splitter, "optimizer")
    model, loss_fn = network(), nn.CrossEntropyLoss()
    weights = model.trainable_params()
    _, gradients = ms.value_and_grad(lambda x, y: loss_fn(model(x), y), None, weights)(ms.Tensor(x), ms.Tensor(y))
    largest = max(np.abs(gradient.asnumpy()).max() for gradient in gradients)
    assert largest > 0.01
    for weight, gradient in zip(weights, gradients, strict=True):
        assert np.abs(kept[f"moments.{weight.name}"] - gradient.asnumpy()).max() <= 1e-6 * largest, weight.name


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
FEW = {3: (0, "backward", 2, signal.SIGKILL), 6: (1, "update", 1, signal.SIGKILL)}


def train_under(splitter, strikes, steps):
    """Train with devices struck, and return the weights."""
    for number, (x, y) in enumerate(batches(steps), 1):
        strike = Strike(splitter, *strikes[number]) if number in strikes else None
        loss = splitter.train_step(x, y)
        assert loss.rows == loss.total == 200
        assert strike is None or strike.done, f"nothing was struck at step {number}"
    found = current_weights(splitter)
    assert len([event for event in splitter.events if event.kind == "lost"]) == len(strikes)
    return found


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_lost_devices_of_layers_come_back_with_the_same_bits(mode):
    strikes, steps = (STRIKES, 15) if MORE else (FEW, 8)
    with made("layers", 2, snapshot_steps=5, spares=1, heartbeat=2.0) as splitter:
        found = train_under(splitter, strikes, steps)
        chunks = splitter.chunks(200)
    assert equal(found, one_process(steps, chunks, "Adam")[0])


@on_request
@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_a_process_that_comes_back_within_a_step_takes_no_part_in_it(mode):
    """Its snapshot is of the step before, but the activations of the step went with the process before it."""
    with made("layers", 2, snapshot_steps=1, spares=1, heartbeat=60.0, chunk_rows=200) as splitter:
        for number, (x, y) in enumerate(batches(3), 1):
            strike = HeldUp(splitter, slow=1, lost=0) if number == 2 else None
            splitter.train_step(x, y)
            assert strike is None or strike.done
        found = current_weights(splitter)
        chunks = splitter.chunks(200)
    assert equal(found, one_process(3, chunks, "Adam")[0])


@on_request
@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], indirect=True, ids=["graph", "PyNative"])
def test_lost_devices_of_rows_come_back_with_the_same_bits(mode):
    strikes = {
        2: (0, "both", 1, signal.SIGKILL),
        4: (1, "update", 1, signal.SIGKILL),
        7: (0, "both", 1, signal.SIGSTOP),
    }
    with made("batch", 2, snapshot_steps=5, heartbeat=2.0) as splitter:
        found = train_under(splitter, strikes, 12)
        chunks = splitter.chunks(200)
    assert equal(found, one_process(12, chunks, "Adam")[0])


@on_request
@pytest.mark.parametrize("mode", [ms.GRAPH_MODE, ms.PYNATIVE_MODE], indirect=True, ids=["graph", "PyNative"])
def test_dropout_is_the_same_in_a_repeated_step(mode):
    model = network()
    model = nn.SequentialCell(*list(model.cell_list)[:2], nn.Dropout(p=0.4), *list(model.cell_list)[2:])
    model.set_train(False)
    found = []
    for strikes in ({}, {2: (1, "both", 3, signal.SIGKILL), 5: (0, "backward", 1, signal.SIGKILL)}):
        options = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": OPTIMIZERS["Adam"], "snapshot_steps": 3}
        with FaultTolerantModelSplitter(model, 2, spares=1, **options) as splitter:
            found.append(train_under(splitter, strikes, 6))
    assert equal(*found)


@on_request
@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_skipped_rows_are_named_and_do_not_count(mode):
    first, second = batches(2)
    with made("batch", 2, on_failure="skip") as splitter:
        splitter.train_step(*first)
        strike = Strike(splitter, 1, "both")
        loss = splitter.train_step(*second)
        assert strike.done
        assert (loss.rows, loss.total) == (100, 200)
        assert [(gap.start, gap.stop, gap.device) for gap in splitter.last_report.missing] == [(100, 200, 1)]
        assert splitter.device_states == [True, False]
        found = current_weights(splitter)
        splitter.reset_device_states()
        assert splitter.device_states == [True, True]
        assert equal(current_weights(splitter), found)
    single = OneProcess(network(), nn.CrossEntropyLoss(), OPTIMIZERS["Adam"])
    single.train_step(*first, [(0, 100), (100, 200)])
    half = single.train_step(second[0][:100], second[1][:100], [(0, 100)])
    assert np.allclose(loss, half, rtol=1e-6)
    for name, value in single.weights.items():
        assert np.allclose(found[name], value, atol=1e-6), name


@on_request
@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_a_survivor_takes_the_part_of_a_skipped_device(mode):
    with made("layers", 2, on_failure="skip") as splitter:
        found = train_under(splitter, {2: (1, "update", 1, signal.SIGKILL)}, 4)
        assert splitter.device_states == [True, False]
        splitter.reset_device_states()
        assert splitter.device_states == [True, True]
        assert equal(current_weights(splitter), found)
        chunks = splitter.chunks(200)
    assert equal(found, one_process(4, chunks, "Adam")[0])


@on_request
@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
@pytest.mark.parametrize("split", ["layers", "batch"])
def test_a_device_that_is_taken_out_and_brought_back_changes_no_bit(mode, split):
    with made(split, 2) as splitter:
        for step, (x, y) in enumerate(batches(6)):
            if step in (2, 4):
                splitter.device_states[1] = step == 4
            splitter.train_step(x, y)
        found, chunks = current_weights(splitter), splitter.chunks(200)
        trained = network()
        ms.load_param_into_net(trained, splitter.state_dict())
        many = np.concatenate([x for x, _ in batches(6)] * 2)
        assert close_to(splitter.forward(many).asnumpy(), outcome(trained, many))
    assert equal(found, one_process(6, chunks, "Adam")[0])


def test_an_empty_batch_is_refused():
    x, y = batches(1)[0]
    with made("layers", 1) as splitter, pytest.raises(UsageError, match="no row to train with"):
        splitter.train_step(x[:0], y[:0])


@on_request
@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
@pytest.mark.parametrize("action", ["both", "update"])
@pytest.mark.parametrize("kind", [FaultTolerantModelSplitter, ModelSplitter])
def test_a_loss_raises_and_no_weight_changes(mode, action, kind):
    options = {"on_failure": "raise"} if kind is FaultTolerantModelSplitter else {}
    data = batches(3)
    with made("layers", 2, kind=kind, **options) as splitter:
        splitter.train_step(*data[0])
        splitter.train_step(*data[1])
        Strike(splitter, 1, action)
        with pytest.raises(DeviceLostError, match=r"device 1.*the weights are those before the step"):
            splitter.train_step(*data[2])
        with pytest.raises(DeviceLostError, match="device 1"):
            splitter.train_step(*data[2])
        if kind is FaultTolerantModelSplitter:
            splitter.reset_device_states()
            assert equal(current_weights(splitter), one_process(2, splitter.chunks(200), "Adam")[0])
            splitter.train_step(*data[2])
            assert equal(current_weights(splitter), one_process(3, splitter.chunks(200), "Adam")[0])


@on_request
@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE], indirect=True)
def test_what_a_part_raises_is_raised_and_changes_nothing(mode):
    (x, y), other = batches(2)
    with made("layers", 2) as splitter:
        splitter.train_step(x, y)
        with pytest.raises(PartError, match=r"device 1, part 1.*the weights are those before the step"):
            splitter.train_step(x, y.astype(np.float32).reshape(10, 20)[:, :1].repeat(20, 0))
        splitter.train_step(*other)
        assert splitter.device_states == [True, True]
        assert equal(current_weights(splitter), one_process(2, splitter.chunks(200), "Adam")[0])


def forgets_to_return(parameters):
    nn.SGD(parameters, 0.1)


def trains_others(parameters):
    return nn.SGD([ms.Parameter(ms.Tensor(one), name=f"copy.{one.name}") for one in parameters], 0.1)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (forgets_to_return, "forgets_to_return returned None, so that nothing would be trained"),
        (trains_others, "trains_others made an optimizer of other parameters"),
    ],
)
@pytest.mark.parametrize("split", ["layers", "batch"])
def test_an_optimizer_function_that_trains_nothing_is_refused_by_its_name(function, split, said):
    options = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": function, "timeout": 120}
    with pytest.raises(UsageError, match=said):
        FaultTolerantModelSplitter(network(), 2, split, **options)


def forgets_where_weights_are_large(parameters):
    assert parameters[0].size > 1
    nn.SGD(parameters, 0.1)


def test_a_worker_refuses_it_where_only_the_weights_themselves_show_it():
    ((x, y),) = batches(1)
    options = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": forgets_where_weights_are_large, "timeout": 120}
    with (
        ModelSplitter(network(), 2, "layers", **options) as splitter,
        pytest.raises(PartError, match="forgets_where_weights_are_large returned None"),
    ):
        splitter.train_step(x, y)


def test_a_splitter_without_a_loss_does_not_train():
    with pytest.raises(UsageError, match="training needs optimizer too"):
        ModelSplitter(network(), 2, loss_fn=nn.CrossEntropyLoss())
