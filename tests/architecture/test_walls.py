"""A linter keeps the walls, not memory."""

import ast
import io
import re
import subprocess
import sys
import tokenize
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


MOST_LINES, FEW_LINES = 600, 80
OF_ITS_OWN = ("__main__", "mindformers", "cli", "formats", "stores", "model")
"""A command, a format, a store, a noun or an entry point is looked for by its name, however short and seldom used."""
AWAITING = (
    "loading",
    "scanning",
    "splitting",
    "supervision",
)
"""Rooms that still have fragments."""


def name_of(module):
    return ".".join(module.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(module):
    """Return the modules that may be meant by the imports of one, at any depth."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module, *(f"{node.module}.{one.name}" for one in node.names)}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return found


def test_each_module_is_one_subject():
    """It has at most 600 lines; one with a single importer and under 80 lines belongs into that importer."""
    importers = {}
    for module in MODULES:
        for name in imports_of(module):
            importers.setdefault(name, []).append(name_of(module))
    lines = {module: len(module.read_text().splitlines()) for module in MODULES}
    long = [f"{name_of(module)} has {count} lines" for module, count in lines.items() if count > MOST_LINES]
    fragments = [
        f"{name_of(module)} ({count} lines) belongs into {of[0]}"
        for module, count in lines.items()
        if count < FEW_LINES and module.name != "__init__.py" and len(of := importers.get(name_of(module), [])) == 1
        if module.relative_to(ROOT / "ms_recover").with_suffix("").parts[0] not in (*OF_ITS_OWN, *AWAITING)
    ]
    assert [*long, *fragments] == []


NAMED = ("planning", "verbs")
"""Rooms whose functions are read by their nouns and landmarks; others follow."""
PRONOUNS = ("one", "found", "held", "there")
MOST_WITH_PRONOUN, MOST_BARE = 5, 25


def unread_functions(module):
    """Return the pronouns of functions of more than 5 lines, and functions of more than 25 without a comment."""
    text = module.read_text()
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    wrong = []
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = function.body[len(function.body) > 1 and ast.get_docstring(function, clean=False) is not None]
        size = function.end_lineno - first.lineno + 1
        if size > MOST_WITH_PRONOUN:
            names = [node for node in ast.walk(function) if isinstance(node, ast.Name | ast.arg)]
            named = [(node.lineno, node.id if isinstance(node, ast.Name) else node.arg) for node in names]
            wrong += [f"{name_of(module)}:{line} {name}" for line, name in named if name in PRONOUNS]
        if size > MOST_BARE and comments.isdisjoint(range(first.lineno - 1, function.end_lineno + 1)):
            wrong.append(f"{name_of(module)}:{function.lineno} {function.name} has {size} lines and no landmark")
    return wrong


def test_functions_are_read_by_nouns_and_landmarks():
    modules = [module for module in MODULES if module.relative_to(ROOT / "ms_recover").parts[0] in NAMED]
    assert [wrong for module in modules for wrong in unread_functions(module)] == []


def modules_imported(module, names):
    """Return the modules of `names` that one imports, at any depth: of a package's module not its face as well."""
    found = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            wholes = [f"{node.module}.{one.name}" for one in node.names]
            found |= {whole if whole in names else node.module for whole in wholes}
        elif isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
    return (found & names) - {name_of(module)}


def test_no_modules_import_each_other_in_a_circle():
    """An import within a function, or for types alone, counts like any other."""
    names = {name_of(module) for module in MODULES}
    follows = {name_of(module): modules_imported(module, names) for module in MODULES}
    while True:  # what imports nothing that is left, or is imported by nothing that is left, lies in no circle
        imported = set().union(*follows.values())
        ends = {name for name, others in follows.items() if not others or name not in imported}
        if not ends:
            break
        follows = {name: others - ends for name, others in follows.items() if name not in ends}
    assert {name: sorted(others) for name, others in follows.items()} == {}


def notes_of(module):
    """Return the names at the top of a module whose values can change: containers to be filled, and objects."""
    tree = ast.parse(module.read_text())
    classes = {one.name for one in tree.body if isinstance(one, ast.ClassDef)}
    found = []
    for one in tree.body:
        if isinstance(one, (ast.Assign, ast.AnnAssign)):
            value, target = one.value, one.targets[0] if isinstance(one, ast.Assign) else one.target
            made = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else ""
            is_empty = isinstance(value, (ast.List, ast.Dict)) and not ast.unparse(value).strip("[]{}")
            if is_empty or made in {"set", "dict", "list", "deque", "WeakSet", *classes}:
                found.append(ast.unparse(target))
    return found


def test_what_trainings_of_a_process_share_is_held_in_one_place():
    modules = [module for module in MODULES if module.relative_to(ROOT / "ms_recover").parts[0] == "training"]
    found = {name_of(module): [name for name in notes_of(module) if not name.isupper()] for module in modules}
    assert {name: notes for name, notes in found.items() if notes} == {
        "ms_recover.training.in_process": ["_of_process", "_of_thread"]
    }


def reaches_of(module):
    """Return the undocumented names of others that a module asks for: imported, or by getattr and setattr."""
    found = []
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mindspore"):
            found += [f"{node.module}.{one.name}" for one in node.names if "._" in f"{node.module}.{one.name}"]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            found += [name] if name.startswith("_") and not name.startswith("__") else []
        elif isinstance(node, ast.Attribute) and node.attr in OF_MINDSPORE and ast.unparse(node.value) != "self":
            found.append(ast.unparse(node))
    return found


OF_MINDSPORE = (
    "_callbacks",
    "_params",
    "_cells",
    "_buffers",
    "_non_persistent_buffers_set",
    "_network",
    "_KERNEL_SEED",
)


def test_mindspore_is_reached_into_in_one_module_of_training():
    modules = [module for module in MODULES if module.relative_to(ROOT / "ms_recover").parts[0] == "training"]
    found = {module.stem: names for module in modules if (names := reaches_of(module))}
    assert found.pop("mindspore_inside")
    assert found == {"experiment": ["_exception_prefix"]}  # which a pure module asks of a callback


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
