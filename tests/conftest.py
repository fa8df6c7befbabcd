import os
import shutil
import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.command_line import in_a_process, in_this_process
from tests.support.examples import SAME_EVERY_TIME

FIXTURES = Path(__file__).parent / "data" / "fixtures"
PROCESSES = tuple(Path(__file__).parent / name for name in ("acceptance", "integration"))
"""Folders whose tests start programs."""

LONG_FIRST = ("integration", "acceptance", "cli", "property")
"""Folders by how long a file of theirs may take; behind them files of seconds fill all processes to the end."""

# a busy machine is no failure of a search, and nor is a new example where none was asked for
settings.register_profile(
    "searches", deadline=None, derandomize=SAME_EVERY_TIME, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("searches")


@pytest.fixture(scope="session")
def fixtures():
    """Real files written by MindSpore 2.10, one folder per layout."""
    return FIXTURES


@pytest.fixture
def fixture_tree(tmp_path):
    """Copy one of the real trees, with the modes MindSpore gives its files."""

    def copy(name):
        target = tmp_path / name
        shutil.copytree(FIXTURES / name, target)
        for path in target.rglob("*.ckpt"):
            if path.name != "strategy.ckpt":
                path.chmod(0o400)
        return target

    return copy


@pytest.fixture(scope="session", autouse=True)
def _own_state_directory(tmp_path_factory):
    """Keep what programs remember for metrics out of the user's state directory."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(autouse=True)
def _no_random_operators_of_other_tests():
    """Forget which random operators and compiled functions of a program this process has seen.

    MindSpore counts them for the process, and a training names them: here each test stands for a process of its own.
    """
    seeds, phases = sys.modules.get("mindspore.common.seed"), sys.modules.get("mindspore.graph.api")
    if seeds is not None:
        seeds._KERNEL_SEED.clear()
    getattr(phases, "function_phases", {}).clear()


@pytest.fixture(autouse=True)
def _mode_as_before():
    """Give the mode of MindSpore back, which is the process's: the next test may rely on the default one."""
    before = _mode()
    yield
    if before is not None and _mode() != before:
        sys.modules["mindspore"].set_context(mode=before)


def _mode():
    """Return the mode; None where MindSpore is not imported, or only half."""
    read = getattr(sys.modules.get("mindspore"), "get_context", None)
    return read("mode") if read is not None else None


NOT_QUICK = ("mindspore", "processes", "packaging")
"""Markers of tests that `--quick` leaves out."""


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help=f"leave out tests marked {', '.join(NOT_QUICK)}")


def pytest_configure(config):
    """Let Ctrl-C reach the processes that tests start, also where this one was started in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--quick"):
        # importing MindSpore takes seconds; without it importorskip skips, as where it is not installed
        sys.modules["mindspore"] = None
        os.environ["MS_RECOVER_QUICK"] = "yes"
    elif _old_mindspore():
        os.environ.setdefault("PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", "python")


def _old_mindspore():
    """Up to 2.9 MindSpore cannot be imported where a newer protobuf was used before, except in Python."""
    try:
        release = version("mindspore").split(".")[:2]
    except PackageNotFoundError:
        return False
    return tuple(map(int, release)) < (2, 10)


def _refuse_processes(event, arguments):
    if event in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
        raise AssertionError("this test starts a program: mark it with pytest.mark.processes")


def pytest_collection_modifyitems(config, items):
    """Mark the tests of folders that start programs, leave out the marked ones with `--quick`, put long files first."""
    folders = [Path(__file__).parent / name for name in LONG_FIRST]
    items.sort(key=lambda item: next((place for place, one in enumerate(folders) if one in item.path.parents), 9))
    for item in items:
        if any(folder in item.path.parents for folder in PROCESSES):
            item.add_marker("processes")
    if config.getoption("--quick"):
        left_out = {item for item in items if any(item.get_closest_marker(name) for name in NOT_QUICK)}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
        sys.addaudithook(_refuse_processes)


NO_SKIPS = "MS_RECOVER_NO_SKIPS"
"""Environment variable: a test that is skipped because some program is missing fails instead."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Let a test fail that lacks a program, where all of them have to run."""
    report = yield
    if report.skipped and os.environ.get(NO_SKIPS) and "apt-get install" in str(report.longrepr):
        report.outcome, report.longrepr = "failed", f"{NO_SKIPS} is set: {report.longrepr}"
    return report


@pytest.fixture
def recover_ckpt(request):
    """Run the command line, in a process of its own where the test is marked so."""
    start = in_this_process if request.node.get_closest_marker("processes") is None else in_a_process

    def run(*arguments, **options):
        done = start(*arguments, **options)
        assert "Traceback" not in done.err, done.err
        return done

    return run
