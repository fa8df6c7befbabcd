"""``Model.fit`` and gradient accumulation: interrupted and resumed, compared to the last bit."""

import shutil

import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402
from mindspore.train import Callback, Model  # noqa: E402

from ms_recover.training import recover_train  # noqa: E402
from tests.support.trainings import (  # noqa: E402
    EPOCHS,
    STEPS,
    Losses,
    StoppedError,
    checkpoint,
    make_dataset,
    make_model,
    make_network,
    values,
)


@pytest.fixture(scope="module", params=["GRAPH_MODE", "PYNATIVE_MODE"], autouse=True)
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=getattr(ms, request.param))
    yield request.param
    ms.set_context(mode=before)


class Validations(Callback):
    """Results of the validation by epoch, as `Model.fit` gives them to callbacks."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def on_train_epoch_end(self, run_context):
        params = run_context.original_args()
        if "eval_results" in params:
            self.seen[params.cur_epoch_num] = dict(params.eval_results)


@pytest.mark.parametrize(("frequency", "stop_at"), [(1, 13), ([1, 3], 20)])
def test_fit_goes_on_with_its_validation(tmp_path, mode, frequency, stop_at):
    if mode == "GRAPH_MODE" and frequency != 1:
        pytest.skip("the frequency is the same in both modes")

    def fit(model, **more):
        options = {"valid_dataset": make_dataset(2, seed=6), "valid_frequency": frequency}
        losses, validations = Losses(more.pop("stop_at", None)), Validations()
        callbacks = [losses, validations, checkpoint(tmp_path)]
        if more:
            resumed = recover_train(model, make_dataset(), tmp_path, EPOCHS, callbacks, **options)
            assert (resumed.step.epoch - 1) * STEPS + resumed.step.step == (stop_at - 1) // 3 * 3
        else:
            model.fit(EPOCHS, make_dataset(), callbacks=callbacks, dataset_sink_mode=False, **options)
        return losses.seen, validations.seen

    whole_model = make_model(metrics={"mae"})
    losses, validations = fit(whole_model)
    assert sorted(validations) == [1, 2, 3] if frequency == 1 else [1, 3]
    shutil.rmtree(tmp_path / "ckpt_dir0")
    with pytest.raises(StoppedError):
        fit(make_model(metrics={"mae"}), stop_at=stop_at)
    model = make_model(seed=9, metrics={"mae"})
    seen = fit(model, resume=True)
    first = (stop_at - 1) // 3 * 3
    assert seen[0] == {step: loss for step, loss in losses.items() if step > first}
    assert seen[1] == {epoch: found for epoch, found in validations.items() if epoch * STEPS > first}
    assert values(model) == values(whole_model)


class InParameters(nn.Cell):
    """Accumulates gradients in parameters of its own, and updates the weights every few steps."""

    def __init__(self, network, optimizer, every):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.every = nn.WithLossCell(network, nn.MSELoss()), optimizer, every
        self.weights = optimizer.parameters
        self.sums = self.weights.clone(prefix="sums", init="zeros")
        self.count = ms.Parameter(ms.Tensor(0, ms.int32), name="accumulated", requires_grad=False)
        self.gradients = ops.GradOperation(get_by_list=True)
        self.map = ops.HyperMap()

    def construct(self, x, y):
        loss = self.network(x, y)
        gradients = self.gradients(self.network, self.weights)(x, y)
        loss = ops.depend(loss, self.map(ops.assign_add, self.sums, gradients))
        count = ops.assign_add(self.count, 1)
        if count % self.every == 0:
            loss = ops.depend(loss, self.optimizer(self.sums))
            loss = ops.depend(loss, self.map(ops.assign, self.sums, self.map(ops.zeros_like, self.sums)))
        return loss


class InMemory(nn.Cell):
    """Accumulates gradients where no slice can see them."""

    def __init__(self, network, optimizer, every):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer, self.every = nn.WithLossCell(network, nn.MSELoss()), optimizer, every
        self.gradients = ms.value_and_grad(self.network, None, optimizer.parameters)
        self.hidden = {"count": 0, "sums": None}

    def construct(self, x, y):
        loss, gradients = self.gradients(x, y)
        hidden = self.hidden
        hidden["count"] += 1
        before = hidden["sums"]
        hidden["sums"] = gradients if before is None else tuple(a + b for a, b in zip(before, gradients, strict=True))
        if hidden["count"] % self.every == 0:
            self.optimizer(hidden["sums"])
            hidden["sums"] = None
        return loss


@pytest.mark.parametrize(("kind", "save_steps"), [(InParameters, 3), (InMemory, 1), (InMemory, None)])
def test_slices_are_saved_where_the_weights_are_updated(tmp_path, mode, kind, save_steps):
    if kind is InMemory and mode == "GRAPH_MODE":
        pytest.skip("a compiled network cannot keep gradients in memory of its own")

    def make(seed=3):
        network = make_network(seed)
        return Model(kind(network, nn.Adam(network.trainable_params(), 0.01), every=5))

    def steps_of(root):
        names = [path.stem.partition("-")[2] for path in (root / "ckpt_dir0").glob("*.ckpt")]
        return sorted((int(epoch) - 1) * STEPS + int(step) for epoch, step in (name.split("_") for name in names))

    losses, model = Losses(), make()
    model.train(EPOCHS, make_dataset(), callbacks=[losses, checkpoint(tmp_path / "whole", save_steps)])
    end = EPOCHS * STEPS
    assert (
        steps_of(tmp_path / "whole") == {3: [5, 10, 15, 20, 24], 1: [5, 10, 15, 20, 24], None: [10, 20, 24]}[save_steps]
    )
    with pytest.raises(StoppedError):
        make().train(EPOCHS, make_dataset(), callbacks=[checkpoint(tmp_path, save_steps), Losses(stop_at=14)])
    resumed_losses, resumed_model = Losses(), make(seed=9)
    callbacks = [resumed_losses, checkpoint(tmp_path, save_steps)]
    recover_train(resumed_model, make_dataset(), tmp_path, EPOCHS, callbacks)
    assert resumed_losses.seen == {step: losses.seen[step] for step in range(11, end + 1)}
    assert values(resumed_model) == values(model)


def test_the_end_within_an_accumulation_is_named(tmp_path, caplog, mode):
    network = make_network()
    model = Model(InParameters(network, nn.SGD(network.trainable_params(), 0.01), every=3))
    model.train(1, make_dataset(), callbacks=[checkpoint(tmp_path)])
    assert "step 8, the last one, has not updated the weights" in caplog.text


class Own(nn.Optimizer):
    """An optimizer whose counter stands still: nothing can be learned from it."""

    def construct(self, gradients):
        for weight, gradient in zip(self.parameters, gradients):  # noqa: B905 (a compiled network knows no strict)
            ops.assign_sub(weight, gradient * 0.01)
        return True


def test_an_optimizer_without_a_counter_that_moves_is_saved_at_every_step(tmp_path):
    network = make_network()
    model = Model(network, nn.MSELoss(), Own(0.01, network.trainable_params()))
    model.train(1, make_dataset(), callbacks=[checkpoint(tmp_path, 4)])
    assert {path.name for path in (tmp_path / "ckpt_dir0").glob("*.ckpt")} == {"test-1_4.ckpt", "test-1_8.ckpt"}
