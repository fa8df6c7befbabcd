"""Generators, callbacks and the order of their calls: a resumed training is the interrupted one, to the bit."""

import random
import shutil
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from ms_recover.errors import InputError, UsageError
from ms_recover.execution.state_files import read_state
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.manifest import encode_manifest, read_manifest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import nn, ops  # noqa: E402
from mindspore.dataset import transforms  # noqa: E402
from mindspore.train import Callback, EarlyStopping, History, LearningRateScheduler, Model, ReduceLROnPlateau  # noqa: E402

from ms_recover.training import SliceCheckpoint, SliceSaver, recover_train, resume  # noqa: E402
from ms_recover.training.sample_order import doubts  # noqa: E402

with suppress(SystemError):  # MindSpore's first product with a Python number fails with numpy 2, the second does not
    ms.Tensor(1.0) * 0.5

STEPS, EPOCHS = 4, 3


class Rows:
    """Samples; with `noise`, numpy's global generator changes them as they are read."""

    def __init__(self, noise=False):
        rng = np.random.default_rng(5)
        self._x, self._y = rng.random((2 * STEPS, 3), np.float32), rng.random((2 * STEPS, 2), np.float32)
        self._noise = noise

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        noise = np.float32(np.random.random()) if self._noise else np.float32(0)
        return self._x[index] + noise, self._y[index]


def make_dataset(noise=False, shuffle=True):
    return ds.GeneratorDataset(Rows(noise), ["x", "y"], shuffle=shuffle).batch(2, drop_remainder=True)


class Network(nn.Cell):
    def __init__(self, noisy=False):
        super().__init__()
        rng = np.random.default_rng(3)
        weights = [ms.Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((8, 3), (2, 8))]
        self.first, self.second = nn.Dense(3, 8, weights[0], "zeros"), nn.Dense(8, 2, weights[1], "zeros")
        self.noisy = noisy

    def construct(self, x):
        hidden = ops.tanh(self.first(x))
        if self.noisy:
            hidden = hidden * (1 + random.random() * np.random.random())  # in PyNative mode, at each step
        return self.second(hidden)


def make_model(noisy=False):
    network = Network(noisy)
    return Model(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 0.1, 0.9))


class Crash(Callback):
    """Raises an error before a step begins."""

    def __init__(self, behind):
        super().__init__()
        self._behind = behind

    def on_train_step_begin(self, run_context):
        if run_context.original_args().cur_step_num == self._behind + 1:
            raise RuntimeError("crashed")


class Drawing(Callback):
    """Sets the learning rate by draws from Python's and numpy's generators, behind each step and at the ends."""

    def _draw(self, run_context):
        rate = run_context.original_args().optimizer.learning_rate
        ops.assign(rate, ms.Tensor(0.05 + 0.05 * random.random() * np.random.random(), ms.float32))

    on_train_step_end = on_train_epoch_begin = on_train_epoch_end = _draw


class Epochs(Callback):
    """Changes the learning rate when an epoch begins and when it ends, and notes it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def on_train_epoch_begin(self, run_context):
        self._note("begin", run_context, 0.5)

    def on_train_epoch_end(self, run_context):
        self._note("end", run_context, 1.5)

    def _note(self, event, run_context, factor):
        params = run_context.original_args()
        rate = params.optimizer.learning_rate
        ops.assign(rate, ms.Tensor(rate.asnumpy() * np.float32(factor)))
        self.calls.append((event, params.cur_epoch_num))

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


class Average(Callback):
    """An average of the weights, which replaces them behind every third step; counts in odd values."""

    def __init__(self):
        super().__init__()
        self._average, self._count = {}, (0, {"odd": float("nan")})

    def on_train_step_end(self, run_context):
        self._count = (self._count[0] + 1, self._count[1])
        for weight in run_context.original_args().optimizer.parameters:
            value = weight.asnumpy()
            self._average[weight.name] = (self._average.get(weight.name, value) + value) / np.float32(2)
            if self._count[0] % 3 == 0:
                ops.assign(weight, ms.Tensor(self._average[weight.name]))

    def state_dict(self):
        return {"average": {name: ms.Tensor(value) for name, value in self._average.items()}, "count": self._count}

    def load_state_dict(self, state):
        assert isinstance(state["count"], tuple)
        self._average = {name: value.asnumpy() for name, value in state["average"].items()}
        self._count = state["count"]


def halve_every_fifth(rate, step):
    return rate * 0.5 if step % 5 == 0 else rate


def save(root, save_steps, **options):
    return SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", "net", save_steps, 20, **options)


def seed():
    ms.set_seed(7)  # numpy's and the dataset's as well
    random.seed(7)


def last_slice(root):
    newest = max((root / "ckpt_dir0").glob(f"*-{EPOCHS}_{STEPS}.*[ts]"), key=lambda path: path.stat().st_mtime_ns)
    return newest.read_bytes()


def last_state(root):
    name = max(
        (root / "ckpt_dir0").glob(f"*-{EPOCHS}_{STEPS}.*{STATE_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns
    )
    path = str(name).removesuffix(STATE_SUFFIX)
    state = read_state(path, read_manifest(path + MANIFEST_SUFFIX).training.state_digest)
    assert state.pop("saved_at") > 0
    assert state.pop("claim")["base_prefix"] == "net"  # the run, which is another one
    return state


def scheduled():
    return [
        LearningRateScheduler(halve_every_fifth),
        Epochs(),
        ReduceLROnPlateau(monitor="loss", factor=0.5, patience=1, min_delta=0.05, cooldown=1),
        EarlyStopping("loss", patience=9, restore_best_weights=True),
        History(),
    ]


def averaged():
    return [Average(), Drawing()]


@pytest.fixture(scope="module", params=["GRAPH_MODE", "PYNATIVE_MODE"], autouse=True)
def mode(request):
    before, fast = ms.get_context("mode"), ds.config.get_fast_recovery()
    ms.set_context(mode=getattr(ms, request.param))
    yield request.param
    ms.set_context(mode=before)
    ds.config.set_fast_recovery(fast)
    ds.config.set_seed(5489)


def compare(tmp_path, make_callbacks, crash, dataset=make_dataset, model=make_model, **options):
    """Train undisturbed; train, crash behind a step and resume; everything at the end must be equal."""
    roots = [tmp_path / "whole", tmp_path / "cut"]
    seed()
    model().train(EPOCHS, dataset(), callbacks=[save(roots[0], 2, **options), *make_callbacks()])
    seed()
    with pytest.raises(RuntimeError, match="crashed"):
        model().train(EPOCHS, dataset(), callbacks=[save(roots[1], 2, **options), Crash(crash), *make_callbacks()])
    for thread in threading.enumerate():
        if thread.name.startswith("save-"):  # as a new process finds it
            thread.join()
    seed()
    callbacks = make_callbacks()
    resumed = recover_train(model(), dataset(), roots[1], EPOCHS, [save(roots[1], 2, **options), *callbacks])
    assert (resumed.step.epoch - 1) * STEPS + resumed.step.step == crash
    assert last_slice(roots[0]) == last_slice(roots[1])
    whole, cut = (last_state(root) for root in roots)
    assert {name: repr(value) for name, value in whole.items()} == {name: repr(value) for name, value in cut.items()}
    return callbacks


@pytest.mark.parametrize("make_callbacks", [scheduled, averaged])
@pytest.mark.parametrize("crash", [6, 8])
def test_goes_on_with_the_callbacks_as_they_were(tmp_path, make_callbacks, crash):
    """Behind a step within an epoch, and behind an epoch; the slices are saved by the first of the callbacks."""
    options = {"async_save": crash == 8, "format": "safetensors" if crash == 6 else "ckpt"}
    callbacks = compare(tmp_path, make_callbacks, crash, **options)
    if make_callbacks is scheduled:
        assert callbacks[1].calls == [(event, epoch + 1) for epoch in range(EPOCHS) for event in ("begin", "end")]
        assert callbacks[4].epoch == {"epoch": [1, 2, 3]}


def test_generators_of_the_process_go_on(tmp_path, mode):
    """A network that draws at each step, in PyNative mode; operators that are given a seed as well."""
    if mode == "PYNATIVE_MODE":
        compare(tmp_path, list, 6, model=lambda: make_model(noisy=True))


def test_samples_that_draw_from_numpy_are_replayed(tmp_path, caplog, mode):
    """The dataset reads ahead, so that the state of its generator is that of no step; nothing else may touch it."""
    ds.config.set_fast_recovery(False)
    compare(tmp_path, list, 6, dataset=lambda: make_dataset(noise=True))
    assert "it is exact" not in caplog.text
    once_more = (
        "the dataset's draws from numpy.random are made once more; a callback or a network that draws from it too"
    )
    assert (once_more in caplog.text) is (mode == "PYNATIVE_MODE")  # in graph mode nothing else can draw here
    ds.config.set_fast_recovery(True)
    (tmp_path / "fast").mkdir()
    seed()
    make_model().train(2, make_dataset(noise=True), callbacks=[save(tmp_path / "fast", 2)])
    with pytest.raises(InputError, match=r"column 'x' has other values.*set_fast_recovery\(False\)"):
        recover_train(make_model(), make_dataset(noise=True), tmp_path / "fast", EPOCHS)
    allowed = {"allow_dataset_change": True}
    recover_train(make_model(), make_dataset(noise=True), tmp_path / "fast", EPOCHS, **allowed)
    assert "the dataset draws from numpy.random, and its draws go on otherwise" in caplog.text


class Drifting(Rows):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.own = np.random.default_rng(1)

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + np.float32(self.own.random()), y


def test_what_the_code_of_a_dataset_remembers_is_replayed_or_refused(tmp_path, caplog, mode):
    """It begins anew in the resumed training, unless all samples are made once more by a dataset that is not used."""
    if mode == "GRAPH_MODE":
        return

    def drifting(workers=1):
        return ds.GeneratorDataset(Drifting(), ["x", "y"], shuffle=True).map(draw, ["x"], num_parallel_workers=workers)

    def draw(x):
        return x * np.float32(np.random.random())

    ds.config.set_fast_recovery(False)
    compare(tmp_path, list, 6, dataset=lambda: drifting().batch(2, drop_remainder=True))
    assert "in the interrupted training; it is exact" not in caplog.text
    seed()
    model, used = make_model(), drifting().batch(2, drop_remainder=True)
    model.train(2, used, callbacks=[save(tmp_path / "used", 2)])
    with pytest.raises(InputError, match=r"Start again with the dataset of that training, made anew"):
        recover_train(model, used, tmp_path / "used", EPOCHS)
    with pytest.raises(InputError, match="several threads call that code: give it num_parallel_workers=1"):
        recover_train(make_model(), drifting(2).batch(2, drop_remainder=True), tmp_path / "used", EPOCHS)
    ds.config.set_fast_recovery(True)
    with pytest.raises(InputError, match=r"its own code \(.*draw, Drifting\) keeps something"):
        recover_train(make_model(), drifting().batch(2, drop_remainder=True), tmp_path / "used", EPOCHS)


def test_what_is_not_restored_is_named(tmp_path, caplog, mode):
    """Once each: callbacks without a state, random operators in the network, operations on samples, a lost state."""
    seed()

    def parts():
        network = nn.SequentialCell(nn.Dense(3, 2), nn.Dropout(p=0.5))
        model = Model(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 0.1, 0.9))
        dataset = ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=True).map(transforms.RandomChoice([lambda x: x]))
        return model, dataset.batch(2, drop_remainder=True)

    def pair(x, y):
        return x, y

    several = make_dataset().map(pair, ["x", "y"], num_parallel_workers=2, python_multiprocessing=True)
    assert [text.split(",")[0] for text in doubts(several, 1, STEPS)] == [
        "samples are made by processes of their own (python_multiprocessing=True)"
    ]
    model, dataset = parts()
    model.train(1, dataset, callbacks=[save(tmp_path, 3), Crash(99)])
    for path in (tmp_path / "ckpt_dir0").glob(f"*{STATE_SUFFIX}"):
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
    model, dataset = parts()
    recover_train(model, dataset, tmp_path, 2, [Crash(99), Crash(99)])
    for text in (
        "what these callbacks remember is not saved, and a resumed training begins them anew: Crash; give them",
        "random operators in the network start anew, because MindSpore does not expose their state: Dropout",
        "the random operations on samples (RandomChoice) go on otherwise",
        f"they start anew ({tmp_path}/ckpt_dir0/net-1_4.ckpt{STATE_SUFFIX}: its contents are not those that the",
    ):
        assert caplog.text.count(text) == 1, text


def test_an_order_that_cannot_be_repeated_is_refused_or_named(tmp_path, caplog):
    seed()
    with pytest.raises(RuntimeError, match="crashed"):
        make_model().train(EPOCHS, make_dataset(), callbacks=[save(tmp_path, 2), Crash(6)])
    ds.config.set_seed(8)
    with pytest.raises(InputError, match=r"shuffles with the seed 8, but .* was 7, .*set_seed\(7\) before the dataset"):
        recover_train(make_model(), make_dataset(), tmp_path, EPOCHS)
    shutil.copytree(tmp_path, tmp_path / "allowed")
    recover_train(make_model(), make_dataset(), tmp_path / "allowed", 2, allow_dataset_change=True)
    shutil.rmtree(tmp_path / "allowed")
    with pytest.raises(InputError, match="the dataset is not shuffled, and was when the slice was saved"):
        recover_train(make_model(), make_dataset(shuffle=False), tmp_path, EPOCHS)
    ds.config.set_seed(7)
    assert "made otherwise" not in caplog.text
    shutil.copytree(tmp_path, tmp_path / "other")

    def longer():
        return ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=True).repeat(2).batch(2).take(STEPS)

    with pytest.raises(
        InputError, match="Possible causes: the dataset is made otherwise than when the slice was saved"
    ):
        recover_train(make_model(), longer(), tmp_path / "other", 2)
    recover_train(make_model(), longer(), tmp_path / "other", 2, allow_dataset_change=True)
    assert "may follow: it is TakeDataset(count=4) <- BatchDataset(batch_size=2) <- RepeatDataset(count=2) <- Gen" in (
        caplog.text
    )
    shutil.rmtree(tmp_path / "other")
    ds.config.set_seed(5489)
    (tmp_path / "unseeded").mkdir()
    with pytest.raises(RuntimeError, match="crashed"):
        make_model().train(EPOCHS, make_dataset(), callbacks=[save(tmp_path / "unseeded", 2), Crash(6)])
    assert caplog.text.count("shuffled without a seed, so a training resumed within an epoch cannot repeat") == 1
    recover_train(make_model(), make_dataset(), tmp_path / "unseeded", 2)
    assert (
        "the dataset is shuffled without a seed, so what follows in epoch 2 is not what was left of it" in caplog.text
    )
    part = ds.GeneratorDataset(Rows(), ["x", "y"], shuffle=False).split([STEPS, STEPS])[0]
    assert ["drawn at random without a seed" in text for text in doubts(part, STEPS, STEPS)] == [True]
    ds.config.set_seed(7)
    assert doubts(part, STEPS, STEPS) == []


class Replacing(Callback):
    """Gives the weights other memory behind each step."""

    def on_train_step_end(self, run_context):
        for weight in run_context.original_args().network.trainable_params():
            weight.set_data(ms.Tensor(weight.asnumpy() * np.float32(0.9)))


def test_weights_that_a_callback_takes_from_the_optimizer_are_named(tmp_path, caplog, mode):
    """In PyNative mode MindSpore's optimizer goes on with the memory that they had."""
    seed()
    make_model().train(2, make_dataset(), callbacks=[save(tmp_path, 1), scheduled()[0]])
    assert "other memory" not in caplog.text
    make_model().train(2, make_dataset(), callbacks=[save(tmp_path / "replaced", 1), Replacing()])
    assert caplog.text.count("second.bias were given other memory (by set_data or load") == int(mode == "PYNATIVE_MODE")


def test_a_training_that_a_callback_has_ended_is_not_trained_on(tmp_path, caplog, capfd):
    """Unless the callback has more patience now; each start says so in a printed line, and none warns."""
    seed()
    caplog.set_level("INFO", "ms_recover")

    def stopping(patience):
        return EarlyStopping("loss", patience=patience, min_delta=1e9)

    make_model().train(EPOCHS, make_dataset(), callbacks=[stopping(1), save(tmp_path, None)])
    caplog.clear()
    for _ in range(2):
        capfd.readouterr()
        resumed = recover_train(make_model(), make_dataset(), tmp_path, EPOCHS, [stopping(1), save(tmp_path, None)])
        assert (str(resumed.step), resumed.trained) == ("2_4", False)
        said = "and nothing is left to train: EarlyStopping has ended the training behind epoch 2"
        assert capfd.readouterr().err.count(said) == 1
    assert "EarlyStopping has ended the training behind epoch 2; it is loaded, and nothing is left" in caplog.text
    assert {one.levelname for one in caplog.records} == {"INFO"}
    patient = stopping(2)
    resumed = recover_train(make_model(), make_dataset(), tmp_path, EPOCHS, [patient])
    assert (resumed.trained, patient.wait) == (True, 2)


class Unsavable(Crash):
    def state_dict(self):
        return {"sets": [object()]}

    def load_state_dict(self, state):
        raise AssertionError(state)


def test_a_state_that_cannot_be_saved_is_refused_before_a_step_is_trained(tmp_path):
    history = History()
    with pytest.raises(UsageError, match=r"the state of the callback Unsavable\['sets'\]\[0\] is a object"):
        make_model().train(1, make_dataset(), callbacks=[save(tmp_path, 1), history, Unsavable(9)])
    assert history.history == {}
    assert not list((tmp_path / "ckpt_dir0").glob("net*"))


def test_a_loop_gets_back_what_it_gave(tmp_path):
    extra = {
        "scale": 2.0,
        "seen": {3, 4},
        "ids": np.arange(3),
        "mean": ms.Tensor([1.5], ms.float16),
        "by": {(1, "a"): 2},
    }
    network = nn.Dense(2, 2)
    seed()
    with SliceSaver(network, f"{tmp_path}/ckpt_dir{{rank}}") as saver:
        with pytest.raises(UsageError, match=r"extra\['x'\] is a object, which cannot be saved"):
            saver.save(1, extra={"x": object()})
        saver.save(2, extra=extra)
        expected = random.random(), np.random.random()
        saver.save(3, epoch=2)
    back = resume(network, tmp_path)
    assert back.extra is None
    for path in (tmp_path / "ckpt_dir0").glob("*-2_3*"):
        path.unlink()
    back = resume(network, tmp_path)
    assert (random.random(), np.random.random()) == expected
    assert repr(back.extra) == repr(extra)
    assert str(back.step) == "1_2"


def test_slices_without_a_state_resume_with_a_warning(tmp_path, caplog):
    """As an older version saved them."""
    seed()
    make_model().train(2, make_dataset(), callbacks=[save(tmp_path, None)])
    for path in (tmp_path / "ckpt_dir0").glob(f"*{MANIFEST_SUFFIX}"):
        data = encode_manifest(replace(read_manifest(path), training=None))
        path.write_bytes(data)
    for path in (tmp_path / "ckpt_dir0").glob(f"*{STATE_SUFFIX}"):
        path.unlink()
    assert recover_train(make_model(), make_dataset(), tmp_path, EPOCHS, [Epochs()]).trained
    assert "they start anew (it was not saved with this slice)" in caplog.text
