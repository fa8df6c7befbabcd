"""A linter keeps the walls, not memory."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "ms_recover").rglob("*.py"))


@pytest.mark.processes
def test_import_linter_contracts_hold():
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_outgrows_its_name(module):
    assert len(module.read_text().splitlines()) <= 600


def names_of(module):
    """Return the names that a module defines or imports, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.alias)):
            found.add(getattr(node, "asname", None) or node.name)
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_in_backticks_exist(module):
    unknown = []
    for name in re.findall(r"`ms_recover\.([\w.]+)`", module.read_text()):
        home, names = ROOT / "ms_recover", name.split(".")
        while names and (home / names[0]).is_dir():
            home /= names.pop(0)
        if names and (home / f"{names[0]}.py").is_file():
            home /= f"{names.pop(0)}.py"
        else:
            home, names = home / "__init__.py", names[:1]  # what a package hands on is defined elsewhere
        if not names_of(home).issuperset(names):
            unknown.append(name)
    assert unknown == []
