"""The command line answers without what only other machines have."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "google.protobuf", "fsspec", "rich", "mindspore", "msgspec")


def loaded(*arguments):
    code = (
        "import sys\n"
        "from ms_recover.cli.main import main\n"
        "code = main(sys.argv[1:])\n"
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules], code, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stderr.rpartition("LOADED ")[2].strip()


@pytest.mark.processes
def test_help_loads_nothing_heavy():
    assert loaded("--help") == "[] 0"


@pytest.mark.processes
def test_help_of_commands_loads_nothing_heavy():
    for command in ("inspect", "scan", "plan", "apply"):
        assert loaded(command, "--help") == "[] 0"


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
    for name in set(ms_recover.__all__) - {"SliceCheckpoint", "recover_train"}:
        assert callable(getattr(ms_recover, name))
