"""Jobs of several ranks drawn at random are cut, lose something and resume: equal to the bit, or refused or warned of
with the reason, on all ranks and at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.examples import examples
from tests.support.random_rank_jobs import draw_job

REPOSITORY = Path(__file__).parents[2]
NUMBERS = (9107, 9122, 9069, 9163)
"""A killed rank with a seed and a lost folder of its own, epochs of unequal length, noise in a loop, and a bank whose
folder is lost beside MindSpore's callback. With MS_RECOVER_FIRST as many as MS_RECOVER_EXAMPLES says, from there on."""


def test_a_number_is_one_job():
    assert [draw_job(number).digest for number in range(40)] == [draw_job(number).digest for number in range(40)]
    assert len({draw_job(number).base for number in range(40)}) == 10
    assert all(draw_job(number, 4).base.ranks == 4 for number in range(8))


@pytest.mark.mindspore
def test_no_job_of_ranks_goes_on_otherwise_in_silence(tmp_path):
    pytest.importorskip("mindspore")
    count = examples(len(NUMBERS))
    first = os.environ.get("MS_RECOVER_FIRST")
    chosen = ["--numbers", *map(str, NUMBERS)] if first is None else ["--first", first, "--count", str(count)]
    count = len(NUMBERS) if first is None else count
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.rank_job_runs", tmp_path, *chosen],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"},
        capture_output=True,
        text=True,
        timeout=150 * count,
        check=False,
    )
    assert process.returncode == 0, f"{process.stdout}\n{process.stderr[-4000:]}"
    assert process.stdout.startswith(f"{count} jobs"), process.stdout
