"""Two ranks are killed again and again, abandoned, and started twice in one folder: what is resumed is the same run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")
if not os.environ.get("MS_RECOVER_EXAMPLES"):
    pytest.skip("kills over two ranks take minutes: run with MS_RECOVER_EXAMPLES", allow_module_level=True)

REPOSITORY = Path(__file__).parents[2]
KILLS = 40 if "MS_RECOVER_EXAMPLES" in os.environ else 2
AT_ONCE = 10
SEED = int(os.environ.get("MS_RECOVER_FIRST", "1"))


def run(folder, what, kills, seed):
    """Run jobs in one process with its children; return what came of them."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_jobs", folder, what, str(kills), str(seed)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"},
        capture_output=True,
        text=True,
        timeout=590,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    return run(tmp_path_factory.mktemp("jobs"), "kill,abandon,share", min(KILLS, AT_ONCE), SEED)


def check_kills(found, kills):
    assert found["wrong"] == [], found
    assert found["kills"] == kills
    assert found["done"] == found["jobs"]


def test_what_was_killed_goes_on_as_the_same_run(jobs):
    """Resumed by new processes, and within them behind errors that all ranks meet."""
    check_kills(jobs["kill"], min(KILLS, AT_ONCE))


@pytest.mark.parametrize("part", range(1, -(-KILLS // AT_ONCE)))
def test_many_that_were_killed_go_on_as_the_same_run(tmp_path, part):
    check_kills(run(tmp_path, "kill", AT_ONCE, SEED + part)["kill"], AT_ONCE)


def test_an_abandoned_run_is_not_resumed(jobs):
    found = jobs["abandon"]
    assert found["left"][0] > 9
    assert found["done"], found["said"]
    assert found["problem"] is None
    assert all(1 < step < 10 for step in found["begun"]), found


def test_a_second_job_in_the_folder_ends_with_the_reason_and_harms_nobody(jobs):
    found = jobs["share"]
    assert found["done"], found
    assert found["problem"] is None
    assert found["still"], found
    assert not found["second"]
    assert found["trained"] == [0, 0]
    assert "another training saves to" in found["said"], found["said"]
