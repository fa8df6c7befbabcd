import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import mint, nn  # noqa: E402
from mindspore.experimental import optim  # noqa: E402

from ms_recover.training.cells import as_cell, holds_optimizer  # noqa: E402
from ms_recover.training.optimizer_steps import OptimizerSteps  # noqa: E402


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
