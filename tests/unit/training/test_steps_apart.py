"""Ranks whose epochs have unequal numbers of steps, and which save at their ends, are warned."""

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.model.steps import Step  # noqa: E402
from ms_recover.training import SliceSaver, slice_saver  # noqa: E402
from ms_recover.training.deciding.rotation import NO_STEP, steps_apart  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402


def saved(tmp_path, monkeypatch, steps, async_save):
    """Have two ranks save at the ends of three epochs with so many steps each."""
    made = []
    for job in thread_jobs(2):
        monkeypatch.setattr(slice_saver, "current_job", lambda job=job: job)
        weight = ms.Parameter(ms.Tensor(np.ones(4, np.float32)), name="weight")
        made.append(SliceSaver([weight], str(tmp_path / "ckpt_dir{rank}"), group=[0, 1], async_save=async_save))

    def work(rank):
        for epoch in (1, 2, 3):
            made[rank].save(steps[rank], epoch=epoch)
        made[rank].flush()

    assert on_all(2, work) == [None, None]


@pytest.mark.parametrize("async_save", [False, True], ids=["sync", "async"])
def test_epochs_of_unequal_length_are_named_at_the_second_save_at_the_latest(tmp_path, monkeypatch, caplog, async_save):
    saved(tmp_path, monkeypatch, (4, 3), async_save)
    (said,) = [one.getMessage() for one in caplog.records if "different steps" in one.getMessage()]
    assert said.startswith(
        "rank 0: ranks save different steps (step 1_4 of rank(s) 0; step 1_3 of rank(s) 1), so that no step is that of "
        "all ranks and none can be resumed"
    )
    assert "save_steps" in said


def test_epochs_of_equal_length_are_not(tmp_path, monkeypatch, caplog):
    saved(tmp_path, monkeypatch, (4, 4), False)
    assert "different steps" not in caplog.text


def test_a_rank_that_has_committed_nothing_yet_is_no_cause():
    assert steps_apart([Step(1, 4), NO_STEP]) is None
    assert steps_apart([Step(1, 4)] * 3) is None
