"""Training through a splitter beside training in one process, and faults in the middle of steps."""

import os
import signal
import threading
import time

import mindspore as ms
import numpy as np
from mindspore import nn, ops

from ms_recover.splitting.stages import absorb_first_operator_error

OPTIMIZERS = {
    "SGD": lambda weights: nn.SGD(weights, 0.05),
    "Momentum": lambda weights: nn.Momentum(weights, 0.05, 0.9),
    "Adam": lambda weights: nn.Adam(weights, 1e-3),
    "AdamWeightDecay": lambda weights: nn.AdamWeightDecay(weights, 1e-3, weight_decay=0.01),
}
WIDTH = 64


def network(width=WIDTH, seed=1):
    """Make a network of five stages, in inference mode, with weights that are the same each time."""
    absorb_first_operator_error()
    ms.set_seed(seed)
    model = nn.SequentialCell(
        nn.Dense(32, width, activation="relu"),
        nn.Dense(width, width, activation="tanh"),
        nn.LayerNorm((width,)),
        nn.Dense(width, width, activation="relu"),
        nn.Dense(width, 10),
    )
    model.set_train(False)
    return model


def batches(steps, rows=200):
    drawn = np.random.default_rng(0)
    return [
        (drawn.standard_normal((rows, 32)).astype(np.float32), drawn.integers(0, 10, rows).astype(np.int32))
        for _ in range(steps)
    ]


class _Weighted(nn.Cell):
    def __init__(self, model, loss_fn, weight):
        super().__init__(auto_prefix=False)
        self.model, self.loss_fn, self.weight = model, loss_fn, weight

    def construct(self, x, y):
        return self.loss_fn(self.model(x), y) * self.weight


class OneProcess:
    """One process that accumulates the gradients of the same chunks in the same order, and may clip their sum."""

    def __init__(self, model, loss_fn, optimizer, clip_norm=None):
        self.model, self.loss_fn, self.clip_norm = model, loss_fn, clip_norm
        model.set_train(True)
        self.optimizer = optimizer(model.trainable_params())
        self._gradients = {}

    def gradients(self, x, y, weight=1.0):
        if weight not in self._gradients:
            cell = _Weighted(self.model, self.loss_fn, weight)
            self._gradients[weight] = ms.value_and_grad(cell, None, self.optimizer.parameters)
        loss, found = self._gradients[weight](ms.Tensor(x), ms.Tensor(y))
        return loss.asnumpy(), [each.asnumpy().copy() for each in found]

    def train_step(self, x, y, chunks):
        total, loss = None, np.float32(0)
        for start, stop in chunks:
            value, found = self.gradients(x[start:stop], y[start:stop], (stop - start) / len(x))
            total = found if total is None else [before + own for before, own in zip(total, found, strict=True)]
            loss = np.float32(loss + value)
        total = tuple(map(ms.Tensor, total))
        if self.clip_norm is not None:
            total = ops.clip_by_global_norm(total, self.clip_norm)
        self.optimizer(total)
        ms.runtime.synchronize()
        return loss

    @property
    def weights(self):
        return {each.name: each.asnumpy().copy() for each in self.model.get_parameters()}


def one_process(steps, chunks, optimizer, rows=200, clip_norm=None):
    """Return the weights and losses of one process."""
    single = OneProcess(network(), nn.CrossEntropyLoss(), OPTIMIZERS[optimizer], clip_norm)
    losses = [single.train_step(x, y, chunks) for x, y in batches(steps, rows)]
    return single.weights, losses


def current_weights(splitter):
    """Return the weights that a splitter has now, by name."""
    return current_values(splitter, "weights")


def current_values(splitter, kind):
    """Return the weights that a splitter has now, or the values of its ``optimizer``, by name."""
    splitter.forward(batches(1, 16)[0][0])  # takes a snapshot
    found = {}
    for part in splitter._devices.snapshots.current:
        for entry, raw in part.values():
            if entry["kind"] == kind:
                found[entry["name"]] = np.frombuffer(bytes(raw.data), raw.dtype).reshape(raw.shape)
    return found


def equal(found, wanted):
    """Whether two sets of weights have the same bits."""
    return found.keys() == wanted.keys() and all(found[name].tobytes() == wanted[name].tobytes() for name in wanted)


class Strike:
    """Sends a signal to a device's process at a certain order: the nth with this action."""

    def __init__(self, splitter, device, action, count=1, how=signal.SIGKILL):
        self._devices, self._device, self._action = splitter._devices, device, action
        self._count, self._how = count, how
        self._original = self._devices.order
        self._devices.order = self._order
        self.done = False

    async def _order(self, device, part, tensors=(), **fields):
        if device == self._device and fields["action"] == self._action and not self.done:
            self._count -= 1
            if not self._count:
                self.done = True
                process = self._devices.processes[device]
                threading.Thread(target=self._strike, args=(process,)).start()
        return await self._original(device, part, tensors, **fields)

    def _strike(self, process):
        time.sleep(0.002)  # within the operation, or in front of it
        os.kill(process, self._how)


class HeldUp(Strike):
    """Stops one device at its first chunk, kills another, and lets the first go on once the other one is back."""

    def __init__(self, splitter, slow, lost):
        self._lost = lost
        super().__init__(splitter, slow, "both")

    def _strike(self, process):
        devices = self._devices.state.devices
        os.kill(process, signal.SIGSTOP)
        generation = devices[self._lost].generation
        os.kill(self._devices.processes[self._lost], signal.SIGKILL)
        deadline = time.monotonic() + 50
        while time.monotonic() < deadline:
            time.sleep(0.01)
            if devices[self._lost].generation > generation and devices[self._lost].alive:
                break
        os.kill(process, signal.SIGCONT)
