"""The samples of a resumed training: the last batch is drawn once more and compared, whatever makes it."""

import numpy as np
import pytest

from ms_recover.errors import InputError

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402
from mindspore import nn  # noqa: E402
from mindspore.dataset import vision  # noqa: E402
from mindspore.train import Callback, Model  # noqa: E402

from ms_recover.training import dataset_reads, recover_train  # noqa: E402
from tests.support.sample_sources import (  # noqa: E402
    CODE,
    READERS,
    ROWS,
    STEPS,
    batches,
    other_contents,
    plain,
    write_files,
)
from tests.support.trainings import EPOCHS, Losses, StoppedError, checkpoint, files  # noqa: E402


class Line(nn.Cell):
    """A loss of one column."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(1, 1, ms.Tensor(np.full((1, 1), 0.5, np.float32)), "zeros")

    def construct(self, x):
        x = x.reshape((-1, 1)).astype(ms.float32) / 100
        return ((self.dense(x) - 0.25 * x) ** 2).mean()


def make_model():
    network = Line()
    return Model(network, optimizer=nn.Momentum(network.trainable_params(), 0.1, 0.9))


@pytest.fixture(scope="module", autouse=True)
def mode():
    before, fast = ms.get_context("mode"), ds.config.get_fast_recovery()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    yield
    ms.set_context(mode=before)
    ds.config.set_fast_recovery(fast)
    ds.config.set_seed(5489)


@pytest.fixture(autouse=True)
def fast():
    ds.config.set_fast_recovery(True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    write_files(folder)
    return folder


def train(make, folder):
    """Return the losses of an undisturbed training."""
    losses = Losses()
    make_model().train(EPOCHS, batches(make, folder), callbacks=[losses])
    return losses.seen


def crash(make, folder, root, behind):
    """Train until a crash behind a saved step; return the id of the run."""
    saver = checkpoint(root, save_steps=4)
    with pytest.raises(StoppedError):
        make_model().train(EPOCHS, batches(make, folder), callbacks=[saver, Losses(stop_at=behind + 1)])
    return saver.run_id


def resume(make, folder, root, **options):
    losses = Losses()
    callbacks = [losses, checkpoint(root, save_steps=4)]
    recover_train(make_model(), batches(make, folder), root, EPOCHS, callbacks, **options)
    return losses.seen


def behind(losses, step):
    return {place: loss for place, loss in losses.items() if place > step}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("step", [4, 8, 12, 16, 20])
def test_a_reader_that_shuffles_with_a_seed_goes_on_with_its_samples(tmp_path, folder, caplog, name, step):
    """From the second epoch on MindSpore's fast recovery gives others, which is seen: they are read without it."""
    make = READERS[name]
    whole = train(make, folder)
    crash(make, folder, tmp_path, step)
    assert resume(make, folder, tmp_path) == behind(whole, step)
    assert ("fast recovery gives other samples (column " in caplog.text) is (step > STEPS)
    assert ds.config.get_fast_recovery()


@pytest.mark.parametrize("name", CODE)
def test_what_code_keeps_between_samples_is_proven_or_refused(tmp_path, folder, caplog, name):
    make, step = CODE[name], 12
    whole = train(make, folder)
    crash(make, folder, tmp_path, step)
    before = files(tmp_path)
    with pytest.raises(InputError) as refused:
        resume(make, folder, tmp_path)
    for text in (
        "step 2_4, ",
        "drawn once more, is not the one that was trained: column 'x' has other values. Possible causes: ",
        "its own code (",
        "Start again with mindspore.dataset.config.set_fast_recovery(False) before the dataset is made",
        "or go on with allow_dataset_change=True. Nothing was trained, and the tree is as before",
    ):
        assert text in str(refused.value), text
    assert files(tmp_path) == before
    ds.config.set_fast_recovery(False)
    assert resume(make, folder, tmp_path) == behind(whole, step)
    assert "other samples" not in caplog.text


def test_behind_an_epoch_its_last_batch_is_drawn_and_compared(tmp_path, folder, caplog):
    caplog.set_level("INFO", "ms_recover")
    make = CODE["counts in a large array"]
    whole = train(make, folder)
    crash(make, folder, tmp_path, 16)
    with pytest.raises(InputError, match="step 2_8, drawn once more, is not the one that was trained"):
        resume(make, folder, tmp_path)
    ds.config.set_fast_recovery(False)
    assert resume(make, folder, tmp_path) == behind(whole, 16)
    assert "samples proven (by the last batch of the epoch before, which was read for it)" in caplog.text


def flipped(_):
    """Return samples that MindSpore alone turns around at random, in columns of 2."""
    values = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2, 1, 1)
    return ds.NumpySlicesDataset(values, ["x"], shuffle=True).map(vision.RandomVerticalFlip(0.5), ["x"])


@pytest.mark.parametrize("step", [4, 8, 12])
def test_random_operations_of_mindspore_go_on_without_fast_recovery(tmp_path, folder, caplog, step):
    whole = train(flipped, folder)
    crash(flipped, folder, tmp_path, step)
    assert resume(flipped, folder, tmp_path) == behind(whole, step)
    assert "fast recovery does not repeat the random operations on samples: they are read once more" in caplog.text


def test_other_contents_of_the_same_size_are_refused_or_trained_on_with_a_warning(tmp_path, folder, caplog):
    crash(lambda _: plain(), folder, tmp_path, 12)
    before = files(tmp_path)
    for fast in (True, False):
        ds.config.set_fast_recovery(fast)
        with pytest.raises(InputError, match=r"step 2_4, drawn .*the contents of its source have changed"):
            resume(lambda _: other_contents(), folder, tmp_path)
        assert files(tmp_path) == before
    assert sorted(resume(lambda _: other_contents(), folder, tmp_path, allow_dataset_change=True)) == [*range(13, 25)]
    assert "training goes on with other samples: the batch of step 2_4" in caplog.text


def test_nothing_is_renamed_or_brought_back_where_the_samples_are_others(tmp_path, folder):
    """Newer slices of the run, and those of an abandoned one that is chosen, which lie aside."""
    make, other = (lambda _: plain()), (lambda _: other_contents())
    abandoned = crash(make, folder, tmp_path, 16)
    crash(make, folder, tmp_path, 8)
    before = files(tmp_path)
    assert any(name.endswith("test-2_8.ckpt.superseded") for name in before)
    for options, said in (({"step": "1_4"}, "step 1_4, drawn"), ({"run": abandoned}, "step 2_8, drawn")):
        with pytest.raises(InputError, match=said):
            resume(other, folder, tmp_path, **options)
        assert files(tmp_path) == before
    resume(make, folder, tmp_path, run=abandoned)
    assert any(name.endswith("test-2_8.ckpt") for name in files(tmp_path))


class Touching(Callback):
    """Changes the batch before the step is trained, in its own memory."""

    def on_train_step_begin(self, run_context):
        (x,) = run_context.original_args().train_dataset_element
        x.copy_(x * 2)


def test_a_batch_that_a_callback_changes_is_compared_as_the_dataset_gave_it(tmp_path, folder):
    def training(root, stop=None):
        losses = Losses(stop)
        return batches(lambda _: plain(), folder), losses, [Touching(), losses, checkpoint(root, save_steps=4)]

    dataset, whole, callbacks = training(tmp_path / "whole")
    make_model().train(EPOCHS, dataset, callbacks=callbacks)
    dataset, _, callbacks = training(tmp_path / "cut", stop=13)
    with pytest.raises(StoppedError):
        make_model().train(EPOCHS, dataset, callbacks=callbacks)
    dataset, losses, callbacks = training(tmp_path / "cut")
    recover_train(make_model(), dataset, tmp_path / "cut", EPOCHS, callbacks)
    assert losses.seen == behind(whole.seen, 12)


def test_the_position_counts_what_was_drawn_not_what_names_say(tmp_path, folder):
    """A training that begins with a later epoch draws the first batches of its dataset."""
    make, whole = CODE["counts in a large dict"], Losses()
    ds.config.set_fast_recovery(False)
    make_model().train(5, batches(make, folder), callbacks=[whole], initial_epoch=2)
    with pytest.raises(StoppedError):
        callbacks = [checkpoint(tmp_path, save_steps=4), Losses(stop_at=13)]
        make_model().train(5, batches(make, folder), callbacks=callbacks, initial_epoch=2)
    assert [name for name in files(tmp_path) if name.endswith("test-4_4.ckpt")]
    losses = Losses()
    resumed = recover_train(make_model(), batches(make, folder), tmp_path, 5, [losses])
    assert (str(resumed.step), losses.seen) == ("4_4", behind(whole.seen, 12))


def test_samples_that_nothing_can_compare_are_named(tmp_path, folder, caplog):
    """A shuffle without a seed, and slices that state no batch."""
    caplog.set_level("INFO", "ms_recover")

    def unseeded(_):
        ds.config.set_seed(5489)
        return plain()

    (tmp_path / "unseeded").mkdir()
    crash(unseeded, folder, tmp_path / "unseeded", 12)
    assert sorted(resume(unseeded, folder, tmp_path / "unseeded")) == [*range(13, 25)]
    assert "samples not proven: the dataset is shuffled without a seed" in caplog.text
    (tmp_path / "lost").mkdir()
    crash(lambda _: plain(), folder, tmp_path / "lost", 12)
    (state,) = (tmp_path / "lost" / "ckpt_dir0").glob("test-2_4*.state")
    state.unlink()
    resume(lambda _: plain(), folder, tmp_path / "lost")
    assert "samples not proven: the state of the training is lost" in caplog.text


def test_a_batch_is_digested_where_a_save_falls_due(tmp_path, folder, monkeypatch):
    """And at the end of an epoch, which may be that of the training; of one that begins anew the first batch, too."""
    digested, real = [], dataset_reads.digest_batch
    monkeypatch.setattr(dataset_reads, "digest_batch", lambda batch: digested.append(batch) or real(batch))
    make_model().train(1, batches(lambda _: plain(), folder), callbacks=[checkpoint(tmp_path, 4)])
    assert len(digested) == 3
    digested.clear()
    recover_train(make_model(), batches(lambda _: plain(), folder), tmp_path, 2, [checkpoint(tmp_path, 4)])
    assert len(digested) == 2
    digested.clear()
    recover_train(make_model(), batches(lambda _: plain(), folder), tmp_path, 3, [checkpoint(tmp_path, 100)])
    assert len(digested) == 1
