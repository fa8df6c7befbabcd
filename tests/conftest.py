import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

FIXTURES = Path(__file__).parent / "data" / "fixtures"


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


def pytest_configure(config):
    """Let Ctrl-C reach the processes that tests start, also where this one was started in the background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Recovered:
    """What a run of recover-ckpt printed."""

    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def json(self):
        return json.loads(self.out)


@pytest.fixture
def recover_ckpt():
    """Run the command line in a process of its own."""

    def run(*arguments, env=None, timeout=120, cwd=None):
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                "import sys; from ms_recover.cli.entry import main; sys.exit(main())",
                *map(str, arguments),
            ],
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **(env or {})},
            cwd=cwd,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Recovered(done)

    return run
