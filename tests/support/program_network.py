"""The networks and models of random programs, built with MindSpore."""

from __future__ import annotations

import random

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.amp import DynamicLossScaler, all_finite
from mindspore.train import FixedLossScaleManager, Model

from tests.support.program_data import CLASSES, WIDTH
from tests.support.random_programs import NETWORK_FAILURES, Program

FAILS: set[str] = set()
"""How the next call of a network fails."""


class Held:
    """Holds a parameter, and is no cell."""

    def __init__(self, width: int) -> None:
        self.mean = ms.Parameter(ms.Tensor(np.zeros((1, width), np.float32)), "held", requires_grad=False)


class Network(nn.Cell):
    """A small network; `kind` says what is special about it."""

    def __init__(self, kind: str, width: int) -> None:
        super().__init__()
        self.kind = kind
        rng = np.random.default_rng(3)

        def dense(rows: int, columns: int) -> nn.Dense:
            weight = ms.Tensor(rng.standard_normal((columns, rows)).astype(np.float32))
            return nn.Dense(rows, columns, weight, "zeros")

        def zeros(*shape: int) -> ms.Tensor:
            return ms.Tensor(np.zeros(shape, np.float32))

        self.flat = nn.Flatten()
        self.first, self.last = dense(WIDTH, width), dense(width, CLASSES)
        self.act = nn.Tanh()
        if kind == "norm":
            self.norm = nn.BatchNorm1d(width)
        elif kind == "embedding":
            table = ms.Tensor(rng.standard_normal((8, width)).astype(np.float32))
            self.table = nn.Embedding(8, width, embedding_table=table)
        elif kind == "bank":
            self.bank = ms.Parameter(zeros(3, width), "bank", requires_grad=False)
        elif kind in ("buffer", "quiet buffer"):
            self.register_buffer("mean", zeros(1, width), persistent=kind == "buffer")
        elif kind == "dropout":
            self.drop = nn.Dropout(p=0.5)
        elif kind == "noise":
            self.normal = ops.StandardNormal(seed=1, seed2=2)
        elif kind == "number":
            self.calls = 0
        elif kind == "tensor":
            self.plain = zeros(1)
        elif kind == "held":
            self.holder = Held(width)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.forward(x)

    def forward(self, x: ms.Tensor) -> ms.Tensor:
        """Return what the network makes of a batch."""
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
        elif self.kind in ("buffer", "quiet buffer"):
            mean = ops.stop_gradient(hidden.mean(axis=0, keep_dims=True))
            hidden = hidden - self.mean * 0.5
            ops.assign(self.mean, self.mean * 0.75 + mean * 0.25)
        elif self.kind == "dropout":
            hidden = self.drop(hidden)
        elif self.kind == "noise":
            hidden = hidden + self.normal((1, 1))
        elif self.kind == "number":
            self.calls += 1
            hidden = hidden * (1 + 1 / self.calls)
        elif self.kind == "tensor":
            self.plain = self.plain + 1
            hidden = hidden / (1 + self.plain)
        elif self.kind == "held":
            mean = ops.stop_gradient(hidden.mean(axis=0, keep_dims=True))
            hidden = hidden - self.holder.mean * 0.5
            after = self.holder.mean * 0.75 + mean * 0.25
            ops.assign(self.holder.mean, ops.depend(after, hidden))  # graph mode may assign it before it is read
        return self.last(hidden)


class Compiled(Network):
    """The network compiled, where the rest is interpreted."""

    @ms.jit
    def construct(self, x: ms.Tensor) -> ms.Tensor:
        return self.forward(x)


class Failing(Network):
    """The network with code that fails when it is asked to."""

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        if FAILS:
            how = FAILS.pop()
            if how == "operator":
                ops.matmul(x, ms.Tensor(np.zeros((3, 5, 7), np.float32)))
            assert how != "assert", "the activations are not finite"
            raise KeyboardInterrupt
        return self.forward(x)


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


class Dynamic(nn.TrainOneStepCell):
    """Scale the loss by a scaler that grows; it is an attribute, and no cell."""

    def __init__(self, network: nn.Cell, optimizer: nn.Cell) -> None:
        super().__init__(network, optimizer)
        self.scaler = DynamicLossScaler(1024.0, 2, 2)
        self.gradients = ms.value_and_grad(self.scaled, None, optimizer.parameters)

    def scaled(self, *inputs: ms.Tensor) -> ms.Tensor:
        """Return the loss, scaled."""
        return self.scaler.scale(self.network(*inputs))

    def construct(self, *inputs: ms.Tensor) -> ms.Tensor:
        loss, grads = self.gradients(*inputs)
        finite = all_finite(grads)
        loss = ops.depend(loss, self.optimizer(self.scaler.unscale(grads)))
        self.scaler.adjust(finite)
        return loss


class Gan(nn.Cell):
    """Two networks with an optimizer each, whose states have the same names unless one set of them is `renamed`."""

    def __init__(self, one: Network, other: Network, renamed: bool) -> None:
        super().__init__(auto_prefix=False)
        self.one = nn.WithLossCell(one, nn.MSELoss())
        self.other = nn.WithLossCell(other, nn.MSELoss())
        for parameter in other.get_parameters():
            parameter.name = f"other.{parameter.name}"
        self.by_one, self.by_other = (nn.Adam(net.trainable_params(), 0.01) for net in (one, other))
        if renamed:
            self.by_other.update_parameters_name("second.")
        self.of_one = ms.value_and_grad(self.one, None, self.by_one.parameters)
        self.of_other = ms.value_and_grad(self.other, None, self.by_other.parameters)

    def construct(self, *inputs: ms.Tensor) -> ms.Tensor:
        loss, grads = self.of_one(*inputs)
        loss = ops.depend(loss, self.by_one(grads))
        also, grads = self.of_other(*inputs)
        also = ops.depend(also, self.by_other(grads))
        return loss + also


def make_network(program: Program) -> Network:
    """Return the network; every value in it follows from the program."""
    kind = Network
    if program.jit:
        kind = Compiled
    elif any(name in NETWORK_FAILURES for name, _ in program.crashes):
        kind = Failing
    network = kind(program.network, 9 if program.change == "wider" else 8)
    if program.change == "frozen":
        network.last.bias.requires_grad = False
    return network


def make_loss(program: Program) -> nn.Cell:
    """Return the loss function."""
    return nn.L1Loss() if program.change == "loss" else nn.MSELoss()


def make_optimizer(program: Program, network: nn.Cell) -> nn.Cell:
    """Return the optimizer."""
    weights = network.trainable_params()
    first = 0.03 if program.change == "rate" else 0.02
    steps = program.steps + program.epoch_steps * (program.change == "more epochs")
    rate = {
        "constant": first / 2,
        "groups": first / 2,
        "list": [first / (1 + step) for step in range(steps)],
        "cosine": nn.CosineDecayLR(1e-4, first, 4 * program.steps),
    }[program.schedule]
    if program.schedule == "groups":
        weights = [{"params": weights[:1], "lr": 1.5 * first}, {"params": weights[1:]}]
    name = program.optimizer
    if program.change == "optimizer":
        name = "Adam" if name in ("SGD", "Momentum") else "Momentum"
    options: dict[str, float] = {"momentum": 0.9} if name == "Momentum" else {}
    if program.change == "betas":
        options["beta1"] = 0.8
    if program.change == "decay":
        options["weight_decay"] = 0.1
    return getattr(nn, name)(weights, learning_rate=rate, **options)


def make_model(program: Program) -> Model:
    """Return the model; every value in it follows from the program."""
    ms.set_seed(7)
    random.seed(7)
    network = make_network(program)
    if program.network == "gan":
        return Model(Gan(network, Network("mlp", 6), program.renames).set_train())
    optimizer, loss = make_optimizer(program, network), make_loss(program)
    train_cells = {"accumulated": Accumulated, "dynamic": Dynamic}
    if program.step in train_cells:
        return Model(train_cells[program.step](nn.WithLossCell(network, loss), optimizer).set_train())
    scale = {"loss_scale_manager": FixedLossScaleManager(8.0, False)} if program.step == "scaled" else {}
    level = program.level
    if program.change == "level":
        level = "O3" if level == "O0" else "O0"
    return Model(network, loss, optimizer, amp_level=level, **scale)
