import numpy as np
import pytest

from ms_recover.errors import UsageError

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402
from mindspore.experimental import optim as experimental  # noqa: E402

from ms_recover.training.cells import as_cell  # noqa: E402
from ms_recover.training.snapshot import saved_names  # noqa: E402


def parameter(name, *shape):
    return ms.Parameter(ms.Tensor(np.zeros(shape, np.float32)), name=name)


def test_a_network_and_its_optimizer_hold_what_a_train_network_holds():
    network = nn.SequentialCell(nn.Dense(3, 2), nn.BatchNorm1d(2))
    optimizer = nn.Adam(network.trainable_params(), 0.1)
    trained = nn.TrainOneStepCell(nn.WithLossCell(network, nn.MSELoss()), optimizer)
    before = sorted(one.name for one in trained.get_parameters())
    whole = as_cell([network, optimizer])
    assert sorted(one.name for one in whole.get_parameters()) == before
    assert sorted(one.name for one in trained.get_parameters()) == before
    assert {id(one) for one in whole.get_parameters()} == {id(one) for one in trained.get_parameters()}
    assert as_cell(trained) is trained


def test_single_parameters_keep_their_names():
    step = parameter("counter.of.steps")
    network = nn.Dense(3, 2)
    assert saved_names(as_cell([network, step])) == {"weight", "bias", "counter.of.steps"}
    assert saved_names(as_cell(step)) == {"counter.of.steps"}
    assert saved_names(as_cell(network.parameters_dict())) == {"weight", "bias"}
    assert saved_names(as_cell(network.trainable_params())) == {"weight", "bias"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "there is none"),
        (None, "a NoneType is neither a cell nor a parameter"),
        (3, "a int is neither"),
        (["weight"], "a str is neither"),
        ([nn.ReLU()], "there is none"),
        ([parameter("a", 2), parameter("a", 3)], "two are named a"),
        ([ms.Parameter(ms.Tensor([1.0]))], "has no name of its own"),
    ],
)
def test_what_cannot_be_saved_is_refused(given, said):
    with pytest.raises(UsageError, match=said):
        as_cell(given)


@pytest.mark.parametrize("kind", ["Adam", "NAdam", "ASGD"])
def test_what_optimizers_keep_in_plain_lists_is_saved_too(kind):
    network = nn.Dense(2, 2)
    optimizer = getattr(experimental, kind)(network.trainable_params(), lr=0.01)
    names = {one.name for one in as_cell([network, optimizer]).get_parameters()}
    kept = {"Adam": set(), "NAdam": {"mu_product_weight"}, "ASGD": {"mu_weight", "eta_bias"}}[kind]
    assert names >= {"weight", "learning_rate_group_0", *kept}
    assert {one.name for one in as_cell(optimizer).get_parameters()} == names


def test_two_optimizers_that_keep_the_same_names_are_named(caplog):
    first, second = nn.Dense(2, 2), nn.Dense(2, 2)
    for one in second.get_parameters():
        one.name = f"second.{one.name}"
    optimizers = [experimental.SGD(cell.trainable_params(), lr=0.01) for cell in (first, second)]
    as_cell([first, second, *optimizers])
    assert "not saved, because others have their names: learning_rate_group_0" in caplog.text
