"""A tree that may only be read: training resumes from it where it saves elsewhere."""

import os

import pytest

from ms_recover.errors import StorageError

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from ms_recover.model.steps import Step  # noqa: E402
from ms_recover.training import SliceSaver, recover_train, resume  # noqa: E402
from ms_recover.training.run import forget_resumed  # noqa: E402
from tests.support.trainings import Losses, checkpoint, files, make_dataset, make_model, values  # noqa: E402
from tests.support.unprivileged import NOBODY, as_nobody, close_to_all, open_to_all, reachable_folder  # noqa: E402


@pytest.fixture
def trees():
    """A tree whose newest slice, of step 1_8, is damaged, and which may only be read; and an empty one."""
    with reachable_folder() as top:
        old, new = top / "old", top / "new"
        make_model().train(1, make_dataset(), callbacks=[checkpoint(old, 2)])
        newest = old / "ckpt_dir0" / "test-1_8.ckpt"
        damaged = bytearray(newest.read_bytes())
        damaged[-3] ^= 1
        newest.chmod(0o600)
        newest.write_bytes(damaged)
        new.mkdir()
        if os.geteuid() == 0:
            os.chown(new, NOBODY, NOBODY)
        close_to_all(old)
        try:
            with as_nobody():
                yield old, new
        finally:
            open_to_all(old)
            forget_resumed()  # as a process of its own would


def test_a_tree_that_may_only_be_read_with_its_newest_slice_damaged_resumes_one_step_back(trees, caplog):
    old, new = trees
    whole, losses = Losses(), Losses()
    alone, model = make_model(), make_model()
    alone.train(2, make_dataset(), callbacks=[whole])
    before = files(old)
    resumed = recover_train(model, make_dataset(), old, 2, [losses, checkpoint(new, 2)])
    assert resumed.step == Step(1, 6)
    assert losses.seen == {step: loss for step, loss in whole.seen.items() if step > 6}
    assert values(model) == values(alone)
    assert files(old) == before
    assert caplog.text.count(f"1 slices that are newer than step 1_6 stay under {old}, which may only be read") == 1
    assert recover_train(make_model(), make_dataset(), new, 2).step == Step(2, 8)


def test_a_loop_resumes_from_a_tree_that_may_only_be_read_one_step_back(trees):
    old, new = trees
    before = files(old)
    network = make_model().train_network
    assert resume([network], old).step == Step(1, 6)
    with SliceSaver([network], f"{new}/ckpt_dir{{rank}}", "test") as saver:
        saver.save(7)
    assert files(old) == before
    assert resume([network], new).step == Step(1, 7)


def test_a_saver_that_writes_to_a_tree_that_may_only_be_read_trains_nothing(trees):
    old, _ = trees
    before, losses = files(old), Losses()
    with pytest.raises(StorageError, match="permission denied"):
        recover_train(make_model(), make_dataset(), old, 2, [losses, checkpoint(old, 2)])
    assert losses.seen == {}
    assert files(old) == before
