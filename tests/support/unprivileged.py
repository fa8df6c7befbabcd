"""Run a piece of Python as a user without rights, also where the tests run as root."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NOBODY = 65534
_DROP = f"""
import json, os, sys
import ms_recover.execution.apply, ms_recover.execution.seal, ms_recover.planning.plan.explain
import ms_recover.scanning.inspect
import ms_recover.formats.manifest_json, ms_recover.formats.plan_json, ms_recover.formats.record
import ms_recover.planning.judging.verification, ms_recover.planning.plan.planner, ms_recover.scanning.scan
from ms_recover import api
from ms_recover.verbs import audit, backup, complete, history, recover, verify
from ms_recover.errors import *
from ms_recover.formats.group_info import encode_group_info
from ms_recover.model.groups import GroupInfo
from ms_recover.model.options import *
encode_group_info(GroupInfo((0,)))  # loads what is loaded on use: the interpreter may lie where nobody else can read
if os.geteuid() == 0:
    os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
"""


def run_unprivileged(code: str, *arguments: object) -> Any:
    """Return the JSON that `code` prints last."""
    done = subprocess.run(
        [sys.executable, "-c", _DROP + code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def reachable_folder() -> Iterator[Path]:
    """Give a folder that every user can pass through: pytest closes its own again whenever another run starts."""
    with tempfile.TemporaryDirectory(prefix="ms_recover-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def open_to_all(top: Path) -> None:
    """Let every user read everything below `top`."""
    for path in [top, *top.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Let this process be a user without rights for a while, where it is root."""
    root = os.geteuid() == 0
    if root:
        os.setegid(NOBODY)
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)
            os.setegid(0)


def close_to_all(top: Path) -> None:
    """Let nobody write anything below `top`, its owner neither."""
    for path in [top, *top.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
