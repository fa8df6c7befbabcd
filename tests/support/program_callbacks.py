"""The callbacks of random programs."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn, ops
from mindspore.train import (
    BackupAndRestore,
    Callback,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    LossMonitor,
    ReduceLROnPlateau,
    TimeMonitor,
)

from tests.support import program_saves
from tests.support.program_data import digest_of_arrays
from tests.support.program_network import FAILS
from tests.support.random_programs import IN_SAVES, NETWORK_FAILURES


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
            halve(run_context)


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


class Quiet(Callback):
    """Counts for itself alone, and says so."""

    stateless = True

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def on_train_step_end(self, run_context) -> None:
        self.seen += 1


class Counting(Callback):
    """Halve the weights at every third step by a count that lies somewhere."""

    def on_train_step_end(self, run_context) -> None:
        if self.count() % 3 == 0:
            halve(run_context)

    def count(self) -> int:
        """Count the step."""
        raise NotImplementedError


def halve(run_context) -> None:
    """Halve the weights."""
    for weight in weights_of(run_context):
        change_values(weight, lambda values: values * 0.5)


class ClassCount(Counting):
    steps = 0

    def count(self) -> int:
        type(self).steps += 1
        return self.steps


COUNTS = {"steps": 0}


class ModuleCount(Counting):
    def count(self) -> int:
        COUNTS["steps"] += 1
        return COUNTS["steps"]


class DiskCount(Counting):
    """Counts in a file, which the next process finds."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def count(self) -> int:
        steps = int(self._path.read_text()) + 1 if self._path.exists() else 1
        self._path.write_text(str(steps))
        return steps


class GeneratorCount(Counting):
    def __init__(self) -> None:
        super().__init__()
        self._steps = self._numbers()

    @staticmethod
    def _numbers() -> Iterator[int]:
        steps = 0
        while True:
            steps += 1
            yield steps

    def count(self) -> int:
        return next(self._steps)


def closure_count() -> Callback:
    """Return a callback that counts in a variable around its function."""
    steps = 0

    def count(run_context) -> None:
        nonlocal steps
        steps += 1
        if steps % 3 == 0:
            halve(run_context)

    return LambdaCallback(on_train_step_end=count)


class Falling:
    """A rate that falls with each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, rate: float, step: int) -> float:
        self.calls += 1
        return 0.01 / (1 + self.calls)


class BeginWriter(Stateless, Callback):
    """Write weights of an earlier training when the training begins."""

    def on_train_begin(self, run_context) -> None:
        for weight in weights_of(run_context):
            if weight.name == "last.weight":
                change_values(weight, lambda values: np.full_like(values, 0.25))


class BeginRate(Stateless, Callback):
    """Set another learning rate when the training begins, and halve it behind each epoch."""

    def on_train_begin(self, run_context) -> None:
        set_rate(run_context, 0.02)

    def on_train_epoch_end(self, run_context) -> None:
        set_rate(run_context, 0.02 / (1 + run_context.original_args().cur_epoch_num))


class StepRate(Stateless, Callback):
    """Set the learning rate of each step."""

    def on_train_step_begin(self, run_context) -> None:
        params = run_context.original_args()
        step = (params.cur_epoch_num - 1) * params.batch_num + (params.cur_step_num - 1) % params.batch_num + 1
        set_rate(run_context, 0.02 / (1 + step))


def set_rate(run_context, rate: float) -> None:
    """Give the optimizer a learning rate."""
    for parameter in run_context.original_args().train_network.get_parameters():
        if parameter.name == "learning_rate":
            ops.assign(parameter, ms.Tensor(rate, ms.float32))


class Freezer(Callback):
    """Freeze the first layer when the second epoch begins."""

    def on_train_epoch_begin(self, run_context) -> None:
        if run_context.original_args().cur_epoch_num == 2:
            for weight in weights_of(run_context):
                if weight.name.startswith("first."):
                    weight.requires_grad = False


def make_callback(name: str, folder: Path) -> Callback:
    """Return a callback by its name in a program; its files lie in `folder`."""
    made = {
        "EarlyStopping": lambda: EarlyStopping(monitor="loss", patience=1),
        "ReduceLROnPlateau": lambda: ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1),
        "LearningRateScheduler": lambda: LearningRateScheduler(lambda rate, step: rate * 0.9),
        "SchedulerObject": lambda: LearningRateScheduler(Falling()),
        "ClosureCount": closure_count,
        "DiskCount": lambda: DiskCount(folder / "steps.txt"),
        "BackupAndRestore": lambda: BackupAndRestore(str(folder / "backup")),
        "LossMonitor": LossMonitor,
        "TimeMonitor": TimeMonitor,
        "History": History,
    }
    return made[name]() if name in made else globals()[name]()


class Crash(Stateless, Callback):
    """End the training at a step, or in the first save from it on."""

    def __init__(self) -> None:
        super().__init__()
        self._kind, self._step = "", 0

    def set(self, kind: str, step: int) -> None:
        """Have it act at a step."""
        self._kind, self._step = kind, step

    def on_train_step_begin(self, run_context) -> None:
        if step_of(run_context.original_args()) == self._step and self._kind in NETWORK_FAILURES:
            FAILS.add(self._kind)

    def on_train_step_end(self, run_context) -> None:
        if step_of(run_context.original_args()) != self._step:
            return
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self._kind in IN_SAVES:
            program_saves.kill_before(self._kind)
        elif self._kind == "stop":
            run_context.request_stop()
        else:
            raise ConnectionResetError("the node is gone")


def digest_of(*cells: nn.Cell) -> str:
    """Return a digest of all values of a train network, its buffers among them."""
    values = [(parameter.name, parameter) for cell in cells for parameter in cell.get_parameters()]
    values += [(f"buffer {name}", buffer) for cell in cells for name, buffer in cell.named_buffers()]
    return digest_of_arrays(value.asnumpy() for _, value in sorted(values, key=lambda pair: pair[0]))


class Record(Stateless, Callback):
    """What training does, by steps of the whole training: samples, losses, values of all parameters and buffers before
    each step, and which callbacks were called."""

    def __init__(self, write) -> None:
        super().__init__()
        self._write = write

    def on_train_step_begin(self, run_context) -> None:
        params = run_context.original_args()
        self._write("values", step_of(params), digest_of(params.train_network))
        self._write("batch", step_of(params), digest_of_arrays(one.asnumpy() for one in params.train_dataset_element))

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        outputs = params.net_outputs[0] if isinstance(params.net_outputs, tuple) else params.net_outputs
        self._write("loss", step_of(params), outputs.asnumpy().tobytes().hex())

    def on_train_epoch_begin(self, run_context) -> None:
        self._write("begin", run_context.original_args().cur_epoch_num, "")

    def on_train_epoch_end(self, run_context) -> None:
        self._write("end", run_context.original_args().cur_epoch_num, "")


def step_of(params) -> int:
    """Return the step of the whole training, those that `initial_epoch` passes over included."""
    return (params.cur_epoch_num - 1) * params.batch_num + (params.cur_step_num - 1) % params.batch_num + 1
