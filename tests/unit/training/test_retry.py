"""A loop that failed, and is resumed in the same process while its last slice is still being written."""

import threading

import numpy as np
import pytest

from ms_recover.model.steps import Step

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.training import SliceSaver, resume, slice_saver  # noqa: E402


def test_a_resume_waits_for_the_write_in_flight(tmp_path, monkeypatch):
    go, real = threading.Event(), slice_saver.commit_staged

    def slowly(staged, training):
        assert go.wait(20)
        return real(staged, training)

    monkeypatch.setattr(slice_saver, "commit_staged", slowly)
    weight = ms.Parameter(ms.Tensor(np.full((4,), 7, np.float32)), name="weight")
    saver = SliceSaver([weight], str(tmp_path / "ckpt_dir{rank}"), async_save=True)
    saver.save(1)
    weight.asnumpy()[...] = 9
    threading.Timer(0.3, go.set).start()
    assert resume([weight], tmp_path).step == Step(1, 1)
    assert (weight.asnumpy() == 7).all()
    saver.flush()
    saver.release()
