"""What MindSpore does not document is there in the installed version; where it is gone, the test says what breaks."""

import importlib
import re

import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.parallel.auto_parallel import AutoParallel  # noqa: E402
from mindspore.train import Callback, LossMonitor, Model, ModelCheckpoint  # noqa: E402
from mindspore.train.callback import _CallbackManager  # noqa: E402

from ms_recover.training.mindspore_inside import (  # noqa: E402
    CHECKED,
    REACHES,
    act_first,
    act_last,
    around_first,
    calling_manager,
    calling_model,
    have_compiles_pass,
    strategy_set,
    why_gone,
)


def made(place):
    """Return what has the names that are looked for: a module, or an object of a class."""
    network = nn.Dense(2, 2)
    objects = {
        "train.callback._CallbackManager": lambda: _CallbackManager([]),
        "parallel.auto_parallel.AutoParallel": lambda: AutoParallel(network),
        "nn.Cell": lambda: network,
        "nn.WithLossCell": lambda: nn.WithLossCell(network, nn.MSELoss()),
        "train.Model": lambda: Model(network, nn.MSELoss(), metrics={"loss"}),
        "dataset.Dataset": lambda: ds.NumpySlicesDataset([1.0]),
        "train.LossMonitor": LossMonitor,
        "train.ModelCheckpoint": lambda: ModelCheckpoint("prefix", "."),
        "graph.api._cell_graph_executor": lambda: _of_api("_cell_graph_executor"),
        "graph.api._pynative_executor": lambda: _of_api("_pynative_executor"),
        "graph.api": ApiOfBoth,
    }
    return objects[place]() if place in objects else importlib.import_module(f"mindspore.{place}")


class ApiOfBoth:
    def __getattr__(self, name):
        return _of_api(name)


def _of_api(name):
    for place in ("mindspore.graph.api", "mindspore.common.api"):  # the one before 2.10, or 2.8
        try:
            return getattr(importlib.import_module(place), name)
        except (ImportError, AttributeError):
            continue
    raise AttributeError(name)


@pytest.mark.parametrize("reach", REACHES)
def test_it_is_there(reach):
    first, *others = re.split(r", | and ", reach)
    place, _, name = first.rpartition(".")
    for one in (name, *others):
        try:
            getattr(made(place), one)
        except (ImportError, AttributeError):
            pytest.fail(why_gone(reach, ms.__version__))


def test_what_breaks_is_said_with_both_versions():
    said = why_gone("train.Model._amp_level", "9.9")
    assert said == (
        f"MindSpore 9.9 has no train.Model._amp_level, as {CHECKED} has: a resume does not name that the amp level is "
        "another one"
    )


class Acts(Callback):
    def __init__(self, name, acted):
        super().__init__()
        self.name, self.acted = name, acted

    def on_train_step_begin(self, run_context):
        self.acted.append(self.name)


class Looks(Acts):
    def on_train_step_begin(self, run_context):
        super().on_train_step_begin(run_context)
        manager = calling_manager()
        act_last(manager, Looks)
        act_first(manager, Acts("first", self.acted))


def test_callbacks_are_put_in_order_by_the_manager_that_calls_them():
    acted = []
    manager = _CallbackManager([Looks("last", acted), Acts("other", acted)])
    manager.on_train_step_begin(None)
    manager.on_train_step_begin(None)
    assert acted == ["last", "other", "first", "other", "last"]
    assert calling_manager() is None
    assert calling_model() is None


def test_the_first_call_alone_goes_through_an_action():
    acted = []
    manager = _CallbackManager([Acts("callback", acted)])
    around_first(manager, "on_train_step_begin", lambda _, act: (acted.append("before"), act(), acted.append("behind")))
    manager.on_train_step_begin(None)
    manager.on_train_step_begin(None)
    assert acted == ["before", "callback", "behind", "callback"]


class Passes:
    def __init__(self):
        self.cells = []

    def compile(self, cell, compile_it):
        self.cells.append(cell)
        return compile_it()


def test_compiles_pass_by_who_was_named_last_and_by_nobody_behind_that():
    network, first, second = nn.Dense(2, 2), Passes(), Passes()
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        for passes in (first, second):
            have_compiles_pass(passes)
        network(ms.Tensor([[1.0, 2.0]], ms.float32))
    finally:
        have_compiles_pass(None)
        ms.set_context(mode=ms.PYNATIVE_MODE)
    assert first.cells == []
    assert second.cells
    assert all(cell is network for cell in second.cells)


def test_a_network_in_autoparallel_asks_for_another_file_within_a_block_alone():
    network = AutoParallel(nn.Dense(2, 2))
    before = network._save_strategy_file_path
    with strategy_set(network, _save_strategy_file_path="other"):
        assert network._save_strategy_file_path == "other"
    assert network._save_strategy_file_path == before
    with strategy_set(None, _save_strategy_file_path="other"):
        pass
