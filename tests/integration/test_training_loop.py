"""Training loops without Model: saved and resumed in one process, compared to the last bit."""

import itertools

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import InputError, MissingInputError, UsageError
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import nn, value_and_grad  # noqa: E402

from ms_recover import SliceSaver, resume  # noqa: E402

STEPS = 12


class Loop:
    """A loop as MindSpore's tutorials write it; `train` trains the steps up to one and saves at some."""

    def __init__(self, seed=3):
        rng = np.random.default_rng(seed)
        weights = [ms.Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((16, 3), (2, 16))]
        self.network = nn.SequentialCell(
            nn.Dense(3, 16, weights[0], "zeros"), nn.Tanh(), nn.Dense(16, 2, weights[1], "zeros")
        )
        self.optimizer = nn.Adam(self.network.trainable_params(), 0.01)
        network, loss_of = self.network, nn.MSELoss()

        def forward(x, y):
            return loss_of(network(x), y)

        self._gradients = value_and_grad(forward, None, self.optimizer.parameters)
        self.losses = {}

    @property
    def parameters(self):
        return [self.network, self.optimizer]

    def step(self, number):
        rng = np.random.default_rng(number)
        x, y = (ms.Tensor(rng.random((4, width), np.float32)) for width in (3, 2))
        loss, gradients = self._gradients(x, y)
        self.optimizer(gradients)
        self.losses[number] = loss.asnumpy().tobytes()

    def train(self, first, last, save=lambda step: None):
        for number in range(first, last + 1):
            self.step(number)
            save(number)
        return self


def values(loop):
    return {one.name: one.asnumpy().tobytes() for one in loop.optimizer.get_parameters()}


@pytest.fixture(scope="module", params=["GRAPH_MODE", "PYNATIVE_MODE"], autouse=True)
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=getattr(ms, request.param))
    yield
    ms.set_context(mode=before)


@pytest.fixture(scope="module")
def whole(mode):
    return Loop().train(1, STEPS)


@pytest.mark.parametrize(("async_save", "form"), [(False, "ckpt"), (True, "safetensors")])
def test_goes_on_to_the_last_bit(whole, tmp_path, async_save, form):
    folder = f"{tmp_path}/ckpt_dir{{rank}}"
    first = Loop()
    with SliceSaver(first.parameters, folder, "test", async_save=async_save, format=form) as saver:
        first.train(1, 8, lambda step: step % 3 or saver.save(step))
    assert saver.committed == Step(1, 6)
    second = Loop(seed=4)
    resumed = resume(second.parameters, tmp_path)
    assert (resumed.step, resumed.source_rank) == (Step(1, 6), None)
    with SliceSaver(second.parameters, folder, "test", async_save=async_save, format=form) as saver:
        second.train(resumed.step.step + 1, STEPS, lambda step: step % 3 or saver.save(step))
    assert second.losses == {step: loss for step, loss in whole.losses.items() if step > 6}
    assert values(second) == values(whole)
    checks = api.verify(api.scan(tmp_path)).checks
    assert {(check.status, check.evidence) for check in checks} == {("sound", "manifest")}
    assert [stall.step.step for stall in saver.stalls] == [9, 12, *([12] if async_save else [])]


def test_a_retry_in_the_process_goes_on_with_the_same_saver(whole, tmp_path):
    """Also from an older step than the last one, and with what was compiled before."""
    loop = Loop()
    saver = SliceSaver(loop.parameters, f"{tmp_path}/ckpt_dir{{rank}}", "test", async_save=True)
    loop.train(1, 8, lambda step: step % 2 or saver.save(step))
    runs = [saver.run_id]
    saver.flush()
    newest = tmp_path / "ckpt_dir0" / "test-1_8.ckpt"
    content = newest.read_bytes()
    newest.unlink()
    newest.write_bytes(content[:-9])
    assert resume(loop.parameters, tmp_path).step == Step(1, 6)
    loop.losses.clear()
    loop.train(7, STEPS, lambda step: step % 2 or saver.save(step))
    saver.flush()
    assert loop.losses == {step: loss for step, loss in whole.losses.items() if step > 6}
    assert values(loop) == values(whole)
    runs.append(saver.run_id)
    assert len(set(runs)) == 2
    resumed = Loop(seed=4)
    assert resume(resumed.parameters, tmp_path).step == Step(1, 12)
    assert values(resumed) == values(whole)


def test_epochs_are_those_that_the_loop_counts(tmp_path):
    loop = Loop()
    saver = SliceSaver(loop.parameters, f"{tmp_path}/ckpt_dir{{rank}}", "test")
    for epoch in (1, 2):
        for step in (1, 2, 3):
            loop.step(step)
        saver.save(3, epoch=epoch)
    assert resume(Loop().parameters, tmp_path).step == Step(2, 3)
    assert {path.name for path in (tmp_path / "ckpt_dir0").glob("*.ckpt")} == {"test-1_3.ckpt", "test-2_3.ckpt"}


def test_nothing_to_resume_from(tmp_path):
    with pytest.raises(MissingInputError, match="no rank has a slice"):
        resume(Loop().parameters, tmp_path)
    loop = Loop()
    before = values(loop)
    assert resume(loop.parameters, tmp_path, fresh="start").step is None
    assert values(loop) == before


def test_the_optimizer_that_was_not_saved_is_missed(tmp_path, caplog):
    loop = Loop()
    SliceSaver(loop.parameters, f"{tmp_path}/ckpt_dir{{rank}}", "test")
    assert "optimizer" not in caplog.text
    SliceSaver(loop.network, f"{tmp_path}/ckpt_dir{{rank}}", "test").save(1)
    assert "rank 0: no optimizer is among the parameters" in caplog.text
    with pytest.raises(InputError, match=r"the slice lacks parameters .*global_step"):
        resume(loop.parameters, tmp_path)


def test_the_dataset_that_a_saver_was_given_is_compared(tmp_path, caplog):
    def samples(batch=2, shuffle=False):
        return ds.GeneratorDataset(np.zeros((8, 3), np.float32), ["x"], shuffle=shuffle).batch(batch)

    loop, dataset = Loop(), samples()
    batches = dataset.create_tuple_iterator(num_epochs=2)
    with SliceSaver(loop.parameters, f"{tmp_path}/ckpt_dir{{rank}}", "test", dataset=dataset) as saver:
        for step, _ in enumerate(itertools.chain(batches, batches), 1):
            loop.step(step)
            if step in (4, 6):
                saver.save(step)
    with pytest.raises(
        InputError, match=r"step 1_6.*an epoch of this dataset has 8 steps, and had 4.*or none to resume"
    ):
        resume(loop.parameters, tmp_path, dataset=samples(batch=1))
    with pytest.raises(InputError, match=r"the dataset is shuffled, and was not .* or go on without a dataset"):
        resume(loop.parameters, tmp_path, dataset=samples(shuffle=True))
    caplog.clear()
    assert resume(loop.parameters, tmp_path, dataset=samples()).step == Step(1, 6)
    assert [text for text in caplog.messages if "dataset" in text.replace(str(tmp_path), "")] == []
    assert resume(loop.parameters, tmp_path).step == Step(1, 6)


def test_steps_grow(tmp_path):
    saver = SliceSaver(Loop().parameters, f"{tmp_path}/ckpt_dir{{rank}}", "test")
    saver.save(5)
    with pytest.raises(UsageError, match="step 1_5 does not come behind step 1_5, which was saved last"):
        saver.save(5)
    saver.save(1, epoch=2)


@pytest.mark.parametrize(("step", "epoch"), [(0, None), (-1, 2), ("3", None), (2, 0), (1.5, None), (True, None)])
def test_a_step_that_is_none_is_refused(tmp_path, step, epoch):
    saver = SliceSaver(Loop().parameters, f"{tmp_path}/ckpt_dir{{rank}}", "test")
    with pytest.raises(UsageError, match=r"must be (a whole number|at least 1)"):
        saver.save(step, epoch)
