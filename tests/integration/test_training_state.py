"""Generators, callbacks and the order of their calls: a resumed training is the interrupted one, to the bit."""

import random
import threading
from contextlib import suppress

import numpy as np
import pytest

from ms_recover.execution.state_files import read_state
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.manifest import read_manifest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import nn, ops  # noqa: E402
from mindspore.train import Callback, EarlyStopping, History, LearningRateScheduler, Model, ReduceLROnPlateau  # noqa: E402

from ms_recover.training import SliceCheckpoint, recover_train  # noqa: E402

with suppress(SystemError):  # MindSpore's first product with a Python number fails with numpy 2, the second does not
    ms.Tensor(1.0) * 0.5

STEPS, EPOCHS = 4, 3
DONE = STEPS * EPOCHS


class Rows:
    """Samples; with `noise`, numpy's global generator changes them as they are read."""

    def __init__(self, noise=False):
        rng = np.random.default_rng(5)
        self._x, self._y = rng.random((2 * STEPS, 3), np.float32), rng.random((2 * STEPS, 2), np.float32)
        self._noise = noise

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        noise = np.float32(np.random.random()) if self._noise else np.float32(0)
        return self._x[index] + noise, self._y[index]


def make_dataset(noise=False, shuffle=True):
    return ds.GeneratorDataset(Rows(noise), ["x", "y"], shuffle=shuffle).batch(2, drop_remainder=True)


class Network(nn.Cell):
    def __init__(self, noisy=False):
        super().__init__()
        rng = np.random.default_rng(3)
        weights = [ms.Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((8, 3), (2, 8))]
        self.first, self.second = nn.Dense(3, 8, weights[0], "zeros"), nn.Dense(8, 2, weights[1], "zeros")
        self.noisy = noisy

    def construct(self, x):
        hidden = ops.tanh(self.first(x))
        if self.noisy:
            hidden = hidden * (1 + random.random() * np.random.random())  # in PyNative mode, at each step
        return self.second(hidden)


def make_model(noisy=False):
    network = Network(noisy)
    return Model(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 0.1, 0.9))


class Crash(Callback):
    """Raises an error before a step begins."""

    def __init__(self, behind):
        super().__init__()
        self._behind = behind

    def on_train_step_begin(self, run_context):
        if run_context.original_args().cur_step_num == self._behind + 1:
            raise RuntimeError("crashed")


class Drawing(Callback):
    """Sets the learning rate by draws from Python's and numpy's generators, behind each step and at the ends."""

    def _draw(self, run_context):
        rate = run_context.original_args().optimizer.learning_rate
        ops.assign(rate, ms.Tensor(0.05 + 0.05 * random.random() * np.random.random(), ms.float32))

    on_train_step_end = on_train_epoch_begin = on_train_epoch_end = _draw


class Epochs(Callback):
    """Changes the learning rate when an epoch begins and when it ends, and notes it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_epoch_begin(self, run_context):
        self._note("begin", run_context, 0.5)

    def on_train_epoch_end(self, run_context):
        self._note("end", run_context, 1.5)

    def _note(self, event, run_context, factor):
        params = run_context.original_args()
        rate = params.optimizer.learning_rate
        ops.assign(rate, ms.Tensor(rate.asnumpy() * np.float32(factor)))
        self.calls.append((event, params.cur_epoch_num))

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


class Average(Callback):
    """An average of the weights, which replaces them behind every third step; counts in odd values."""

    def __init__(self):
        super().__init__()
        self._average, self._count = {}, (0, {"odd": float("nan")})

    def on_train_step_end(self, run_context):
        self._count = (self._count[0] + 1, self._count[1])
        for weight in run_context.original_args().optimizer.parameters:
            value = weight.asnumpy()
            self._average[weight.name] = (self._average.get(weight.name, value) + value) / np.float32(2)
            if self._count[0] % 3 == 0:
                ops.assign(weight, ms.Tensor(self._average[weight.name]))

    def state_dict(self):
        return {"average": {name: ms.Tensor(value) for name, value in self._average.items()}, "count": self._count}

    def load_state_dict(self, state):
        assert isinstance(state["count"], tuple)
        self._average = {name: value.asnumpy() for name, value in state["average"].items()}
        self._count = state["count"]


def halve_every_fifth(rate, step):
    return rate * 0.5 if step % 5 == 0 else rate


def plateau():
    return ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.05, cooldown=1)


def save(root, save_steps, **options):
    return SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", "net", save_steps, 20, **options)


def seed():
    ms.set_seed(7)  # numpy's and the dataset's as well
    random.seed(7)


def last_slice(root):
    newest = max((root / "ckpt_dir0").glob(f"*-{EPOCHS}_{STEPS}.*[ts]"), key=lambda path: path.stat().st_mtime_ns)
    return newest.read_bytes()


def last_state(root):
    name = max(
        (root / "ckpt_dir0").glob(f"*-{EPOCHS}_{STEPS}.*{STATE_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns
    )
    path = str(name).removesuffix(STATE_SUFFIX)
    return read_state(path, read_manifest(path + MANIFEST_SUFFIX).training.state_digest)


CASES = {
    "schedule": lambda: [LearningRateScheduler(halve_every_fifth)],
    "epochs": lambda: [Epochs()],
    "drawing": lambda: [Drawing()],
    "average": lambda: [Average()],
    "plateau": lambda: [plateau(), EarlyStopping("loss", patience=9, restore_best_weights=True), History()],
}


@pytest.fixture(scope="module", params=["GRAPH_MODE", "PYNATIVE_MODE"], autouse=True)
def mode(request):
    before, fast = ms.get_context("mode"), ds.config.get_fast_recovery()
    ms.set_context(mode=getattr(ms, request.param))
    yield request.param
    ms.set_context(mode=before)
    ds.config.set_fast_recovery(fast)
    ds.config.set_seed(5489)


def compare(tmp_path, make_callbacks, crash, dataset=make_dataset, model=make_model, **options):
    """Train undisturbed; train, crash behind a step and resume; everything at the end must be equal."""
    roots = [tmp_path / "whole", tmp_path / "cut"]
    seed()
    model().train(EPOCHS, dataset(), callbacks=[save(roots[0], 2, **options), *make_callbacks()])
    seed()
    with pytest.raises(RuntimeError, match="crashed"):
        model().train(EPOCHS, dataset(), callbacks=[save(roots[1], 2, **options), Crash(crash), *make_callbacks()])
    for thread in threading.enumerate():
        if thread.name.startswith("save-"):  # as a new process finds it
            thread.join()
    seed()
    callbacks = make_callbacks()
    resumed = recover_train(model(), dataset(), roots[1], EPOCHS, [save(roots[1], 2, **options), *callbacks])
    assert (resumed.step.epoch - 1) * STEPS + resumed.step.step == crash
    assert last_slice(roots[0]) == last_slice(roots[1])
    whole, cut = (last_state(root) for root in roots)
    assert {name: repr(value) for name, value in whole.items()} == {name: repr(value) for name, value in cut.items()}
    return callbacks


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("crash", [6, 8])
def test_goes_on_with_the_callbacks_as_they_were(tmp_path, case, crash):
    """Behind a step within an epoch, and behind an epoch; the slices are saved by the first of the callbacks."""
    options = {"async_save": crash == 8, "format": "safetensors" if crash == 6 else "ckpt"}
    compare(tmp_path, CASES[case], crash, **options)


def test_an_epoch_begins_once(tmp_path):
    (epochs,) = compare(tmp_path, CASES["epochs"], 6)
    assert epochs.calls == [(event, epoch + 1) for epoch in range(EPOCHS) for event in ("begin", "end")]
