"""Which callbacks are named because what they remember is not saved."""

import functools
import itertools
import math
import random

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from mindspore.train import (  # noqa: E402
    Callback,
    EarlyStopping,
    History,
    LambdaCallback,
    LearningRateScheduler,
    LossMonitor,
    ModelCheckpoint,
    ReduceLROnPlateau,
    TimeMonitor,
)

from ms_recover.training import SliceCheckpoint  # noqa: E402
from ms_recover.training.unsaved_callbacks import unsaved_callbacks  # noqa: E402
from tests.support import trainings  # noqa: E402

SEEN, FACTOR, PAIR = [], 0.5, (0.5, 2)
COUNT = 0


class Bare(Callback):
    """Nothing in it."""


class OfClass(Callback):
    """Counts in its class, so that vars() is empty."""

    count = 0

    def on_train_step_end(self, run_context):
        type(self).count += 1


class Half(Callback):
    def state_dict(self):
        return {}


class Whole(Half):
    def load_state_dict(self, state):
        pass


class Silent(OfClass):
    stateless = True


class OddlySilent(OfClass):
    stateless = "no"


class Stopping(EarlyStopping):
    """Made from one of MindSpore's, with a count of its own."""


class Monitor(LossMonitor):
    """The same, of one without a state."""


class Ramp:
    def __call__(self, rate, step):
        return rate

    def method(self, rate, step):
        return rate


class SilentRamp(Ramp):
    stateless = True


def test_callbacks_are_named_whatever_vars_shows():
    given = [Bare(), OfClass(), OfClass(), Half(), Whole(), Silent(), OddlySilent(), Stopping("loss"), Monitor()]
    assert unsaved_callbacks(given) == ["Bare", "OfClass", "Half", "OddlySilent", "Stopping", "Monitor"]


def test_stock_callbacks_are_known(tmp_path):
    stock = [
        LossMonitor(),
        TimeMonitor(),
        History(),
        EarlyStopping("loss"),
        ReduceLROnPlateau("loss"),
        ModelCheckpoint(directory=str(tmp_path)),
        SliceCheckpoint(str(tmp_path)),
        LambdaCallback(),
    ]
    assert unsaved_callbacks(stock) == []


def in_list(rate, step):
    SEEN.append(step)
    return rate * 0.9 ** len(SEEN)


def in_global(rate, step):
    global COUNT  # noqa: PLW0603
    COUNT += 1
    return rate


def in_default(rate, step, seen=[]):  # noqa: B006
    seen.append(step)
    return rate


def in_function(rate, step):
    in_function.count = getattr(in_function, "count", 0) + 1
    return rate


def in_module(rate, step):
    trainings.count = step
    return rate


def of_module(rate, step):
    return rate * trainings.STEPS


def in_class(rate, step):
    return rate * Ramp()(rate, step)


def with_setattr(rate, step):
    setattr(math, "count", step)  # noqa: B010
    return rate


def by_another(rate, step):
    return in_list(rate, step)


def in_closure(numbers):
    def schedule(rate, step):
        return rate * next(numbers)

    return schedule


def in_nonlocal():
    count = 0

    def schedule(rate, step):
        nonlocal count
        count += 1
        return rate * count

    return schedule


def in_attribute():
    def schedule(rate, step):
        return rate

    schedule.seen = []
    return schedule


@pytest.mark.parametrize(
    "keeping",
    [
        in_list, in_global, in_default, in_function, in_module, of_module, in_class, with_setattr, by_another,
        in_closure(itertools.count(1)), in_nonlocal(), in_attribute(), Ramp(), Ramp().method,
        functools.partial(in_list), SEEN.append, lambda rate, step: next(in_list(rate, one) for one in (step,)),
    ],
)  # fmt: skip
def test_a_scheduler_whose_function_may_remember_is_named(keeping):
    (name,) = unsaved_callbacks([LearningRateScheduler(keeping)])
    assert name.startswith("LearningRateScheduler (")
    (name,) = unsaved_callbacks([LambdaCallback(on_train_step_end=keeping)])
    assert name.startswith("LambdaCallback (")


def plain(rate, step):
    return rate * FACTOR if step % 3 else rate


def again(rate, step):
    return again(rate, step - 1) * PAIR[0] if step else plain(rate, step)


def with_closure(base, rates=(0.1, 0.2)):
    def schedule(rate, step):
        return base * math.cos(step) + np.float32(0.1) * max(rates) * random.random()

    return schedule


@pytest.mark.parametrize(
    "function",
    [plain, again, with_closure(0.1), lambda rate, step: rate * 0.9, print, math.cos, SilentRamp()],
)
def test_a_scheduler_with_a_plain_function_is_not_named(function):
    assert unsaved_callbacks([LearningRateScheduler(function), LambdaCallback(on_train_end=function)]) == []
