"""Trainings drawn at random crash and resume: equal to the bit, or refused or warned of with the reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.examples import examples

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

REPOSITORY = Path(__file__).parents[2]
EXACT = REPOSITORY / "tests/data/exact_programs.json"
"""Programs that an earlier version resumed exactly, which none may refuse."""
AT_ONCE = 10
FIRST = 5000
"""Number of the first program; MS_RECOVER_FIRST begins elsewhere, MS_RECOVER_EXAMPLES tries more than 20."""


@pytest.mark.parametrize("part", range(-(-examples(2 * AT_ONCE) // AT_ONCE)))
def test_no_program_goes_on_with_another_run_in_silence(tmp_path, part):
    first = int(os.environ.get("MS_RECOVER_FIRST", FIRST)) + part * AT_ONCE
    process = subprocess.run(
        [sys.executable, "-m", "tests.support.program_runs", tmp_path, "--first", str(first)]
        + ["--count", str(AT_ONCE), "--exact", EXACT],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GLOG_v": "3"},
        capture_output=True,
        text=True,
        timeout=570,
        check=False,
    )
    assert process.returncode == 0, f"{process.stdout}\n{process.stderr[-4000:]}"
    assert process.stdout.startswith(f"{AT_ONCE} programs"), process.stdout
