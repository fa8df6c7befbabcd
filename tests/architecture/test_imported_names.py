"""Tests, benchmarks and samples import names that exist: many of these run rarely, and mypy reads none of them."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "sample_code", "scripts", "tests")
PACKAGES = ("ms_recover", "tests", "benchmarks")


@cache
def names_of(module):
    """Return the names that a module defines or imports, None where there is no such module."""
    place = ROOT.joinpath(*module.split("."))
    source = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    names = {path.stem for path in place.iterdir()} if place.is_dir() else set()
    if not source.exists():
        return frozenset(names) or None
    for node in ast.walk(ast.parse(source.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=alias):
                names.add(alias or name.partition(".")[0])
    return frozenset(names)


def missing_names(source):
    """Yield what a file imports from this project and is not there."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module.partition(".")[0] in PACKAGES:
            there = names_of(node.module)
            for one in node.names:
                if there is None or one.name not in there:
                    yield f"{node.module}.{one.name}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_a_file_imports_from_the_project_is_there(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path in files for name in missing_names(path.read_text())]
    assert wrong == []


def test_a_name_that_is_not_there_is_found():
    assert list(missing_names("from ms_recover.errors import MsRecoverError, NoSuchError")) == [
        "ms_recover.errors.NoSuchError"
    ]
    assert list(missing_names("from ms_recover.no_such_module import Thing")) == ["ms_recover.no_such_module.Thing"]
