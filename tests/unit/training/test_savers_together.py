"""Savers of one training in one directory, and where one training ends and the next begins."""

import os

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import UsageError
from ms_recover.execution.directory_lock import is_held
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.training import SliceSaver, resume  # noqa: E402


class Loop:
    def __init__(self, root):
        self.directory = f"{root}/ckpt_dir{{rank}}"
        self.root = root
        self.network = nn.Dense(3, 2, ms.Tensor(np.zeros((2, 3), np.float32)), "zeros")
        self.optimizer = nn.Momentum(self.network.trainable_params(), 0.1, 0.9)

    def saver(self, **options):
        return SliceSaver([self.network, self.optimizer], self.directory, "test", **options)

    def step(self, number):
        self.network.weight.set_data(ms.Tensor(np.full((2, 3), number, np.float32)))

    def train(self, first, last, often, seldom, every=4):
        for number in range(first, last + 1):
            self.step(number)
            often.save(number)
            if number % every == 0:
                seldom.save(number)
        often.flush()
        seldom.flush()

    def resume(self, **options):
        resumed = resume([self.network, self.optimizer], self.root, **options)
        assert self.network.weight.asnumpy().reshape(-1)[0] == resumed.step.step
        return str(resumed.step)


@pytest.fixture
def loop(tmp_path):
    return Loop(tmp_path)


def saved(root):
    found = (root / "ckpt_dir0").glob(f"*.ckpt{MANIFEST_SUFFIX}")
    return sorted((path.name.partition(".")[0] for path in found), key=lambda name: (len(name), name))


@pytest.mark.parametrize("async_save", [False, True])
def test_each_saver_keeps_its_own(loop, tmp_path, async_save):
    how = {"async_save": async_save}
    often, seldom = loop.saver(keep=2, **how), loop.saver(keep=20, **how)
    loop.train(1, 10, often, seldom)
    assert saved(tmp_path) == ["test-1_4", "test-1_8", "test-1_9", "test-1_10"]
    assert often.run_id == seldom.run_id
    assert {check.status for check in api.verify(api.scan(tmp_path)).checks} == {"sound"}


def test_a_saver_that_has_not_begun_loses_nothing_of_earlier_runs(loop, tmp_path):
    loop.train(1, 10, loop.saver(keep=2), loop.saver(keep=20))
    assert loop.resume() == "1_10"
    often, seldom = loop.saver(keep=2), loop.saver(keep=20)
    loop.train(11, 14, often, seldom)
    assert saved(tmp_path)[:2] == ["test-1_4", "test-1_8"]
    assert saved(tmp_path)[-3:] == ["test_1-1_12", "test_1-1_13", "test_1-1_14"]
    assert often.run_id == seldom.run_id
    manifest = read_manifest(tmp_path / "ckpt_dir0" / f"test_1-1_14.ckpt{MANIFEST_SUFFIX}")
    assert manifest.training.resumed_from.step == Step(1, 10)


def test_a_training_behind_another_one_in_the_same_process_is_a_run_of_its_own(loop, tmp_path):
    """Although its first step is not smaller."""
    first = loop.saver(keep=2)
    loop.step(5)
    first.save(5)
    ran = first.run_id
    del first
    loop.step(50)
    second = loop.saver(keep=2)
    second.save(5)
    assert second.run_id != ran
    assert saved(tmp_path) == ["test_1-1_5"]
    assert api.plan(api.scan(tmp_path)).run_id == second.run_id


def test_a_training_that_goes_back_is_a_run_of_its_own_while_the_saver_before_is_there(loop, tmp_path):
    first, second = loop.saver(), loop.saver()
    first.save(5)
    second.save(3)
    assert first.run_id != second.run_id
    assert (tmp_path / "ckpt_dir0" / "test-1_5.ckpt.superseded").exists()


def test_the_end_of_a_saver_gives_the_directory_back(loop, tmp_path):
    with loop.saver() as one:
        one.save(1)
        assert is_held(str(tmp_path / "ckpt_dir0"))
    assert not is_held(str(tmp_path / "ckpt_dir0"))
    assert sorted(os.listdir(tmp_path / "ckpt_dir0")) == [
        "group_info.pb",
        "test-1_1.ckpt",
        f"test-1_1.ckpt{MANIFEST_SUFFIX}",
        f"test-1_1.ckpt{STATE_SUFFIX}",
    ]


@pytest.mark.parametrize("keep_runs", [0, True, "2", 1.0])
def test_a_wrong_number_of_runs_is_refused(loop, keep_runs):
    with pytest.raises(UsageError, match="keep_runs="):
        loop.saver(keep_runs=keep_runs)
