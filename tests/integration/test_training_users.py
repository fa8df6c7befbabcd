"""What users do around a training that resumes: copies, several networks, other settings, endings; real trainings."""

import shutil

import numpy as np
import pytest

from ms_recover.file_names import MANIFEST_SUFFIX

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402
from mindspore.train import Callback, Model, ReduceLROnPlateau  # noqa: E402

from ms_recover.training import SliceCheckpoint, SliceSaver, recover_train, resume  # noqa: E402
from tests.support.small_training import (  # noqa: E402
    STEPS,
    CrashError,
    Losses,
    behind,
    make_dataset,
    make_model,
)

EPOCHS = 2


@pytest.fixture(autouse=True)
def _pynative():
    before = ms.get_context("mode")
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)


def checkpoint(root, prefix="test"):
    return SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", prefix, 3, keep=20)


def crash(root, callbacks=(), model=None, prefix="test"):
    """Train the first 10 steps, with slices of the third, sixth and ninth."""
    with pytest.raises(CrashError):
        (model or make_model()).train(
            EPOCHS, make_dataset(), callbacks=[*callbacks, checkpoint(root, prefix), Losses(crash=10)]
        )


def go_on(root, callbacks=(), model=None, prefix="test", epochs=EPOCHS):
    losses = Losses()
    made = model or make_model()
    resumed = recover_train(
        made, make_dataset(), root, epochs, [*callbacks, checkpoint(root, prefix), losses], fresh="start"
    )
    return resumed, losses.seen


def line_of(capfd):
    (line,) = [one for one in capfd.readouterr().err.splitlines() if one.startswith("ms_recover: ")]
    return line


def test_copies_of_slices_under_other_names_beside_them_stand_in_nobodys_way(tmp_path):
    whole = Losses()
    make_model().train(EPOCHS, make_dataset(), callbacks=[whole])
    crash(tmp_path)
    for path in [one for one in (tmp_path / "ckpt_dir0").iterdir() if one.name.startswith("test-")]:
        shutil.copy2(path, path.with_name(f"backup_{path.name}"))
    resumed, losses = go_on(tmp_path)
    assert (resumed.step.epoch, resumed.step.step) == (2, 1)
    assert losses == behind(whole.seen, 2, 1)
    assert (tmp_path / f"ckpt_dir0/backup_test-2_1.ckpt{MANIFEST_SUFFIX}").exists()


class TwoNetworks:
    """A loop that trains two networks on the same samples, each with a saver and a prefix of its own."""

    def __init__(self):
        models = make_model(0.01), make_model(0.03)
        self.networks = [one._network for one in models]
        self.optimizers = [one._optimizer for one in models]
        loss_of = nn.MSELoss()

        def gradients_of(network, optimizer):
            def forward(x, y):
                return loss_of(network(x), y)

            return ms.value_and_grad(forward, None, optimizer.parameters)

        self.gradients = list(map(gradients_of, self.networks, self.optimizers))

    def train(self, root, crash=None):
        """Train on from where both were saved; return the losses by step."""
        parts = list(zip(self.networks, self.optimizers, strict=True))
        found = [resume(list(part), root, fresh="start", prefix=name) for part, name in zip(parts, "ab", strict=True)]
        (done,) = {one.step.step if one.step else 0 for one in found}
        dataset, losses = make_dataset(), {}
        dataset.set_init_step(max(done - 1, 0))
        batches = found[0].prove(dataset.create_tuple_iterator(num_epochs=EPOCHS))
        savers = [
            SliceSaver(list(part), f"{root}/ckpt_dir{{rank}}", name) for part, name in zip(parts, "ab", strict=True)
        ]
        step = done
        try:
            for _ in range(done // STEPS, EPOCHS):
                for x, y in batches:
                    step += 1
                    losses[step] = []
                    for gradients, optimizer in zip(self.gradients, self.optimizers, strict=True):
                        loss, grads = gradients(x, y)
                        optimizer(grads)
                        losses[step].append(loss.asnumpy().tobytes())
                    if step % 3 == 0:
                        for saver in savers:
                            saver.save(step, batch=(x, y))
                    if step == crash:
                        raise CrashError
        finally:
            for saver in savers:
                saver.flush()
        return losses


def test_two_networks_of_a_loop_with_a_prefix_each_go_on_to_the_last_bit_with_a_line_each(tmp_path, capfd):
    whole = TwoNetworks().train(tmp_path / "whole")
    with pytest.raises(CrashError):
        TwoNetworks().train(tmp_path / "cut", crash=10)
    capfd.readouterr()
    assert TwoNetworks().train(tmp_path / "cut") == {step: loss for step, loss in whole.items() if step > 9}
    lines = [one for one in capfd.readouterr().err.splitlines() if one.startswith("ms_recover: resumed from step 1_9")]
    assert len(lines) == 2
    assert [" samples proven" in one for one in lines] == [True, False]


def test_a_loop_that_saves_no_extra_says_so_and_an_empty_one_states_that_there_is_nothing(tmp_path, capfd):
    model = make_model()
    parts = [model._network, model._optimizer]
    for extra, says in ((None, True), ({}, False)):
        saver = SliceSaver(parts, f"{tmp_path / str(says)}/ckpt_dir{{rank}}", "a")
        saver.save(1, extra=extra)
        resume(parts, tmp_path / str(says), prefix="a").prove(iter([(1,)]))
        assert ("other values of the loop not proven: no extra was saved" in capfd.readouterr().err) == says


class Scaled(nn.Cell):
    """A network with a number and an activation, and a count that it changes by itself."""

    def __init__(self, scale, activation):
        super().__init__()
        rng = np.random.default_rng(3)
        self.dense = nn.Dense(3, 2, ms.Tensor(rng.standard_normal((2, 3)).astype(np.float32)), "zeros")
        self.scale, self.activation, self.calls = scale, activation, 0

    def construct(self, x):
        self.calls += 1
        return self.activation(self.dense(x)) * self.scale


def scaled_model(scale=2.0, activation=nn.Tanh, beta=1.0):
    network = Scaled(scale, activation())
    return Model(network, nn.SmoothL1Loss(beta), nn.Adam(network.trainable_params(), 0.01))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, None),
        ({"scale": 3.0}, "Scaled.scale: 3, and was 2"),
        ({"beta": 0.5}, "SmoothL1Loss.beta: 0.5, and was 1"),
        ({"activation": nn.ReLU}, "ReLU cells: 1, and was none, Tanh cells: none, and was 1"),
    ],
    ids=["same", "number", "loss", "class"],
)
def test_a_network_with_another_number_or_another_class_of_cell_is_named(tmp_path, caplog, capfd, options, says):
    crash(tmp_path, model=scaled_model())
    caplog.clear()
    go_on(tmp_path, model=scaled_model(**options))
    texts = [one.getMessage() for one in caplog.records if "is made otherwise" in one.getMessage()]
    assert len(texts) == (says is not None)
    line = line_of(capfd)
    assert ("settings not proven" in line) == (says is not None)
    assert says is None or (texts[0].endswith(says) and says in line)


class Clip(Callback):
    stateless = True

    def on_train_step_end(self, run_context):
        for weight in run_context.original_args().train_network.get_parameters():
            if weight.name.endswith("weight"):
                ops.assign(weight, weight.clip(-0.5, 0.5))


@pytest.mark.parametrize(
    ("before", "now", "says"),
    [
        ([Clip], [Clip], None),
        ([Clip], [], "Clip is not given any more"),
        ([], [Clip], "Clip is new"),
        (
            [lambda: ReduceLROnPlateau("loss", factor=0.5)],
            [lambda: ReduceLROnPlateau("loss", factor=0.1)],
            "ReduceLROnPlateau 1 factor: 0.1, and was 0.5",
        ),
    ],
    ids=["same", "gone", "new", "setting"],
)
def test_other_callbacks_than_before_are_named_in_the_line(tmp_path, capfd, before, now, says):
    crash(tmp_path, [make() for make in before])
    capfd.readouterr()
    go_on(tmp_path, [make() for make in now])
    line = line_of(capfd)
    assert line.endswith("; callbacks not proven: Losses without state_dict()" + (f", {says}" if says else ""))


class HalveAtTheEnd(Callback):
    stateless = True

    def on_train_end(self, run_context):
        for weight in run_context.original_args().train_network.get_parameters():
            if weight.name.endswith("weight"):
                ops.assign(weight, weight * 0.5)


@pytest.mark.parametrize("ends", [False, True])
def test_what_callbacks_do_at_the_end_is_named_where_nothing_is_left_to_train(tmp_path, capfd, ends):
    callbacks = [HalveAtTheEnd()] if ends else []
    go_on(tmp_path, callbacks)
    capfd.readouterr()
    resumed, losses = go_on(tmp_path, callbacks)
    assert not resumed.trained
    assert not losses
    assert ("what on_train_end of HalveAtTheEnd changed is not in it" in line_of(capfd)) == ends


@pytest.mark.parametrize("other", ["test", "second"])
def test_a_second_training_of_a_process_under_the_same_prefix_is_named(tmp_path, caplog, other):
    model = make_model()
    for prefix in ("test", other):
        model.train(1, make_dataset(), callbacks=[checkpoint(tmp_path, prefix)])
    said = [one for one in caplog.records if "come to its end in this process" in one.getMessage()]
    assert len(said) == (other == "test")
