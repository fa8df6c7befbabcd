"""What stands without MindSpore: each test file is collected, and what decides about a resume is imported."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
DECIDING = TESTS.parent / "ms_recover" / "training" / "deciding"


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_mindspore_is_asked_for_before_it_is_imported(path):
    asked = False
    for statement in ast.parse(path.read_text()).body:
        asked = asked or "importorskip('mindspore" in ast.unparse(statement)
        names = [one.name for one in statement.names] if isinstance(statement, ast.Import) else []
        names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
        assert asked or not any(name.partition(".")[0] == "mindspore" for name in names), f"line {statement.lineno}"


DECIDERS = """
    background batches cut_steps found_state headline held_directories held_slices host in_process layouts
    manifest_queue number_of_ranks other_world own_steps proof rank_facts rank_local resume_options run run_directory
    run_state same_ranks search set_aside state_values tree_view
"""
"""Modules of ``ms_recover.training`` whose tests belong to the quick lane, beside all of its ``deciding``."""

IMPORT = """
import importlib, sys
sys.modules["mindspore"] = None  # as where it is not installed
for name in sys.argv[1:]:
    importlib.import_module(f"ms_recover.training.{name}")
"""


@pytest.mark.processes
def test_what_decides_about_a_resume_needs_no_mindspore():
    deciding = [f"deciding.{path.stem}" for path in sorted(DECIDING.glob("[!_]*.py"))]
    command = [sys.executable, "-c", IMPORT, *deciding, *DECIDERS.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
