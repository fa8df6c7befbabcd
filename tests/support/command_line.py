"""The command line in a process of its own, and in the process of the test."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

OUTPUT_ERRORS = ("strict", "backslashreplace")
"""What Python does with text that standard output and standard error cannot encode."""


class Recovered:
    """What a run of recover-ckpt printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def in_a_process(
    *arguments: object, env: Mapping[str, str] | None = None, timeout: float = 120, cwd: Path | None = None
) -> Recovered:
    """Run the command line in a process of its own."""
    code = "import sys; from ms_recover.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env={**os.environ, **(env or {})},
        cwd=cwd,
        check=False,
    )
    return Recovered(done.returncode, done.stdout, done.stderr)


def in_this_process(
    *arguments: object, env: Mapping[str, str] | None = None, timeout: float = 120, cwd: Path | None = None
) -> Recovered:
    """Run the command line without a process of its own, which takes most of the time of a small tree.

    There is no `timeout` but that of the test.
    """
    from ms_recover.cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors) for errors in OUTPUT_ERRORS)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        if cwd is not None:
            patch.chdir(cwd)
        try:
            code = main([*map(str, arguments)])
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    texts = []
    for stream in (out, err):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())
    return Recovered(code, *texts)
