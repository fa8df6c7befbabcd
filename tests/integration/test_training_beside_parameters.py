"""What a network keeps beside its parameters goes on, or is named: buffers, numbers, loss scalers, frozen layers."""

import json
import shutil
from contextlib import suppress

import numpy as np
import pytest

from ms_recover import load_slice
from ms_recover.errors import InputError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.manifest import read_manifest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import amp, nn, ops  # noqa: E402
from mindspore.train import Callback, Model  # noqa: E402

from ms_recover.training import SliceSaver, recover_train, resume  # noqa: E402
from ms_recover.training.mindspore_inside import restore_operator_seeds  # noqa: E402
from tests.support.trainings import (  # noqa: E402
    EPOCHS,
    STEPS,
    Losses,
    StoppedError,
    checkpoint,
    make_dataset,
    make_network,
    rows,
    values,
)

with suppress(SystemError):  # MindSpore's first product with a Python number fails with numpy 2, the second does not
    ms.Tensor(1.0) * 0.5

MODES = pytest.mark.parametrize("mode", ["PYNATIVE_MODE", "GRAPH_MODE"])


class SeenLosses(Losses):
    """Says that it has no state."""

    stateless = True


class Buffered(nn.Cell):
    """Adds to its prediction what its buffers have of the predictions before."""

    def __init__(self, how):
        super().__init__()
        self.net, self.how = make_network(), how
        self.register_buffer("mean", ms.Tensor(np.zeros(2, np.float32)))
        self.register_buffer("aside", ms.Tensor(np.ones(2, np.float32)), persistent=False)
        self.register_buffer("turns", ms.Tensor(np.array([1j, 2], np.complex64)))

    def construct(self, x):
        y = self.net(x)
        new = ops.stop_gradient(y.mean(axis=0))
        if self.how == "add":
            self.mean.mul_(0.5)
            self.mean.add_(new)
            self.aside.add_(new)
        else:  # in graph mode what is read is a constant
            ops.assign(self.mean, self.mean * 0.5 + new)
            ops.assign(self.aside, self.aside + new)
        return y + self.mean + 0.1 * self.aside


class Counting(nn.Cell):
    """Python numbers, plain tensors, parameters and a generator of its own, outside of MindSpore's lists."""

    def __init__(self, python=True):
        super().__init__()
        self.net, self.python = make_network(), python
        self.count, self.seen, self.rng = 0, {"steps": [0]}, np.random.default_rng(5)
        self.plain = ms.Tensor(np.zeros(2, np.float32))
        self.box = [ms.Parameter(ms.Tensor(np.ones(2, np.float32)), name="boxed", requires_grad=False)]

    def construct(self, x):
        y = self.net(x)
        new = ops.stop_gradient(y.mean(axis=0))
        ops.assign_add(self.plain, new)
        if self.python:
            self.count += 1
            self.seen["steps"].append(self.count)
            ops.assign(self.box[0], self.box[0] + new)
            noise = float(self.rng.random()) + 0.01 * self.count + 0.001 * len(self.seen["steps"])
            return y + 0.1 * self.plain + noise + 0.1 * self.box[0]
        return y + 0.1 * self.plain


class Scaled(nn.Cell):
    """A training step with a loss scaler, which is no cell."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.net, self.loss = make_network(), nn.MSELoss()
        self.optimizer = nn.Momentum(self.net.trainable_params(), 0.01, 0.9)
        self.scaler = amp.DynamicLossScaler(1024.0, 2, 2)
        self.gradients = ops.value_and_grad(self.forward, None, self.optimizer.parameters)

    def forward(self, x, y):
        return self.scaler.scale(self.loss(self.net(x), y))

    def construct(self, x, y):
        loss, gradients = self.gradients(x, y)
        gradients = self.scaler.unscale(gradients)
        self.scaler.adjust(amp.all_finite(gradients))
        return ops.depend(loss, self.optimizer(gradients))  # scaled, so that it shows the scale


def model_of(network):
    return Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))


class Trained:
    """A training undisturbed, and cut behind a step; `go_on` resumes it."""

    def __init__(self, root, make, mode, *callbacks, stop_at=11):
        ms.set_context(mode=getattr(ms, mode))
        self.root, self.make, self.callbacks, self.legs = root, make, callbacks, 0
        losses, model = SeenLosses(), make()
        more = [kind() for kind in callbacks]
        model.train(EPOCHS, make_dataset(), callbacks=[losses, *more], dataset_sink_mode=False)
        self.whole, self.values = losses.seen, values(model)
        self.cut = make()
        more = [kind() for kind in callbacks]
        listed = [SeenLosses(stop_at), *more, checkpoint(root)]
        with suppress(StoppedError):
            self.cut.train(EPOCHS, make_dataset(), callbacks=listed, dataset_sink_mode=False)

    def go_on(self, model=None, **options):
        losses, model = SeenLosses(), model or self.make()
        more = [kind() for kind in self.callbacks]
        self.legs += 1
        root = shutil.copytree(self.root, f"{self.root}-{self.legs}")
        recover_train(model, make_dataset(), root, EPOCHS, [losses, *more, checkpoint(root)], **options)
        return losses.seen, values(model)

    def check(self, model=None):
        seen, ended = self.go_on(model)
        assert sorted(seen) == list(range(10, EPOCHS * STEPS + 1))
        assert seen == {step: self.whole[step] for step in seen}
        assert ended == self.values


def warnings(caplog):
    """Return what was warned of but callbacks without a state: the losses of the test need none."""
    said = [
        one.getMessage() for one in caplog.records if one.name.startswith("ms_recover") and one.levelname == "WARNING"
    ]
    return [text for text in said if "callbacks" not in text]


@pytest.mark.parametrize(
    ("how", "mode"), [("assign", "PYNATIVE_MODE"), ("assign", "GRAPH_MODE"), ("add", "GRAPH_MODE")]
)
def test_buffers_go_on_to_the_last_bit(tmp_path, caplog, mode, how):
    trained = Trained(tmp_path, lambda: model_of(Buffered(how)), mode)
    began = Buffered(how)
    network = trained.cut.train_network.network._backbone
    assert network.mean.asnumpy().tobytes() != began.mean.asnumpy().tobytes()
    assert network.aside.asnumpy().tobytes() != began.aside.asnumpy().tobytes()
    trained.check()
    trained.check(trained.cut)  # once more, in the process and with the model that has run
    assert warnings(caplog) == []


@MODES
def test_an_evaluation_gets_the_buffers_of_a_slice(tmp_path, mode):
    trained = Trained(tmp_path, lambda: model_of(Buffered("assign")), mode, stop_at=None)
    path = tmp_path / "ckpt_dir0" / f"test-{EPOCHS}_{STEPS}.ckpt"
    listed = dict(read_manifest(f"{path}{MANIFEST_SUFFIX}").training.buffers)
    assert list(listed) == ["mean", "turns"]
    assert set(load_slice(path)) == set(ms.load_checkpoint(str(path)))
    found = load_slice(path, buffers=True)
    assert found.keys() - set(load_slice(path)) == {"mean"}
    network = trained.cut.train_network.network._backbone
    assert found["mean"].asnumpy().tobytes() == network.mean.asnumpy().tobytes()
    fresh = Buffered("assign")
    fresh.load_state_dict(found, strict=False)
    assert fresh.mean.asnumpy().tobytes() == network.mean.asnumpy().tobytes()
    assert fresh.net[0].weight.asnumpy().tobytes() == network.net[0].weight.asnumpy().tobytes()
    state = path.with_name(path.name + STATE_SUFFIX)
    state.chmod(0o600)
    data = bytearray(state.read_bytes())
    data[-1] ^= 1
    state.write_bytes(data)
    with pytest.raises(VerificationError, match=r"ckpt\.state: it is not what the slice's manifest names"):
        load_slice(path, buffers=True)


class Filling(Callback):
    """Writes a buffer as a resumed training begins."""

    stateless = True

    def on_train_begin(self, run_context):
        params = run_context.original_args()
        if params.cur_step_num > 0:
            ops.assign(params.train_network.network._backbone.mean, ms.Tensor(np.ones(2, np.float32)))


@pytest.mark.parametrize(("how", "mode"), [("assign", "PYNATIVE_MODE"), ("add", "GRAPH_MODE")])
def test_a_buffer_that_a_callback_writes_as_training_begins_is_refused_or_allowed(tmp_path, caplog, mode, how):
    trained = Trained(tmp_path, lambda: model_of(Buffered(how)), mode, Filling)
    with pytest.raises(InputError, match=r"mean would not be what was resumed.*\(Filling\).*allow=\['mean'\]"):
        trained.go_on()
    caplog.clear()
    seen, _ = trained.go_on(allow=["mean"])
    assert sorted(seen) == list(range(10, EPOCHS * STEPS + 1))
    assert seen[10] != trained.whole[10]
    (said,) = warnings(caplog)
    assert "mean: written by a callback in on_train_begin (Filling)" in said


def test_lost_buffers_are_named_and_others_of_another_shape_are_refused(tmp_path, caplog):
    trained = Trained(tmp_path / "tree", lambda: model_of(Buffered("assign")), "PYNATIVE_MODE")
    shutil.copytree(tmp_path / "tree", tmp_path / "lost")
    for state in (tmp_path / "lost" / "ckpt_dir0").glob(f"*{STATE_SUFFIX}"):
        state.unlink()
    trained.root = tmp_path / "lost"
    trained.go_on()
    (said,) = [text for text in warnings(caplog) if "buffers" in text]
    assert "step 2_1" in said
    assert "lost, and no rank has equal ones; left as the network begins with them: mean" in said

    def wider():
        network = Buffered("assign")
        network.register_buffer("mean", ms.Tensor(np.zeros((1, 2), np.float32)))
        return model_of(network)

    trained.root, trained.make = tmp_path / "tree", wider
    with pytest.raises(InputError, match=r"the network has the buffer mean as Float32 \[1, 2\], and it was saved as"):
        trained.go_on()


def test_what_cells_count_goes_on_in_pynative_mode(tmp_path, caplog):
    trained = Trained(tmp_path, lambda: model_of(Counting()), "PYNATIVE_MODE")
    trained.check()
    trained.check(trained.cut)
    assert warnings(caplog) == []


class Turning(Callback):
    """Counts in the network."""

    stateless = True

    def on_train_step_end(self, run_context):
        run_context.original_args().network.count += 1


def test_in_graph_mode_tensors_go_on_and_numbers_are_named_at_the_first_save(tmp_path, caplog):
    make = lambda: model_of(Counting(python=False))  # noqa: E731
    Trained(tmp_path / "plain", make, "GRAPH_MODE").check()
    assert warnings(caplog) == []
    trained = Trained(tmp_path / "counted", make, "GRAPH_MODE", Turning)
    (said,) = warnings(caplog)
    assert "these values of cells are changed since the training began" in said
    assert "network._backbone.count" in said
    caplog.clear()
    trained.check()
    (said,) = [text for text in warnings(caplog) if "not restored" in text]
    assert "step 2_1" in said
    assert "network._backbone.count" in said


@MODES
def test_a_loss_scaler_goes_on(tmp_path, caplog, mode):
    trained = Trained(tmp_path, lambda: Model(Scaled()), mode)
    assert trained.cut.train_network.scaler.scale_value.asnumpy() > 1024
    trained.check()
    trained.check(trained.cut)
    assert warnings(caplog) == []


def test_a_value_that_no_state_file_holds_is_named_at_the_first_save(tmp_path, caplog):
    def make():
        model = model_of(Counting())
        model.train_network.network._backbone.odd = [ms.Parameter(ms.Tensor(np.ones(2, np.complex64)), name="odd")]
        return model

    Trained(tmp_path, make, "PYNATIVE_MODE")
    (said,) = warnings(caplog)
    assert "these values of cells are of types that no state file holds" in said
    assert "network._backbone.odd[0]" in said


class Freezing(Callback):
    """Freezes a layer at a step, once; what it remembers is in the layer."""

    stateless = True

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        if params.cur_step_num == 5:
            params.network[2].weight.requires_grad = False


class Decaying(nn.Cell):
    """A loss that counts the weights that are trained, so that a frozen one shows."""

    def __init__(self):
        super().__init__(auto_prefix=False)
        self.net, self.loss = make_network(), nn.MSELoss()

    def construct(self, x, y):
        return self.loss(self.net(x), y) + 0.01 * len(self.net.trainable_params())


def freezing_model():
    network = Decaying()

    class Step(nn.TrainOneStepCell):
        def __getitem__(self, index):
            return self.network.net[index]

    return Model(Step(network, nn.Adam(network.trainable_params(), 0.01)))


def test_a_frozen_layer_stays_frozen_in_pynative_mode(tmp_path, caplog):
    trained = Trained(tmp_path, freezing_model, "PYNATIVE_MODE", Freezing)
    trained.check()
    trained.check(trained.cut)
    assert warnings(caplog) == []


def test_in_graph_mode_a_layer_that_is_frozen_on_the_way_is_named_and_goes_on_training(tmp_path, caplog, capfd):
    make = lambda: model_of(make_network())  # noqa: E731
    trained = Trained(tmp_path, make, "GRAPH_MODE", Freezing)
    (said,) = warnings(caplog)
    assert "requires_grad was changed since the training began: 2.weight; in graph mode" in said
    caplog.clear()
    capfd.readouterr()
    trained.check()
    assert len([text for text in warnings(caplog) if "requires_grad was changed" in text]) >= 1
    (line,) = [one for one in capfd.readouterr().err.splitlines() if one.startswith("ms_recover: resumed from")]
    assert "weights not proven: requires_grad of 2.weight is not restored" in line


def loop(root, parts, stop_at=None, at=0):
    """Train with a loop of its own, and save at every third step; return the losses."""
    network, scaler, step = parts
    batches = [(ms.Tensor(x), ms.Tensor(y)) for x, y in rows(24)]
    losses = {}
    with SliceSaver([network, step.optimizer, scaler], f"{root}/ckpt_dir{{rank}}", "loop") as saver:
        for number in range(at + 1, len(batches) + 1):
            losses[number] = step(*(one.reshape((1, -1)) for one in batches[number - 1])).asnumpy().tobytes()
            if number % 3 == 0:
                saver.save(number)
            if number == stop_at:
                break
    return losses


def parts_of_loop():
    class Step(Scaled):
        def __init__(self):
            super().__init__()
            self.net = Counting()
            self.optimizer = nn.Momentum(self.net.trainable_params(), 0.01, 0.9)
            self.gradients = ops.value_and_grad(self.forward, None, self.optimizer.parameters)

    step = Step()
    return step.net, step.scaler, step


def cut_and_resumed(root):
    """Return the losses of a loop, and those of one that is cut and resumed."""
    whole = loop(root / "whole", parts_of_loop())
    loop(root / "cut", parts_of_loop(), stop_at=13)
    parts = parts_of_loop()
    done = resume([parts[0], parts[2].optimizer, parts[1]], root / "cut").step.step
    assert done == 12
    return whole, loop(root / "cut", parts, at=done)


def test_a_loop_goes_on_with_its_loss_scaler_and_what_its_cells_count(tmp_path, caplog):
    """MindSpore's kernels try out how to share their work: one of 30 runs that nothing disturbs has other last bits."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    for attempt in range(3):
        whole, again = cut_and_resumed(tmp_path / str(attempt))
        if again == {step: whole[step] for step in again}:
            break
    assert again == {step: whole[step] for step in again}
    newest = tmp_path / f"{attempt}/cut/ckpt_dir0/loop_1-1_24.ckpt.manifest.json"
    assert {"scale_value", "counter"} <= {one.name for one in read_manifest(newest).parameters}
    said = [text for text in warnings(caplog) if "samples" not in text]
    assert said == [], json.dumps(said)


class Averaged(nn.Cell):
    """Reads and moves a buffer."""

    def __init__(self):
        super().__init__()
        self.net = make_network()
        self.register_buffer("mean", ms.Tensor(np.zeros((1, 2), np.float32)))

    def construct(self, x):
        found = self.net(x) - 0.5 * self.mean
        ops.assign(self.mean, 0.5 * self.mean + 0.5 * ops.stop_gradient(found))
        return found


class Compiled(Averaged):
    @ms.jit
    def construct(self, x):
        return super().construct(x)


@pytest.mark.parametrize(
    ("mode", "kind", "how"),
    [("GRAPH_MODE", Averaged, "graph mode"), ("PYNATIVE_MODE", Compiled, "@jit"), ("PYNATIVE_MODE", Averaged, None)],
)
def test_buffers_that_a_loop_compiles_are_named(tmp_path, caplog, mode, kind, how):
    """They are constants of what is compiled, and the interrupted training had those of its begin."""
    ms.set_context(mode=getattr(ms, mode))

    def train(saves=False):
        network = kind()
        optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
        parts, losses = [network, optimizer], {}
        done = 0 if saves is None else resume(parts, tmp_path, fresh="start").step
        done = done.step if done else 0
        loss_of = nn.MSELoss()

        def forward(x, y):
            return loss_of(network(x), y)

        gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
        saver = SliceSaver(parts, f"{tmp_path}/ckpt_dir{{rank}}", "loop")
        for number, (x, y) in enumerate(rows(6), 1):
            if number > done:
                loss, gradients = gradients_of(ms.Tensor(x[None]), ms.Tensor(y[None]))
                optimizer(gradients)
                losses[number] = loss.asnumpy().tobytes()
            if saves and number == 3:
                saver.save(number)
                saver.release()
                break
        return losses

    whole = train(saves=None)
    train(saves=True)
    caplog.clear()
    again = train()
    said = [text for text in warnings(caplog) if "takes the values of now for constants" in text]
    assert (again == {step: whole[step] for step in again}) is (how is None)
    assert len(said) == (how is not None)
    assert all(f"where what {how} compiles reads them" in text for text in said)


class Jitted(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = make_network()

    @ms.jit
    def construct(self, x):
        return self.net(x) + 0.01 * ops.uniform((1, 2), ms.Tensor(0.0), ms.Tensor(1.0), seed=5)


class Plain(Jitted):
    @ms.jit
    def construct(self, x):
        return self.net(x)


def test_random_operators_under_jit_are_named_in_pynative_mode(tmp_path, caplog):
    ms.set_seed(7)
    trained = Trained(tmp_path / "random", lambda: model_of(Jitted()), "PYNATIVE_MODE")
    caplog.clear()
    trained.go_on()
    (said,) = [text for text in warnings(caplog) if "random operators in the network start anew" in text]
    assert "step 2_1" in said
    restore_operator_seeds(ms.get_seed(), {})  # of the operators that have run in this process
    trained = Trained(tmp_path / "plain", lambda: model_of(Plain()), "PYNATIVE_MODE")
    caplog.clear()
    trained.check()
    assert warnings(caplog) == []
