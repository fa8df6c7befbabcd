"""Loops without Model prove their samples by their own iterator, for all epochs or one an epoch."""

import numpy as np
import pytest

from ms_recover.errors import InputError

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import nn, value_and_grad  # noqa: E402

from ms_recover import SliceSaver, resume  # noqa: E402
from ms_recover.training import Resumption  # noqa: E402
from tests.support.sample_sources import CODE, STEPS, batches, other_contents, plain, write_files  # noqa: E402
from tests.support.trainings import files  # noqa: E402

EPOCHS = 3


@pytest.fixture(scope="module", autouse=True)
def mode():
    before, fast = ms.get_context("mode"), ds.config.get_fast_recovery()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)
    ds.config.set_fast_recovery(fast)
    ds.config.set_seed(5489)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


class Loop:
    """A loop of one column; `stop` crashes it behind a step."""

    def __init__(self, root, stop=None, every=4, keeps=True):
        self.network = nn.Dense(1, 1, ms.Tensor(np.full((1, 1), 0.5, np.float32)), "zeros")
        self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)
        self.gradients = value_and_grad(self.loss, None, self.optimizer.parameters)
        self.root, self.stop, self.every, self.keeps = root, stop, every, keeps
        self.losses = {}
        self.trained = [self.network, self.optimizer]

    def loss(self, x):
        x = x.reshape((-1, 1)) / 100
        return ((self.network(x) - 0.25 * x) ** 2).mean()

    def step(self, step, batch, saver):
        loss, gradients = self.gradients(*batch)
        self.optimizer(gradients)
        self.losses[step] = loss.asnumpy().tobytes()
        if step % self.every == 0:
            saver.save(step, batch=batch if self.keeps else None)
            self.run_id = saver.run_id

    def saver(self):
        return SliceSaver(self.trained, f"{self.root}/ckpt_dir{{rank}}", prefix="loop", keep=9)

    def one_iterator(self, dataset, proves=True, starts=False):
        """One iterator for all epochs, as docs/resume.md has it."""
        resumed = Resumption(None, None, None) if starts else resume(self.trained, self.root, fresh="start")
        done = resumed.step.step if resumed.step else 0
        dataset.set_init_step(max(done - 1, 0) if proves else done)
        iterator = dataset.create_tuple_iterator(num_epochs=EPOCHS)
        if proves:
            iterator = resumed.prove(iterator)
        step = done
        with self.saver() as saver:
            for _ in range(done // STEPS, EPOCHS):
                for batch in iterator:
                    step += 1
                    self.step(step, batch, saver)
                    if step == self.stop:
                        return self.losses
        return self.losses

    def one_an_epoch(self, dataset):
        """A new iterator for each epoch, as MindSpore's tutorials have it."""
        resumed = resume(self.trained, self.root, fresh="start")
        done = resumed.step.step if resumed.step else 0
        step = done
        with self.saver() as saver:
            for epoch in range(done // STEPS, EPOCHS):
                within = step % STEPS
                dataset.set_init_step(max(within - 1, 0))
                iterator = dataset.create_tuple_iterator(num_epochs=1)
                if within:
                    iterator = resumed.prove(iterator)
                for batch in iterator:
                    step += 1
                    self.step(step, batch, saver)
                    if step == self.stop:
                        return self.losses
                assert step == (epoch + 1) * STEPS
        return self.losses


def behind(losses, step):
    return {place: loss for place, loss in losses.items() if place > step}


@pytest.mark.parametrize("step", [4, 8, 12, 16, 20])
def test_one_iterator_for_all_epochs_goes_on_with_its_samples(tmp_path, folder, caplog, step):
    caplog.set_level("INFO", "ms_recover")
    for make in (lambda _: plain(), CODE["generator as a class attribute"]):
        root = tmp_path / str(id(make))
        ds.config.set_fast_recovery(make not in CODE.values())
        whole = Loop(root / "whole").one_iterator(batches(make, folder))
        Loop(root / "cut", stop=step + 1).one_iterator(batches(make, folder))
        assert Loop(root / "cut").one_iterator(batches(make, folder)) == behind(whole, step)
    assert caplog.text.count(": samples proven") == 2


@pytest.mark.parametrize("step", [4, 8, 12])
def test_one_iterator_an_epoch_goes_on_with_its_samples(tmp_path, folder, caplog, step):
    caplog.set_level("INFO", "ms_recover")
    whole = Loop(tmp_path / "whole").one_an_epoch(batches(lambda _: plain(), folder))
    Loop(tmp_path / "cut", stop=step + 1).one_an_epoch(batches(lambda _: plain(), folder))
    assert Loop(tmp_path / "cut").one_an_epoch(batches(lambda _: plain(), folder)) == behind(whole, step)
    assert caplog.text.count(": samples proven") == (step % STEPS != 0)
    if step % STEPS == 0:
        assert "samples not proven: nothing has called prove() of the resumption" in caplog.text


def test_a_loop_with_other_samples_is_refused_and_the_tree_is_as_before(tmp_path, folder, caplog):
    make = CODE["counts in a large dict"]
    ds.config.set_fast_recovery(True)
    Loop(tmp_path, stop=13).one_iterator(batches(make, folder))
    before = files(tmp_path)
    for again, said in (
        (make, r"step 1_12, drawn once more, is not the one that was trained.*set_fast_recovery\(False\)"),
        (lambda _: other_contents(), "column 1 has other values.*or go on with prove"),
    ):
        with pytest.raises(InputError, match=said):
            Loop(tmp_path).one_iterator(batches(again, folder))
        assert files(tmp_path) == before
    dataset = batches(lambda _: other_contents(), folder)
    resumed = resume(Loop(tmp_path).trained, tmp_path)
    dataset.set_init_step(11)
    iterator = resumed.prove(dataset.create_tuple_iterator(num_epochs=EPOCHS), allow_dataset_change=True)
    assert "training goes on with other samples" in caplog.text
    assert len([*iterator]) == STEPS // 2


def test_a_loop_that_is_refused_leaves_a_chosen_run_aside(tmp_path, folder):
    loop = Loop(tmp_path, stop=17)
    loop.one_iterator(batches(lambda _: plain(), folder))
    abandoned = loop.run_id
    Loop(tmp_path, stop=9).one_iterator(batches(lambda _: plain(), folder), starts=True)
    before = files(tmp_path)
    assert any(name.endswith("loop-1_16.ckpt.superseded") for name in before)
    with pytest.raises(InputError, match="step 1_16, drawn"):
        chosen(tmp_path, abandoned, batches(lambda _: other_contents(), folder))
    assert files(tmp_path) == before
    chosen(tmp_path, abandoned, batches(lambda _: plain(), folder))
    assert any(name.endswith("loop-1_16.ckpt") for name in files(tmp_path))


def chosen(root, run, dataset):
    """Resume a run behind 16 steps, and prove its samples."""
    resumed = resume(Loop(root).trained, root, run=run)
    dataset.set_init_step(15)
    resumed.prove(dataset.create_tuple_iterator(num_epochs=EPOCHS))


def test_a_loop_that_proves_nothing_has_a_line_that_says_so(tmp_path, folder, caplog):
    caplog.set_level("INFO", "ms_recover")
    ds.config.set_fast_recovery(True)
    make = plain
    Loop(tmp_path / "none", stop=13, keeps=False).one_iterator(batches(lambda _: make(), folder))
    Loop(tmp_path / "none", keeps=False).one_iterator(batches(lambda _: make(), folder), proves=False)
    assert caplog.text.count("samples not proven: the loop gives save() no batch, see SliceSaver.save") == 1
    Loop(tmp_path / "kept", stop=13).one_iterator(batches(lambda _: make(), folder))
    Loop(tmp_path / "kept").one_iterator(batches(lambda _: make(), folder), proves=False)
    assert caplog.text.count("samples not proven: nothing has called prove() of the resumption") == 1


def resumed_at(loop, dataset):
    resumed = resume(loop.trained, loop.root)
    dataset.set_init_step(resumed.step.step - 1)
    return resumed, dataset.create_tuple_iterator(num_epochs=EPOCHS)


def test_two_loops_that_are_resumed_together_prove_each_their_own(tmp_path, folder, capsys):
    """Such as two networks of one program; the second one must neither prove nor forget the first."""
    ds.config.set_fast_recovery(True)
    for name in ("one", "two"):
        Loop(tmp_path / name, stop=9).one_iterator(batches(lambda _: plain(), folder), starts=True)
    one, two = Loop(tmp_path / "one"), Loop(tmp_path / "two")
    first, first_batches = resumed_at(one, batches(lambda _: plain(), folder))
    second, second_batches = resumed_at(two, batches(lambda _: other_contents(), folder))
    capsys.readouterr()
    first.prove(first_batches)
    said = capsys.readouterr().err
    assert said.count("resumed from step") == 1
    assert "weights, optimizer and samples proven" in said
    with pytest.raises(InputError, match="column 1 has other values"):
        second.prove(second_batches)
    assert "resumed from step" not in capsys.readouterr().err


def test_other_samples_are_refused_behind_a_save_that_came_first(tmp_path, folder):
    ds.config.set_fast_recovery(True)
    Loop(tmp_path, stop=9).one_iterator(batches(lambda _: plain(), folder), starts=True)
    loop = Loop(tmp_path)
    resumed, iterator = resumed_at(loop, batches(lambda _: other_contents(), folder))
    with loop.saver() as saver:
        saver.save(resumed.step.step + 1)
        with pytest.raises(InputError, match="column 1 has other values"):
            resumed.prove(iterator)
