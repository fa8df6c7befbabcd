"""LossMonitor in a resumed training."""

import re

import pytest

from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from mindspore.train import LossMonitor  # noqa: E402

from ms_recover.training import SliceCheckpoint, recover_train  # noqa: E402
from ms_recover.training.continuation import last_printed  # noqa: E402
from tests.support.small_training import CrashError, Losses, make_dataset, make_model  # noqa: E402


@pytest.mark.parametrize("every", [1, 2, 3, 5, 8, 20])
@pytest.mark.parametrize("stride", [1, 4, 8])
def test_the_last_printed_step_is_that_of_an_uninterrupted_training(every, stride):
    last = 0
    for done in range(0, 100, stride):
        if done - last >= every:  # as LossMonitor decides
            last = done
        assert last_printed(done, every, stride) == last


@pytest.mark.parametrize("state", ["kept", "lost"])
def test_a_resumed_training_prints_the_steps_of_an_uninterrupted_one(tmp_path, capsys, state):
    def printed():
        return re.findall(r"epoch: (\d+) step: (\d+), loss is (\S+)", capsys.readouterr().out)

    make_model().train(2, make_dataset(), callbacks=[LossMonitor(3)])
    whole = printed()
    saver = SliceCheckpoint(f"{tmp_path}/ckpt_dir{{rank}}", prefix="t", save_steps=4)
    with pytest.raises(CrashError):
        make_model().train(2, make_dataset(), callbacks=[LossMonitor(3), saver, Losses(crash=4)])
    if state == "lost":
        (tmp_path / "ckpt_dir0" / "t-1_4.ckpt.state").unlink()
    before = printed()
    assert recover_train(make_model(), make_dataset(), tmp_path, 2, [LossMonitor(3)]).step == Step(1, 4)
    assert before + printed() == whole
    assert [int(step) for epoch, step, _ in whole if epoch == "1"] == [3, 6]
