from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import mint, nn  # noqa: E402
from mindspore.experimental import optim  # noqa: E402

from ms_recover.training import SliceCheckpoint  # noqa: E402
from ms_recover.training.cells import as_cell, holds_optimizer  # noqa: E402
from ms_recover.training.weight_updates import OptimizerSteps  # noqa: E402


class Own(nn.Optimizer):
    """Made from the base class."""

    def __init__(self, weights):
        super().__init__(0.1, weights)


class Derived(nn.Momentum):
    """Made from an optimizer of MindSpore."""

    def __init__(self, weights):
        super().__init__(weights, 0.1, 0.9)


def count(optimizer, name="global_step", by=1):
    counter = getattr(optimizer, name)
    counter.asnumpy()[...] += by


@pytest.mark.parametrize(
    ("make", "counter"),
    [
        (nn.Adam, "global_step"),
        (Derived, "global_step"),
        (optim.AdamW, "state_step"),
        (mint.optim.AdamW, "state_step"),
    ],
)
def test_updates_are_counted_by_the_optimizer(make, counter):
    network = nn.Dense(3, 2)
    optimizer = make(network.trainable_params())
    steps = OptimizerSteps(as_cell([network, optimizer]))
    assert (steps.known, steps.updated) == (True, 0)
    count(optimizer, counter)
    assert steps.updated == 1
    steps.note()
    assert steps.updated == 0


def test_the_counter_of_an_optimizer_of_another_origin_counts_when_it_has_moved():
    network = nn.Dense(3, 2)
    optimizer = Own(network.trainable_params())
    steps = OptimizerSteps(as_cell([network, optimizer]))
    assert not steps.known
    count(optimizer)
    steps.note()
    assert (steps.known, steps.updated) == (True, 0)


def test_without_an_optimizer_nothing_is_known():
    network = nn.Dense(3, 2)
    assert not OptimizerSteps(network).known
    assert not OptimizerSteps(as_cell([network, optim.SGD(network.trainable_params(), lr=0.1)])).known


def test_an_optimizer_is_seen_among_cells_and_parameters():
    network = nn.Dense(3, 2)
    optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
    assert not holds_optimizer(network)
    assert not holds_optimizer(as_cell(network.trainable_params()))
    assert holds_optimizer(as_cell([network, optimizer]))
    assert holds_optimizer(as_cell([*network.trainable_params(), *optimizer.moments]))


class Training:
    """What `Model.train` does for a callback; the weights are updated at some steps."""

    def __init__(self, callback, updates):
        self._callback, self._updates = callback, updates
        network = nn.Dense(3, 2)
        self._optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)
        trained = as_cell([network, self._optimizer])
        self._params = SimpleNamespace(batch_num=1000, cur_step_num=0, cur_epoch_num=1, train_network=trained)
        self._context = SimpleNamespace(
            original_args=lambda: self._params, get_stop_requested=lambda: False, request_stop=lambda: None
        )
        callback.on_train_begin(self._context)

    def steps(self, last):
        while self._params.cur_step_num < last:
            self._params.cur_step_num += 1
            self._callback.on_train_step_begin(self._context)
            if self._params.cur_step_num in self._updates:
                count(self._optimizer)
            self._callback.on_train_step_end(self._context)


def saved(folder):
    return sorted(int(path.stem.partition("_")[2]) for path in folder.glob("ckpt_dir0/*.ckpt"))


def test_a_save_that_is_due_waits_for_the_next_update(tmp_path):
    callback = SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", "test", 10, keep=9)
    Training(callback, updates={9, 13, 20, 39}).steps(60)
    assert saved(tmp_path) == [13, 20, 39]


def test_it_does_not_wait_for_ever(tmp_path, caplog):
    callback = SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", "test", 3, keep=9)
    Training(callback, updates={3}).steps(270)
    assert saved(tmp_path) == [3, 262]
    assert "step 262 is saved although the weights were not updated for 256 steps" in caplog.text
