import numpy as np
import pytest

from ms_recover.errors import InputError
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.training.deciding.own_slice import OwnSlice  # noqa: E402
from ms_recover.training.network import load_into_network, load_slice  # noqa: E402
from ms_recover.training.snapshot import saved_names  # noqa: E402


def make_network(width=4):
    network = nn.Dense(3, width)
    return nn.TrainOneStepCell(
        nn.WithLossCell(network, nn.MSELoss()), nn.Momentum(network.trainable_params(), 0.1, 0.9)
    )


@pytest.fixture
def own(tmp_path):
    """A slice of a network whose parameters are all 7, and a function that saves another."""
    network = make_network()
    for parameter in network.get_parameters():
        parameter.set_data(ms.Tensor(np.full(parameter.shape, 7), parameter.dtype))
    path = tmp_path / "test-2_8.ckpt"
    ms.save_checkpoint(network, str(path))
    return OwnSlice(3, Step(2, 8), str(path))


def values(network):
    return {parameter.name: parameter.asnumpy().copy() for parameter in network.get_parameters()}


def test_loads_weights_and_optimizer_state(own):
    network = make_network()
    load_into_network(network, load_slice(own), own)
    loaded = values(network)
    assert loaded.keys() == saved_names(network)
    assert {"weight", "moments.weight", "learning_rate"} <= loaded.keys()
    assert all((value == 7).all() for value in loaded.values())


@pytest.mark.parametrize("name", ["weight", "moments.weight", "learning_rate"])
def test_refuses_when_a_parameter_is_missing_and_loads_nothing(own, name):
    """MindSpore would take moments.weight for a missing weight, and start others from scratch."""
    network = make_network()
    before = values(network)
    parameters = load_slice(own)
    del parameters[name]
    with pytest.raises(InputError, match=rf"rank 3, step 2_8, .*test-2_8.ckpt: the slice lacks parameter {name} of"):
        load_into_network(network, parameters, own)
    assert all((before[key] == value).all() for key, value in values(network).items())


def test_names_all_that_is_missing(own):
    with pytest.raises(InputError, match="parameters bias, global_step, learning_rate, "):
        load_into_network(make_network(), {"weight": load_slice(own)["weight"]}, own)


def test_refuses_another_shape(own):
    with pytest.raises(InputError, match=r"rank 3, step 2_8, .* does not fit the network"):
        load_into_network(make_network(width=5), load_slice(own), own)


def test_refuses_another_type(own):
    parameters = load_slice(own)
    parameters["weight"] = ms.Parameter(parameters["weight"].astype(ms.float16), name="weight")
    with pytest.raises(InputError, match="does not fit the network"):
        load_into_network(make_network(), parameters, own)


@pytest.mark.parametrize("content", [b"", b"garbage"])
def test_names_a_file_that_cannot_be_loaded(own, tmp_path, content):
    path = tmp_path / "test-3_8.ckpt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"rank 0, step 3_8, .*test-3_8.ckpt: MindSpore cannot load it"):
        load_slice(OwnSlice(0, Step(3, 8), str(path)))


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, ms.GRAPH_MODE], ids=["pynative", "graph"])
def test_an_optimizer_that_has_run_goes_on_with_what_was_loaded(mode, own):
    """What MindSpore compiled for the optimizer keeps the memory of its parameters."""
    before = ms.get_context("mode")
    ms.set_context(mode=mode)
    try:
        network, loss = nn.Dense(3, 4), nn.MSELoss()
        optimizer = nn.Momentum(network.trainable_params(), 0.1, 0.9)

        def forward(x, y):
            return loss(network(x), y)

        compute = ms.value_and_grad(forward, None, optimizer.parameters)
        batch = [ms.Tensor(np.ones(shape, np.float32)) for shape in ((2, 3), (2, 4))]
        both = nn.CellList([network, optimizer], auto_prefix=False)

        def train(steps):
            for _ in range(steps):
                optimizer(compute(*batch)[1])
            return values(both)

        train(2)
        saved = {name: ms.Parameter(ms.Tensor(value), name=name) for name, value in values(both).items()}
        expected = train(3)
        load_into_network(both, saved, own)
        assert all((values(both)[name] == value.asnumpy()).all() for name, value in saved.items())
        found = train(3)
    finally:
        ms.set_context(mode=before)
    assert all((found[name] == value).all() for name, value in expected.items())
    assert not (found["weight"] == saved["weight"].asnumpy()).all()


def test_initial_parameters_keep_the_values_of_the_network(own):
    network = make_network()
    before = values(network)
    load_into_network(network, load_slice(own), own, ["weight"])
    loaded = values(network)
    assert (loaded["weight"] == before["weight"]).all()
    assert (loaded["bias"] == 7).all()
