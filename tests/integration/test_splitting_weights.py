"""The weights around a splitter: made by workers, read, given back, gone on from; and gradients, which end there."""

import os
import signal
import textwrap

import numpy as np
import pytest

pytestmark = [pytest.mark.mindspore, pytest.mark.usefixtures("watched")]
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402

from ms_recover.errors import DeviceLostError, UsageError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter  # noqa: E402
from tests.support.splitting import close_to, given, make, outcome, wait_for  # noqa: E402

WIDTH, STAGES, PARTS = 1536, 8, 4
WHOLE = STAGES * WIDTH * WIDTH * 4
"""Bytes of the weights of `STAGE_FUNCTIONS`."""
STAGE_FUNCTIONS = f"""
    from functools import partial

    from mindspore import nn


    def stages():
        return [partial(nn.Dense, {WIDTH}, {WIDTH}, activation="relu") for _ in range({STAGES})]


    def broken():
        return [*stages()[1:], lambda: 3]
"""


@pytest.fixture
def factory(tmp_path, monkeypatch):
    (tmp_path / "stages_here.py").write_text(textwrap.dedent(STAGE_FUNCTIONS))
    monkeypatch.syspath_prepend(tmp_path)
    return "stages_here:stages"


def memory(process, key):
    """Return a size of a process in bytes, by its name in /proc: VmRSS now, VmHWM at most so far."""
    with open(f"/proc/{process}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))


def settled(measure):
    """Return a figure when it has stayed the same for two seconds."""
    figures = []

    def same():
        figures.append(measure())
        return len(figures) > 100 and len(set(figures[-100:])) == 1

    wait_for(same, "the figure stays the same", 60)
    return figures[-1]


@pytest.fixture
def pynative():
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=mode)


@pytest.mark.usefixtures("pynative")
def test_gradients_raise_where_they_cannot_go(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # a compilation that fails writes files
    model, x = make("mlp"), ms.Tensor.from_numpy(given("mlp", 16))
    head = nn.Dense(10, 2)
    with ModelSplitter(model, 1) as splitter:

        def loss(x):
            return splitter.forward(x).sum()

        def behind(x):
            return head(splitter(x)).sum()

        def constant(x):
            return (x.sum() * ops.stop_gradient(splitter(x))).sum()

        want = float(loss(x))
        for weights in (None, model.trainable_params()):
            with pytest.raises(UsageError, match=r"no gradient passes through forward.*train_step.*ops\.stop_gradient"):
                ms.value_and_grad(loss, None if weights else 0, weights)(x)
        _, gradients = ms.value_and_grad(behind, None, head.trainable_params())(x)
        output = splitter(x).asnumpy()
        assert close_to(gradients[0].asnumpy()[0], output.sum(0))
        _, gradient = ms.value_and_grad(constant)(x)
        assert close_to(gradient.asnumpy(), np.full(x.shape, output.sum(), np.float32))
        assert float(loss(x)) == want

        class Net(nn.Cell):
            def construct(self, x):
                return splitter.forward(x)

        for compiled in (ms.jit(loss), ms.jit(behind)):
            with pytest.raises(RuntimeError, match=r"ModelSplitter\.forward' is not supported in 'construct'"):
                compiled(x)
        ms.set_context(mode=ms.GRAPH_MODE)
        try:
            for call in (Net(), ms.value_and_grad(loss), ms.value_and_grad(loss, None, model.trainable_params())):
                with pytest.raises(RuntimeError, match=r"ModelSplitter\.forward' is not supported in 'construct'"):
                    call(x)
            assert float(loss(x)) == want
        finally:
            ms.set_context(mode=ms.PYNATIVE_MODE)


def test_the_weights_are_read_and_given_back(tmp_path):
    model, x = make("mlp"), given("mlp", 32)
    want, names = outcome(model, x), [parameter.name for parameter in model.get_parameters()]
    with ModelSplitter(model, 2, directory=tmp_path / "slices") as splitter:
        for parameter in model.get_parameters():
            parameter.set_data(ms.Tensor(np.zeros(parameter.shape, np.float32)))
        weights = splitter.state_dict()
        assert list(weights) == names
        splitter.sync()
        assert np.array_equal(outcome(model, x), want)
    other = make("mlp")
    for parameter in other.get_parameters():
        parameter.set_data(ms.Tensor(np.zeros(parameter.shape, np.float32)))
    assert ms.load_param_into_net(other, weights) == ([], [])
    assert np.array_equal(outcome(other, x), want)
    with pytest.raises(UsageError, match="closed"):
        splitter.state_dict()

    # the next one goes on from the slices, with their parts on as many devices as there are, or refuses them
    for parameter in model.get_parameters():
        parameter.set_data(ms.Tensor(np.zeros(parameter.shape, np.float32)))
    with ModelSplitter(model, 1, directory=tmp_path / "slices", resume=True) as splitter:
        assert len(splitter.parts) == 2
        assert close_to(splitter.forward(x).asnumpy(), want)
        splitter.sync()
    assert np.array_equal(outcome(model, x), want)
    for wrong, said in (({"layers": 4}, "a model of 5 stages, this has 6"), ({"width": 96}, r"the model \('Float32'")):
        with pytest.raises(UsageError, match=said):
            ModelSplitter(make("mlp", **wrong), 2, directory=tmp_path / "slices", resume=True)
    with pytest.raises(UsageError, match="resume needs the directory"):
        ModelSplitter(model, 2, resume=True)


def test_a_model_that_no_process_holds(factory, tmp_path):
    """Four equal parts: every worker, and this process, stays below 60 % of the model at all times.

    Measured is the largest resident size so far (VmHWM), less what a process with MindSpore has without a part: for
    workers that of an idle spare, for this process its own before the splitter is made.
    """
    ms.Tensor(np.ones(3, np.float32)) + ms.Tensor(np.ones(3, np.float32))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # VmHWM starts again
    before = memory("self", "VmHWM")
    x = given("mlp", 32)[:, :1].repeat(WIDTH, 1)
    ms.set_seed(5)
    with FaultTolerantModelSplitter(factory, PARTS, spares=1, directory=tmp_path / "slices", threads=1) as splitter:
        assert len(splitter.parts) == PARTS
        spare = splitter._devices.pool.spares[0].process_id
        idle = settled(lambda: memory(spare, "VmHWM"))  # it imports after it has said that it is there
        output = splitter.forward(x).asnumpy()
        used = {device: memory(process, "VmHWM") - idle for device, process in enumerate(splitter.processes)}
        os.kill(splitter.processes[1], signal.SIGKILL)
        assert np.array_equal(splitter.forward(x).asnumpy(), output), "not the weights that the first process made"
        wait_for(lambda: all(splitter.device_states), "the device is back")
        used["recovered"] = memory(splitter.processes[1], "VmHWM") - idle
        used["this process"] = memory("self", "VmHWM") - before
        print({name: f"{size / WHOLE:.0%}" for name, size in used.items()})
        assert all(size < 0.6 * WHOLE for size in used.values()), used
        assert all(size > 0.2 * WHOLE for name, size in used.items() if name != "this process"), "nothing is measured"
        weights = splitter.state_dict()
        with pytest.raises(UsageError, match="no model to set"):
            splitter.sync()
    assert len(list((tmp_path / "slices").glob("rank_*/split-1_0.ckpt"))) == 2 * PARTS

    import stages_here

    unsplit = nn.SequentialCell(*[function() for function in stages_here.stages()])
    assert ms.load_param_into_net(unsplit, weights) == ([], [])
    assert close_to(output, outcome(unsplit, x))
    assert len({weight.asnumpy().tobytes() for name, weight in weights.items() if name.endswith("weight")}) == STAGES

    # a seed makes the same weights however many devices there are; functions can be given as they are
    ms.set_seed(5)
    with ModelSplitter(stages_here.stages()[:2], 2, "batch", chunk_rows=16) as splitter:
        assert len(splitter.parts) == 1
        again = splitter.state_dict()
        assert {name: again[name].asnumpy().tobytes() for name in again} == {
            name: weights[name].asnumpy().tobytes() for name in again
        }
        assert splitter.forward(x).shape == x.shape
    for wrong, error, said in (
        (stages_here.broken(), DeviceLostError, r"function of stage 7 returned int instead of a mindspore\.nn\.Cell"),
        ("stages_here:WIDTH", UsageError, "has no WIDTH"),
    ):
        with pytest.raises(error, match=said):
            ModelSplitter(wrong, 2, "batch")
    with pytest.raises(UsageError, match="give their costs"):
        ModelSplitter(factory, 2, sample=x)


def test_a_model_that_no_process_holds_is_trained(factory):
    """Four equal parts, each below 60 % of what a process takes that trains the whole model; with the same bits."""
    drawn = np.random.default_rng(2)
    x, y = (drawn.standard_normal((32, WIDTH)).astype(np.float32) for _ in "xy")
    training = {"loss_fn": nn.MSELoss(), "optimizer": lambda weights: nn.Momentum(weights, 0.01, 0.9)}
    used, weights = {}, {}
    for devices in (1, PARTS):
        ms.set_seed(5)
        options = {"spares": 1, "chunk_rows": 16, "threads": 1, **training}
        with FaultTolerantModelSplitter(factory, devices, **options) as splitter:
            idle = memory(splitter._devices.pool.spares[0].process_id, "VmHWM")
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
            before = memory("self", "VmHWM")
            for _ in range(2):
                splitter.train_step(x, y)
            used[devices] = [memory(process, "VmHWM") - idle for process in splitter.processes]
            used[devices].append(memory("self", "VmHWM") - before)
            weights[devices] = {name: weight.asnumpy().tobytes() for name, weight in splitter.state_dict().items()}
    whole = used[1][0]
    print({devices: [f"{size / WHOLE:.0%}" for size in sizes] for devices, sizes in used.items()})
    assert all(size < 0.6 * whole for size in used[PARTS]), used
    assert whole > 3 * WHOLE, "weights, gradients and moments are not all there"
    assert weights[PARTS] == weights[1]
