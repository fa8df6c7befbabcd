"""The parts of random programs, built with MindSpore."""

from __future__ import annotations

import hashlib
import os
import random
import signal

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.dataset import vision
from mindspore.train import (
    Callback,
    EarlyStopping,
    FixedLossScaleManager,
    History,
    LearningRateScheduler,
    LossMonitor,
    Model,
    ReduceLROnPlateau,
    TimeMonitor,
)

from tests.support.random_programs import Program

WIDTH, CLASSES = 4, 3


def dataset_rows(program: Program) -> int:
    """Return the number of rows of the source, after the change."""
    rows = program.batch * program.batches + program.remainder
    return {"dataset longer": 2 * rows, "dataset shorter": rows // 2}.get(program.change, rows)


class Rows:
    """A source with random access; raises where `fails_at` says."""

    def __init__(self, number: int, count: int) -> None:
        rng = np.random.default_rng(number)
        self.x = rng.standard_normal((count, WIDTH, 1, 1)).astype(np.float32)
        self.y = rng.standard_normal((count, CLASSES)).astype(np.float32)
        self.fails_after: int | None = None
        self.read = 0

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        self.read += 1
        if self.fails_after is not None and self.read > self.fails_after:
            raise ValueError("the disk with the samples is gone")
        return self.x[index], self.y[index]


class Epochs:
    """A source that counts how often it was begun, and gives other samples each time."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._begun = 0

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self):
        self._begun += 1
        for x, y in zip(self._rows.x, self._rows.y, strict=True):
            yield x * np.float32(1 + self._begun), y


def make_dataset(program: Program) -> tuple[ds.Dataset, Rows]:
    """Return the dataset and its source."""
    seeded = program.shuffle in ("seeded", "buffer")
    if seeded:
        ds.config.set_seed(12 if program.change == "seed" else 11)
    rows = Rows(program.number, dataset_rows(program))
    shuffled = program.shuffle in ("seeded", "unseeded")
    names = ["x", "y"]
    if program.source == "arrays":
        data = ds.NumpySlicesDataset({"x": rows.x, "y": rows.y}, shuffle=shuffled)
    elif program.source == "sampler":
        data = ds.GeneratorDataset(rows, names, sampler=ds.RandomSampler() if shuffled else ds.SequentialSampler())
    elif program.source == "generator":
        data = ds.GeneratorDataset(lambda: zip(rows.x, rows.y, strict=True), names)
    elif program.source == "epochs":
        data = ds.GeneratorDataset(Epochs(rows), names)
    else:
        data = ds.GeneratorDataset(rows, names, shuffle=shuffled)
    if (program.source in ("generator", "epochs") and program.shuffle == "unseeded") or program.shuffle == "buffer":
        data = data.shuffle(8)
    if "skip" in program.operations:
        data = data.skip(1)
    if "concat" in program.operations:
        data = data + ds.GeneratorDataset(Rows(program.number + 1, dataset_rows(program)), names, shuffle=False).skip(
            1 if "skip" in program.operations else 0
        )
    if "flip" in program.operations:
        data = data.map(vision.RandomHorizontalFlip(0.5), ["x"])
    if "map" in program.operations:
        data = data.map(lambda x: x * np.float32(0.5), ["x"])
    if "draw" in program.operations:
        data = data.map(lambda x: x + np.random.normal(size=x.shape).astype(np.float32), ["x"], num_parallel_workers=1)
    batch = {"batch halved": program.batch // 2, "batch doubled": program.batch * 2}.get(program.change, program.batch)
    data = data.batch(batch, drop_remainder=not program.remainder)
    if "repeat" in program.operations:
        data = data.repeat(2)
    return data, rows


class Network(nn.Cell):
    """A small network; `kind` says what is special about it."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        rng = np.random.default_rng(3)

        def dense(rows: int, columns: int) -> nn.Dense:
            weight = ms.Tensor(rng.standard_normal((columns, rows)).astype(np.float32))
            return nn.Dense(rows, columns, weight, "zeros")

        self.flat = nn.Flatten()
        self.first, self.last = dense(WIDTH, width), dense(width, CLASSES)
        self.act = nn.Tanh()
        if kind == "norm":
            self.norm = nn.BatchNorm1d(width)
        elif kind == "embedding":
            table = ms.Tensor(rng.standard_normal((8, width)).astype(np.float32))
            self.table = nn.Embedding(8, width, embedding_table=table)
        elif kind == "bank":
            self.bank = ms.Parameter(ms.Tensor(np.zeros((3, width), np.float32)), "bank", requires_grad=False)
        elif kind == "dropout":
            self.drop = nn.Dropout(p=0.5)
        elif kind == "noise":
            self.normal = ops.StandardNormal(seed=1, seed2=2)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        x = self.flat(x)
        hidden = self.act(self.first(x))
        if self.kind == "norm":
            hidden = self.norm(hidden)
        elif self.kind == "embedding":
            hidden = hidden + self.table(ops.cast(ops.abs(x[:, 0]) * 3, ms.int32) % 8)
        elif self.kind == "bank":
            mean = ops.stop_gradient(hidden.mean(axis=0, keep_dims=True))
            hidden = hidden + self.bank.mean(axis=0, keep_dims=True)
            ops.assign(self.bank, ops.concat((self.bank[1:], mean)))
        elif self.kind == "dropout":
            hidden = self.drop(hidden)
        elif self.kind == "noise":
            hidden = hidden + self.normal((1, 1))
        return self.last(hidden)


class Accumulated(nn.TrainOneStepCell):
    """Sum the gradients of two steps, then optimize."""

    def __init__(self, network: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(network, optimizer)
        self.sums = self.weights.clone(prefix="sum", init="zeros")
        self.count = ms.Parameter(ms.Tensor(0, ms.int32), "count", requires_grad=False)
        self.add = ops.HyperMap()
        self.gradients = ops.GradOperation(get_by_list=True)

    def construct(self, *inputs: ms.Tensor) -> ms.Tensor:
        loss = self.network(*inputs)
        grads = self.gradients(self.network, self.weights)(*inputs)
        loss = ops.depend(loss, self.add(ops.assign_add, self.sums, grads))
        loss = ops.depend(loss, ops.assign_add(self.count, ms.Tensor(1, ms.int32)))
        if self.count % 2 == 0:
            loss = ops.depend(loss, self.optimizer(self.sums))
            loss = ops.depend(loss, self.add(ops.assign, self.sums, self.add(ops.zeros_like, self.sums)))
        return loss


def make_model(program: Program) -> Model:
    """Return the model; every value in it follows from the program."""
    ms.set_seed(7)
    random.seed(7)
    network = Network(program.network, 9 if program.change == "wider" else 8)
    if program.change == "frozen":
        network.last.bias.requires_grad = False
    weights = network.trainable_params()
    steps = 4 * program.steps
    rate = {
        "constant": 0.01,
        "groups": 0.01,
        "list": [0.02 / (1 + step) for step in range(steps)],
        "cosine": nn.CosineDecayLR(1e-4, 0.02, steps),
    }[program.schedule]
    if program.schedule == "groups":
        weights = [{"params": weights[:1], "lr": 0.03}, {"params": weights[1:]}]
    name = program.optimizer
    if program.change == "optimizer":
        name = "Adam" if name in ("SGD", "Momentum") else "Momentum"
    options = {"momentum": 0.9} if name == "Momentum" else {}
    optimizer = getattr(nn, name)(weights, learning_rate=rate, **options)
    loss = nn.MSELoss()
    if program.step == "accumulated":
        return Model(Accumulated(nn.WithLossCell(network, loss), optimizer).set_train())
    scale = {"loss_scale_manager": FixedLossScaleManager(8.0, False)} if program.step == "scaled" else {}
    return Model(network, loss, optimizer, **scale)


def weights_of(run_context) -> list[ms.Parameter]:
    """Return the weights that a callback changes."""
    parameters = run_context.original_args().train_network.get_parameters()
    return [parameter for parameter in parameters if parameter.name.startswith(("first.", "last."))]


def change_values(parameter: ms.Parameter, change) -> None:
    """Give a parameter the values that `change` makes of its own.

    In place: what was compiled in PyNative mode, such as an optimizer, does not see the memory that `set_data` brings.
    """
    ops.assign(parameter, ms.Tensor(change(parameter.asnumpy()).astype(np.float32)))


class Stateless:
    """Remembers nothing that a resumed training needs."""

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state: dict) -> None:
        assert state == {}


class Clip(Stateless, Callback):
    """Keep the weights small, behind each step."""

    def on_train_step_end(self, run_context) -> None:
        for weight in weights_of(run_context):
            change_values(weight, lambda values: np.clip(values, -0.8, 0.8))


class Average(Callback):
    """Follow the weights with an average, and take it for the weights behind each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.average: dict[str, np.ndarray] = {}

    def on_train_step_end(self, run_context) -> None:
        for weight in weights_of(run_context):
            before = self.average.get(weight.name, weight.asnumpy())
            self.average[weight.name] = (np.float32(0.5) * before + np.float32(0.5) * weight.asnumpy()).copy()

    def on_train_epoch_end(self, run_context) -> None:
        for weight in weights_of(run_context):
            change_values(weight, lambda _, name=weight.name: self.average[name])


class AverageWithState(Average):
    def state_dict(self) -> dict:
        return {name: ms.Tensor(values) for name, values in self.average.items()}

    def load_state_dict(self, state: dict) -> None:
        self.average = {
            name: np.array(getattr(values, "asnumpy", lambda v=values: v)()) for name, values in state.items()
        }


class Every(Callback):
    """Halve the weights at every third step by its own count."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def on_train_step_end(self, run_context) -> None:
        self.count += 1
        if self.count % 3 == 0:
            for weight in weights_of(run_context):
                change_values(weight, lambda values: values * 0.5)


class EveryWithState(Every):
    def state_dict(self) -> dict:
        return {"count": self.count}

    def load_state_dict(self, state: dict) -> None:
        self.count = int(state["count"])


class AtBegin(Stateless, Callback):
    """Change the weights before each epoch."""

    def on_train_epoch_begin(self, run_context) -> None:
        for weight in weights_of(run_context):
            change_values(weight, lambda values: values * 0.75)


class AtEnd(Stateless, Callback):
    """Change the weights behind each epoch."""

    def on_train_epoch_end(self, run_context) -> None:
        for weight in weights_of(run_context):
            change_values(weight, lambda values: values * 0.75)


class Noise(Stateless, Callback):
    """Add noise to the weights behind each step."""

    def __init__(self, draw) -> None:
        super().__init__()
        self._draw = draw

    def on_train_step_end(self, run_context) -> None:
        for weight in weights_of(run_context):
            change_values(weight, lambda values: values + np.float32(0.01 * self._draw()))


class NumpyNoise(Noise):
    def __init__(self) -> None:
        super().__init__(np.random.normal)


class PythonNoise(Noise):
    def __init__(self) -> None:
        super().__init__(random.random)


class TensorNoise(Noise):
    def __init__(self) -> None:
        super().__init__(lambda: float(ops.standard_normal((1,)).asnumpy()[0]))


def make_callback(name: str) -> Callback:
    """Return a callback by its name in a program."""
    if name == "EarlyStopping":
        return EarlyStopping(monitor="loss", patience=1)
    if name == "ReduceLROnPlateau":
        return ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1)
    if name == "LearningRateScheduler":
        return LearningRateScheduler(lambda rate, step: rate * 0.9)
    theirs = {"LossMonitor": LossMonitor, "TimeMonitor": TimeMonitor, "History": History}
    return theirs[name]() if name in theirs else globals()[name]()


class Crash(Stateless, Callback):
    """End the training at a step."""

    def __init__(self, kind: str, step: int) -> None:
        super().__init__()
        self._kind, self._step = kind, step

    def on_train_step_end(self, run_context) -> None:
        if run_context.original_args().cur_step_num != self._step:
            return
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._kind == "stop":
            run_context.request_stop()
        else:
            raise ConnectionResetError("the node is gone")


def digest_of(network: nn.Cell) -> str:
    """Return a digest of all values of a train network."""
    hasher = hashlib.blake2b(digest_size=8)
    for parameter in sorted(network.get_parameters(), key=lambda parameter: parameter.name):
        hasher.update(parameter.name.encode() + parameter.asnumpy().tobytes())
    return hasher.hexdigest()


class Record(Stateless, Callback):
    """What training does: losses, values of all parameters behind each step, and which callbacks were called."""

    def __init__(self, write) -> None:
        super().__init__()
        self._write = write

    def on_train_step_begin(self, run_context) -> None:
        params = run_context.original_args()
        self._write("values", params.cur_step_num, digest_of(params.train_network))

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        outputs = params.net_outputs[0] if isinstance(params.net_outputs, tuple) else params.net_outputs
        self._write("loss", params.cur_step_num, outputs.asnumpy().tobytes().hex())

    def on_train_epoch_begin(self, run_context) -> None:
        self._write("begin", run_context.original_args().cur_epoch_num, "")

    def on_train_epoch_end(self, run_context) -> None:
        self._write("end", run_context.original_args().cur_epoch_num, "")
