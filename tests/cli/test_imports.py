"""The command line answers without what only other machines have."""

import ast
import subprocess
import sys

import pytest

from ms_recover.cli.main import COMMANDS

HEAVY = (
    "numpy",
    "google.protobuf",
    "msgspec",
    "fsspec",
    "aiohttp",
    "dask",
    "distributed",
    "rich",
    "xxhash",
    "yaml",
    "mindspore",
    "jinja2",
)
ROOMS = (
    "model",
    "formats",
    "stores",
    "scanning",
    "planning",
    "execution",
    "reporting",
    "api",
    "auditing",
    "serving",
    "worlds",
    "engine",
    "loading",
    "describing",
)


def loaded(*arguments):
    code = (
        "import sys\n"
        "from ms_recover.cli.entry import main\n"
        "code = main()\n"
        f"names = [*{HEAVY!r}, *(f'ms_recover.{{room}}' for room in {ROOMS!r})]\n"
        "print('LOADED', [name for name in names if name in sys.modules], code, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr.rpartition("LOADED ")[2].strip()


@pytest.mark.processes
def test_help_loads_nothing_heavy():
    assert loaded("--help") == "[] 0"


@pytest.mark.processes
@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_commands_loads_nothing_heavy(command):
    assert loaded(command, "--help") == "[] 0"


@pytest.mark.processes
def test_the_list_of_commands_imports_none_of_them():
    code = (
        "import sys\n"
        "from ms_recover.cli.entry import main\n"
        "main()\n"
        "print(sorted(name for name in sys.modules if name.startswith('ms_recover')), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert ast.literal_eval(done.stderr) == [
        "ms_recover",
        "ms_recover.cli",
        "ms_recover.cli.entry",
        "ms_recover.cli.main",
        "ms_recover.cli.signals",
        "ms_recover.errors",
        "ms_recover.lazy",
        "ms_recover.version",
    ]


@pytest.mark.processes
def test_planning_loads_neither_numpy_nor_mindspore(fixture_tree):
    names = loaded("plan", str(fixture_tree("dp2_mp4")))
    assert names.endswith(" 0")
    assert "numpy" not in names
    assert "mindspore" not in names


@pytest.mark.processes
def test_planning_without_manifests_and_json_loads_no_codec(fixture_tree):
    tree = str(fixture_tree("dp2_mp4"))
    assert "msgspec" not in loaded("plan", tree)
    assert "msgspec" in loaded("plan", tree, "--json")


@pytest.mark.processes
def test_importing_the_package_loads_nothing():
    code = f"import sys, ms_recover; print([n for n in ({HEAVY!r} + ('click', 'xxhash')) if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_sorted_and_resolve():
    import ms_recover

    assert sorted(ms_recover.__all__) == list(ms_recover.__all__)
    for name in set(ms_recover.__all__) - {
        "SliceCheckpoint",
        "SliceManifests",
        "SliceSaver",
        "recover_train",
        "resume",
    }:  # these need MindSpore
        assert callable(getattr(ms_recover, name))
