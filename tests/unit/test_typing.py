"""The public names have types for those who check theirs."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[2]

SCRIPT = """
from ms_recover import SliceCheckpoint, apply, plan, scan
from ms_recover.model.options import PlanOptions

inventory = scan("/checkpoints")
made = plan(inventory, PlanOptions(quick=True))
reveal_type(inventory)
reveal_type(made)
reveal_type(apply(made, jobs=2))
reveal_type(SliceCheckpoint)
"""

WRONG = """
from ms_recover import nonsense, plan

plan("/checkpoints")
"""


def check(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    return done.returncode, done.stdout


def test_a_script_with_the_public_names_is_typed_under_strict(tmp_path):
    code, out = check(tmp_path, SCRIPT)
    assert code == 0, out
    revealed = [line.split('"')[1] for line in out.splitlines() if "Revealed type" in line]
    assert revealed[:3] == [
        "ms_recover.model.inventory.Inventory",
        "ms_recover.model.plan.Plan",
        "ms_recover.model.outcome.Outcome",
    ]
    assert revealed[3].startswith("def (directory:")
    assert "-> ms_recover.training.slice_checkpoint.SliceCheckpoint" in revealed[3]
    assert "Any" not in "".join(revealed[:3])


def test_names_that_do_not_exist_and_wrong_arguments_are_reported(tmp_path):
    code, out = check(tmp_path, WRONG)
    assert code == 1
    assert 'has no attribute "nonsense"' in out
    assert 'Argument 1 to "plan"' in out
