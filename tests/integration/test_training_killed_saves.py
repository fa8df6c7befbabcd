"""A resumed training is killed while it saves first: what goes on later has the state of the slice, or an older one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from tests.support.killed_saves import CUT  # noqa: E402

REPOSITORY = Path(__file__).parents[2]


def test_an_uncommitted_slice_is_never_resumed_without_its_state(tmp_path):
    """Killed before every call of a resumed run's first save, the rename of the slice included, and behind the last."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_saves", tmp_path],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    said = json.loads(process.stdout.splitlines()[-1])
    renamed = [call.split()[1] for call in said["calls"] if call.startswith("rename")]
    assert len(renamed) == 3
    assert renamed[2] == ".saving.ms_recover.tmp/test_1-2_2.ckpt"
    assert all(one["exact"] for one in said["found"]), said
    assert {one["begun"] for one in said["found"][:-1]} == {CUT - 1}
    assert said["found"][-1]["begun"] == CUT + 1
    assert [one["said"] for one in said["found"]] == [[]] * len(said["found"])
    assert len(said["found"]) > 10
