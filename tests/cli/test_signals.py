"""SIGINT and SIGTERM end with 130 and 143 and without a traceback, from the first line of our code on."""

import os
import signal
import subprocess
import sys
import time

import pytest

from ms_recover.testing.trees import make_tree

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-c", "import sys; from ms_recover.cli.entry import main; sys.exit(main())"]
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


def handles(pid, number):
    """Return whether a process has a handler of its own: /proc shows the mask of caught signals."""
    with open(f"/proc/{pid}/status") as file:
        mask = next(line for line in file if line.startswith("SigCgt:"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


def start(*arguments, shell='exec "$@"'):
    process = subprocess.Popen(
        ["sh", "-c", shell, "sh", *COMMAND, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and not handles(process.pid, signal.SIGTERM):  # Python has none for SIGTERM
        assert time.monotonic() < deadline
    return process


def end(process):
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait(timeout=60)
    assert b"Traceback" not in err, err
    assert b"Exception ignored" not in err, err
    return process.returncode, out, err


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("command", ["--help", "plan"])
def test_a_signal_in_the_first_quarter_of_a_second(number, command, tmp_path):
    """During the imports, during the work, and while Python ends."""
    tree = make_tree(tmp_path / "tree")
    arguments = ["--help"] if command == "--help" else ["plan", tree]
    seen = set()
    for delay in range(0, 250, 25):
        process = start(*arguments)
        time.sleep(delay / 1000)
        process.send_signal(number)
        code, out, err = end(process)
        assert code in (CODES[number], 0), (delay, code, err)
        if code:
            assert err.lstrip(b"\n").startswith(b"recover-ckpt: "), err
        else:
            assert out
        seen.add(code)
    assert CODES[number] in seen


def test_an_ignored_sigint_stays_ignored(tmp_path):
    """As in a background job of a shell without job control."""
    tree = make_tree(tmp_path / "tree")
    process = start("plan", tree, shell="trap '' INT; exec \"$@\"")
    process.send_signal(signal.SIGINT)
    assert end(process)[0] == 0


@pytest.mark.parametrize("number", CODES)
def test_a_signal_with_standard_error_closed(number):
    process = start("--help", shell='exec "$@" 2>&-')
    process.send_signal(number)
    assert end(process)[0] in (CODES[number], 0)


@pytest.mark.parametrize("number", CODES)
def test_a_signal_while_a_plan_waits_for_the_reader_of_a_pipe(number, tmp_path):
    tree = make_tree(tmp_path / "tree")
    os.mkfifo(tmp_path / "pipe")
    process = start("plan", tree, "-o", tmp_path / "pipe")
    time.sleep(3)  # at any moment the end is the same; by then it waits
    assert process.poll() is None
    process.send_signal(number)
    code, _, err = end(process)
    assert code == CODES[number]
    assert b"no temporary file is left" in err
