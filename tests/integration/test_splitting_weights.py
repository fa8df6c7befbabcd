"""The weights around a splitter: made by workers, read, given back, gone on from; and gradients, which end there."""

import functools
import importlib
import os
import signal
import sys
import textwrap

import numpy as np
import pytest

pytestmark = [pytest.mark.mindspore, pytest.mark.usefixtures("watched")]
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402

from ms_recover.errors import DeviceLostError, UsageError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter  # noqa: E402
from tests.support.splitting import close_to, given, make, outcome, wait_for  # noqa: E402

PARTS, STAGES = 4, 16
WIDTHS = {"large": 2560, "middle": 1280, "small": 32}
"""Widths of the stages of models. The weights of the large one are many times what a process needs beside them."""
STAGE_FUNCTIONS = f"""
    from functools import partial

    from mindspore import nn


    def dense(width, count={STAGES}):
        return [partial(nn.Dense, width, width, activation="relu") for _ in range(count)]


    large, middle, small = (partial(dense, width) for width in {tuple(WIDTHS.values())})
    one_part = partial(small, {STAGES // PARTS})


    def broken():
        return [*small(3), lambda: 3]
"""
TRAINING = {"chunk_rows": 16, "loss_fn": nn.MSELoss(), "optimizer": lambda weights: nn.Momentum(weights, 0.01, 0.9)}


@pytest.fixture
def made_here(tmp_path, monkeypatch):
    """The module with the functions of `STAGE_FUNCTIONS`, which workers import as well."""
    (tmp_path / "stages_here.py").write_text(textwrap.dedent(STAGE_FUNCTIONS))
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("stages_here", None)
    return importlib.import_module("stages_here")


def largest(process):
    """Return the largest resident size that a process had so far."""
    with open(f"/proc/{process}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def largest_from_now():
    """Let the largest resident size of this process be the present one; return it."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return largest("self")


def size_of(model):
    """Return the bytes of a model's weights."""
    return 4 * STAGES * WIDTHS[model] ** 2


def rows_for(model):
    drawn = np.random.default_rng(2)
    return [drawn.standard_normal((32, WIDTHS[model])).astype(np.float32) for _ in "xy"]


@functools.cache
def idle_sizes():
    """Return what a worker has that does the work of one part with next to no weights: forward, and training steps."""
    x, y = rows_for("small")
    with FaultTolerantModelSplitter("stages_here:one_part", 1, threads=1, **TRAINING) as splitter:
        splitter.forward(x)
        forward = largest(splitter.processes[0])
        for _ in range(2):
            splitter.train_step(x, y)
        return forward, largest(splitter.processes[0])


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


def test_a_model_that_no_process_holds(made_here, tmp_path):
    """Four equal parts: every worker, and this process, stays below 60 % of the model at all times.

    Measured is the largest resident size so far, less what the same work takes with next to no weights.
    """
    (idle, _), whole = idle_sizes(), size_of("large")
    before = largest_from_now()
    x, _ = rows_for("large")
    ms.set_seed(5)
    options = {"directory": tmp_path / "slices", "threads": 1}
    with FaultTolerantModelSplitter("stages_here:large", PARTS, **options) as splitter:
        assert len(splitter.parts) == PARTS
        output = splitter.forward(x).asnumpy()
        used = {device: largest(process) - idle for device, process in enumerate(splitter.processes)}
        os.kill(splitter.processes[1], signal.SIGKILL)
        assert np.array_equal(splitter.forward(x).asnumpy(), output), "not the weights that the first process made"
        wait_for(lambda: all(splitter.device_states), "the device is back")
        used["recovered"] = largest(splitter.processes[1]) - idle
        used["this process"] = largest("self") - before
        print({name: f"{size / whole:.0%}" for name, size in used.items()})
        assert all(size < 0.6 * whole for size in used.values()), used
        held = 0.8 * whole / PARTS
        assert all(size > held for name, size in used.items() if name != "this process"), f"nothing is measured: {used}"
        weights = splitter.state_dict()
        with pytest.raises(UsageError, match="no model to set"):
            splitter.sync()
    assert len(list((tmp_path / "slices").glob("rank_*/split-1_0.ckpt"))) == 2 * PARTS

    unsplit = nn.SequentialCell(*[function() for function in made_here.large()])
    assert ms.load_param_into_net(unsplit, weights) == ([], [])
    assert close_to(output, outcome(unsplit, x))
    assert len({weight.asnumpy().tobytes() for name, weight in weights.items() if name.endswith("weight")}) == STAGES


def test_functions_make_the_stages(made_here):
    """A seed makes the same weights however many devices there are, and for functions given by name or as they are."""
    (x, _), found = rows_for("small"), []
    for functions, devices, split in (("stages_here:one_part", 2, "layers"), (made_here.small(2), 1, "batch")):
        ms.set_seed(5)
        with ModelSplitter(functions, devices, split, chunk_rows=16) as splitter:
            assert len(splitter.parts) == devices
            assert splitter.forward(x).shape == x.shape
            found.append({name: weight.asnumpy().tobytes() for name, weight in splitter.state_dict().items()})
    assert len(found[1]) == 4
    assert found[1] == {name: found[0][name] for name in found[1]}
    for wrong, error, said in (
        (made_here.broken(), DeviceLostError, r"function of stage 3 returned int instead of a mindspore\.nn\.Cell"),
        ("stages_here:nothing", UsageError, "has no nothing"),
    ):
        with pytest.raises(error, match=said):
            ModelSplitter(wrong, 1, "batch")
    with pytest.raises(UsageError, match="give their costs"):
        ModelSplitter("stages_here:small", 2, sample=x)


def test_a_model_that_no_process_holds_is_trained(made_here):
    """Four equal parts, each below 60 % of what a process takes that trains the whole model; with the same bits."""
    (_, idle), size, (x, y) = idle_sizes(), size_of("middle"), rows_for("middle")
    used, weights = {}, {}
    for devices in (1, PARTS):
        ms.set_seed(5)
        before = largest_from_now()
        with FaultTolerantModelSplitter("stages_here:middle", devices, threads=1, **TRAINING) as splitter:
            for _ in range(2):
                splitter.train_step(x, y)
            used[devices] = [largest(process) - idle for process in splitter.processes]
            used[devices].append(largest("self") - before)
            weights[devices] = {name: weight.asnumpy().tobytes() for name, weight in splitter.state_dict().items()}
    whole = used[1][0]
    print({devices: [f"{each / whole:.0%}" for each in sizes] for devices, sizes in used.items()}, whole / size)
    assert all(each < 0.6 * whole for each in used[PARTS]), used
    assert whole > 3 * size, "weights, gradients and moments are not all there"
    assert weights[PARTS] == weights[1]
