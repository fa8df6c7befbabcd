"""The order of things on Ascend, with a stand-in for the device only: slices, network and loading are real."""

import random

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.train import Model, RunContext  # noqa: E402
from mindspore.train.callback import _CallbackManager, _InternalCallbackParam  # noqa: E402

from ms_recover.training import network, obtained, recover, recover_train  # noqa: E402
from ms_recover.training.generators import changed_generators, generator_states  # noqa: E402

STEPS = 4


class Device:
    """An Ascend device: notes what is asked of it. Compiling, which only it can do, is done for CPU."""

    def __init__(self, model):
        self.asked = []
        self.train_network = model.train_network
        self._weights = dict(model.train_network.parameters_and_names())

    def build(self, train_dataset, epoch, sink_size):
        assert train_dataset.get_init_step() == 2 * STEPS
        self.asked.append(("build", epoch, sink_size, self.loaded()))
        self.train_network.set_train(True)
        self.train_network.compile(*next(dataset().create_tuple_iterator(num_epochs=1)))

    def train(self, epoch, train_dataset, callbacks, dataset_sink_mode, sink_size, initial_epoch):
        self.asked.append(("train", epoch, dataset_sink_mode, sink_size, initial_epoch, self.loaded()))

    def loaded(self):
        """Return whether the slice's values are in the network, optimizer state included."""
        return all((parameter.asnumpy() == 7).all() for parameter in self._weights.values())


class Sinking(Device):
    """Calls the callbacks as `Model` does until the first sink is over; no batch is in their hands."""

    def train(self, epoch, train_dataset, callbacks, dataset_sink_mode, sink_size, initial_epoch):
        params = _InternalCallbackParam()
        params.update(
            train_network=self.train_network,
            train_dataset=train_dataset,
            batch_num=STEPS,
            cur_step_num=0,
            cur_epoch_num=initial_epoch + 1,
            dataset_sink_mode=dataset_sink_mode,
        )
        with _CallbackManager(callbacks) as manager:
            manager.on_train_begin(RunContext(params))
            manager.on_train_epoch_begin(RunContext(params))
            manager.on_train_step_begin(RunContext(params))


def dataset():
    rows = [(np.ones(3, np.float32), np.ones(2, np.float32))] * STEPS
    return ds.GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(1)


def make_model():
    dense = nn.Dense(3, 2)
    return Model(dense, nn.MSELoss(), nn.Momentum(dense.trainable_params(), 0.1, 0.9))


@pytest.fixture
def tree(tmp_path):
    """A tree of one rank with a slice of step 2_4 in which every value is 7."""
    model = make_model()
    for parameter in model.train_network.get_parameters():
        parameter.set_data(ms.Tensor(np.full(parameter.shape, 7), parameter.dtype))
    (tmp_path / "ckpt_dir0").mkdir()
    ms.save_checkpoint(model.train_network, str(tmp_path / "ckpt_dir0" / f"test-2_{STEPS}.ckpt"))
    return tmp_path


@pytest.fixture
def ascend(monkeypatch):
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    for module in (recover, network):
        monkeypatch.setattr(module, "device_target", lambda: "Ascend")
    yield
    ms.set_context(mode=mode)


def test_reads_builds_loads_and_trains_in_this_order(tree, ascend, monkeypatch):
    device = Device(make_model())
    load = obtained.load_slice
    monkeypatch.setattr(obtained, "load_slice", lambda *args: device.asked.append(("read",)) or load(*args))
    resumed = recover_train(device, dataset(), tree, 5)
    assert device.asked == [("read",), ("build", 5, -1, False), ("train", 5, True, -1, 2, True)]
    assert resumed.trained
    assert str(resumed.step) == "2_4"


def test_sinks_of_a_given_size(tree, ascend):
    device = Device(make_model())
    recover_train(device, dataset(), tree, 5, sink_size=STEPS)
    assert device.asked == [("build", 5, STEPS, False), ("train", 5, True, STEPS, 2, True)]


def test_without_sink_the_first_step_compiles_the_network(tree, ascend):
    device = Device(make_model())
    recover_train(device, dataset(), tree, 5, sink_mode=False)
    assert device.asked == [("train", 5, False, -1, 2, True)]
    assert not device.train_network.compile_cache


def test_a_network_that_the_compiler_cuts_is_compiled_before_it_is_loaded(tree, ascend, monkeypatch):
    """By the shapes and types of the samples; generators are left as they are."""
    device, loaded = Device(make_model()), []
    load = network.load_into_network
    monkeypatch.setattr(network, "_is_cut_by_compiler", lambda model: True)
    monkeypatch.setattr(
        obtained,
        "load_into_network",
        lambda *args, **options: loaded.append(len(device.train_network.compile_cache)) or load(*args, **options),
    )

    class Rows:
        def __len__(self):
            return STEPS

        def __getitem__(self, index):
            return np.full(3, np.random.random(), np.float32), np.full(2, random.random(), np.float32)

    before = generator_states()
    rows = ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=False).batch(1)
    recover_train(device, rows, tree, 5, sink_mode=False)
    assert loaded == [1]
    assert changed_generators(before, generator_states()) == frozenset()


def test_in_sink_mode_the_line_says_that_samples_are_not_proven_and_their_reasons_are_warnings(
    tree, ascend, capsys, caplog
):
    chosen_at_random = ds.transforms.RandomApply([ds.transforms.TypeCast(ms.float32)])
    recover_train(Sinking(make_model()), dataset().map(chosen_at_random, ["x"]), tree, 5)
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("ms_recover: resumed from ")]
    assert "samples not proven: in sink mode no batch is in the hands of the program" in line
    (reason,) = [one for one in caplog.records if "random operations on samples (RandomApply)" in one.getMessage()]
    assert reason.levelname == "WARNING"
