"""Each test file is collected where MindSpore is not installed: it asks before it imports anything of it."""

import ast
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("path", sorted(TESTS.rglob("test_*.py")), ids=lambda path: str(path.relative_to(TESTS)))
def test_mindspore_is_asked_for_before_it_is_imported(path):
    asked = False
    for statement in ast.parse(path.read_text()).body:
        asked = asked or "importorskip('mindspore" in ast.unparse(statement)
        names = [one.name for one in statement.names] if isinstance(statement, ast.Import) else []
        names += [statement.module or ""] if isinstance(statement, ast.ImportFrom) else []
        assert asked or not any(name.partition(".")[0] == "mindspore" for name in names), f"line {statement.lineno}"
