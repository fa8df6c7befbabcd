"""Trainings drawn at random crash and resume: equal to the bit, or refused or warned of with the reason."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.examples import examples

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

REPOSITORY = Path(__file__).parents[2]
AT_ONCE = 10
FIRST = 1000
"""Number of the first program; MS_RECOVER_FIRST begins elsewhere."""


def run_programs(folder, numbers):
    """Run programs in one process with its children; return what came of each."""
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.program_runs", folder, *map(str, numbers)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"},
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    found = [json.loads(line) for line in process.stdout.splitlines() if line.startswith('{"number"')]
    assert [one["number"] for one in found] == list(numbers)
    return found


@pytest.mark.parametrize("part", range(-(-examples(AT_ONCE) // AT_ONCE)))
def test_no_program_goes_on_with_another_run_in_silence(tmp_path, part):
    first = int(os.environ.get("MS_RECOVER_FIRST", FIRST)) + part * AT_ONCE
    found = run_programs(tmp_path, range(first, first + AT_ONCE))
    wrong = [one for one in found if not one["allowed"]]
    assert wrong == [], "\n".join(f"{one['verdict']}: {one}" for one in wrong)
    verdicts = Counter(one["verdict"].partition(":")[0] for one in found)
    assert verdicts["equal"] >= AT_ONCE // 3, verdicts
