"""A retry in the process of an attempt that died before its first save: a warning names what is not as at its begin."""

import logging

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import dataset as ds  # noqa: E402
from mindspore import nn, ops  # noqa: E402
from mindspore.train import Callback, Model  # noqa: E402

from ms_recover.training import SliceSaver, recover_train, resume  # noqa: E402
from tests.support.trainings import (  # noqa: E402
    Losses,
    StoppedError,
    checkpoint,
    make_dataset,
    make_model,
    make_network,
    rows,
)

NOT_AS_BEFORE = "saved nothing"
STATES = {"numbers": np.random.default_rng(0)}


@pytest.fixture(autouse=True)
def pynative():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


@pytest.fixture
def named(caplog):
    """What warnings say of a training that does not begin as the attempt before."""
    caplog.set_level(logging.WARNING, "ms_recover")
    return lambda: [one.getMessage() for one in caplog.records if NOT_AS_BEFORE in one.getMessage()]


class Halving(Callback):
    """Halves a weight before each epoch."""

    stateless = True

    def on_train_epoch_begin(self, run_context):
        for one in run_context.original_args().train_network.trainable_params()[:1]:
            ops.assign(one, one * 0.5)


class Counting(Callback):
    """Counts epochs."""

    def __init__(self):
        super().__init__()
        self.epochs = 0

    def on_train_epoch_begin(self, run_context):
        self.epochs += 1

    def state_dict(self):
        return {"epochs": self.epochs}

    def load_state_dict(self, state):
        self.epochs = state["epochs"]


class Drawing(Callback):
    """Draws from numpy's generator before each epoch."""

    stateless = True

    def on_train_epoch_begin(self, run_context):
        np.random.random()


class Buffered(nn.Cell):
    """Moves a buffer, a number and a parameter outside of its cells, and then may fail."""

    def __init__(self):
        super().__init__()
        self.inner = make_network()
        self.register_buffer("mean", ms.Tensor([0.0], ms.float32))
        self.calls = 0
        self.fails = False

    def construct(self, x):
        ops.assign(self.mean, self.mean + 1)
        self.calls += 1
        assert not self.fails, "a bad sample"
        return self.inner(x)


def failing_dataset():
    """A dataset of which no batch can be read while ``fails`` is set."""

    class Rows:
        fails = True

        def __getitem__(self, index):
            if self.fails:
                raise OSError("the store is gone")
            return np.full(3, index, np.float32), np.full(2, index % 5, np.float32)

        def __len__(self):
            return 32

    source = Rows()
    ds.config.set_seed(11)
    return source, ds.GeneratorDataset(source, ["x", "y"], shuffle=True, num_parallel_workers=1).batch(4)


def attempt(root, model, dataset, *callbacks, **options):
    """Train from the start, as the first start of a program and each retry do."""
    return recover_train(model, dataset, root, 3, [*callbacks, checkpoint(root, 6)], fresh="start", **options)


def test_weights_that_a_callback_wrote_before_the_dataset_failed_are_named_at_the_retry(tmp_path, named):
    model, (source, dataset) = make_model(), failing_dataset()
    name = model.train_network.trainable_params()[0].name
    with pytest.raises(Exception, match="the store is gone"):
        attempt(tmp_path, model, dataset, Halving())
    source.fails = False
    assert not named()
    attempt(tmp_path, model, dataset, Halving())
    (said,) = named()
    assert f"other values of {name}" in said
    assert "'test'" in said


def test_steps_that_were_trained_and_not_saved_are_named_at_the_retry(tmp_path, named):
    model, counting = make_model(), Counting()
    with pytest.raises(StoppedError):
        attempt(tmp_path, model, make_dataset(), counting, Losses(stop_at=2))
    attempt(tmp_path, model, make_dataset(), counting, Losses())
    (said,) = named()
    for what in ("0.weight", "beta1_power", "Counting"):
        assert what in said


def test_each_further_retry_is_compared_with_the_first_begin(tmp_path, named):
    model = make_model()
    for _ in range(3):
        with pytest.raises(StoppedError):
            attempt(tmp_path, model, make_dataset(), Losses(stop_at=2))
    assert len(named()) == 2


def test_what_a_forward_moved_beside_the_weights_is_named_at_the_retry(tmp_path, named):
    network = Buffered()
    model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))
    network.fails = True
    with pytest.raises(AssertionError):
        attempt(tmp_path, model, make_dataset())
    network.fails = False
    attempt(tmp_path, model, make_dataset())
    (said,) = named()
    assert "mean" in said
    assert "calls" in said
    assert "0.weight" not in said


def test_generators_that_the_attempt_drew_from_are_named_at_the_retry(tmp_path, named):
    for _ in range(2):
        with pytest.raises(StoppedError):
            dataset = ds.GeneratorDataset(rows(32), ["x", "y"], shuffle=False).batch(4)  # set_seed() seeds numpy
            attempt(tmp_path, make_model(), dataset, Drawing(), Losses(stop_at=1))
    (said,) = named()
    assert "numpy.random" in said
    assert "weight" not in said


def test_random_operators_that_have_run_are_named_at_the_retry(tmp_path, named):
    def make():
        network = nn.SequentialCell(make_network(), nn.Dropout(p=0.5))
        return Model(network, nn.MSELoss(), nn.SGD(network.trainable_params(), 0.0))

    model = make()
    for _ in range(2):
        with pytest.raises(StoppedError):
            attempt(tmp_path, model, make_dataset(), Losses(stop_at=1))
    (said,) = named()
    assert "Dropout" in said


def test_samples_that_the_attempt_drew_are_named_at_the_retry(tmp_path, named):
    def samples():
        for _ in range(32):
            yield STATES["numbers"].random(3, np.float32), np.zeros(2, np.float32)

    STATES["numbers"] = np.random.default_rng(0)
    for _ in range(2):
        dataset = ds.GeneratorDataset(samples, ["x", "y"], shuffle=False, num_parallel_workers=1).batch(4)
        with pytest.raises(StoppedError):
            attempt(tmp_path, make_model(), dataset, Losses(stop_at=1))
    (said,) = named()
    assert "first batch" in said
    assert "column 1" in said


def test_samples_of_which_nothing_was_seen_are_named_where_code_makes_them(tmp_path, named):
    model, (source, dataset) = make_model(), failing_dataset()
    with pytest.raises(Exception, match="the store is gone"):
        attempt(tmp_path, model, dataset)
    source.fails = False
    attempt(tmp_path, model, dataset)
    (said,) = named()
    assert "Rows" in said


@pytest.mark.parametrize("how", ["recover_train", "Model.train"])
def test_a_retry_that_begins_as_the_attempt_did_goes_on_to_the_last_bit_without_a_word(tmp_path, named, how):
    alone, first, again = Losses(), Losses(stop_at=2), Losses()
    make_model().train(3, make_dataset(), callbacks=[alone])
    with pytest.raises(StoppedError):
        if how == "recover_train":
            attempt(tmp_path, make_model(), make_dataset(), first)
        else:
            make_model().train(3, make_dataset(), callbacks=[first, checkpoint(tmp_path, 6)])
    attempt(tmp_path, make_model(), make_dataset(), again)
    assert again.seen == alone.seen
    assert not named()


def test_another_training_of_the_same_network_begins_with_what_it_has(tmp_path, named):
    """As that of a head, and then of everything; nor is anything compared with an attempt that has saved."""
    model = make_model()
    with pytest.raises(StoppedError):
        attempt(tmp_path / "one", model, make_dataset(), Losses(stop_at=2))
    attempt(tmp_path / "two", model, make_dataset())
    model.train(1, make_dataset(), callbacks=[checkpoint(tmp_path / "three", 2)])
    model.train(1, make_dataset(), callbacks=[checkpoint(tmp_path / "three", 2)])
    assert not named()


@pytest.mark.parametrize("anew", [True, False])
def test_a_loop_that_begins_anew_with_trained_weights_is_named(tmp_path, named, anew):
    def make():
        network = make_network()
        return network, nn.Adam(network.trainable_params(), 0.01)

    def train(network, optimizer):
        assert resume([network, optimizer], tmp_path, prefix="test", fresh="start").step is None
        gradients_of = ms.value_and_grad(lambda x, y: nn.MSELoss()(network(x), y), None, optimizer.parameters)
        with SliceSaver([network, optimizer], f"{tmp_path}/ckpt_dir{{rank}}", "test"):
            for x, y in make_dataset().create_tuple_iterator(num_epochs=1):
                optimizer(gradients_of(x, y)[1])
                raise StoppedError

    parts = make()
    for _ in range(2):
        with pytest.raises(StoppedError):
            train(*(make() if anew else parts))
    assert len(named()) == (not anew)
    assert all("0.weight" in said for said in named())


def test_a_loop_whose_samples_code_makes_is_named(tmp_path, named):
    _, dataset = failing_dataset()
    for _ in range(2):
        network = make_network()
        resume([network, nn.Adam(network.trainable_params())], tmp_path, prefix="test", fresh="start", dataset=dataset)
    (said,) = named()
    assert "Rows" in said
