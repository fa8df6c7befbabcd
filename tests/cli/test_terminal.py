"""On a pseudo terminal and without one: progress, colours, words, Ctrl-C; the scripts of shells; python -m."""

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import pytest

from ms_recover.testing.trees import make_tree
from tests.support.ports import free_port
from tests.support.serving import Served, split

pytestmark = pytest.mark.processes

COMMAND = [sys.executable, "-m", "ms_recover"]
STEERING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
MIB = 1 << 20


@pytest.fixture
def tree(tmp_path):
    tree = make_tree(tmp_path / "tree")
    shutil.rmtree(tree / "ckpt_dir0")
    return tree


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Make a tree of 64 MiB."""
    return make_tree(tmp_path_factory.mktemp("large") / "tree", parameters={"weight": 4 * MIB})


class OnTerminal:
    """A command on a terminal of its own."""

    def __init__(self, *arguments, columns=80, out=None, **environment):
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            try:
                names = os.environ.keys() - {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
                inherited = {name: os.environ[name] for name in names}
                if out is not None:
                    os.dup2(os.open(out, os.O_WRONLY | os.O_CREAT, 0o600), 1)
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
                everything = {**inherited, "TERM": "xterm-256color", **environment}
                os.execve(COMMAND[0], [*COMMAND, *map(str, arguments)], everything)
            finally:
                os._exit(99)

    def read_until(self, words=None):
        """Read until some words, or to the end."""
        seen = b""
        with suppress(OSError):
            while (words is None or words not in seen) and (data := os.read(self.descriptor, 1 << 16)):
                seen += data
        return seen.decode().replace("\r\n", "\n")

    def end(self):
        text = self.read_until()
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), text


def report(text):
    """Return what a terminal shows in the end: the bar is gone."""
    return STEERING.sub("", text.rpartition("\x1b[2K")[2])


def test_a_terminal_has_a_bar_with_total_rate_and_time_left_and_is_restored(large):
    code, text = OnTerminal("verify", large).end()
    assert code == 0
    assert "reading" in text
    assert "64.0 MiB" in text
    assert re.search(r"\d [MG]B/s", text)
    assert re.search(r"\d:\d\d:\d\d", text)
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    assert "\x1b[32m\x1b[1mSOUND\x1b[0m: all 4 slices" in text
    assert re.search(r"\nRead: 64\.0 MiB in \S+ s \(\S+ GB/s\)\n$", text)


@pytest.mark.parametrize("columns", [80, 40])
def test_no_word_is_broken(columns, tree):
    _, wide = OnTerminal("plan", tree, columns=400, NO_COLOR="1").end()
    _, text = OnTerminal("plan", tree, columns=columns, NO_COLOR="1").end()
    shown = report(text)
    labels = {"slice:", "why:", "->", "evidence:"}
    assert set(report(wide).split()) <= set(shown.split()) | {"slice", "why", "evidence", "state", "verdict"}
    assert set(shown.split()) - set(report(wide).split()) <= labels | {"\\"}
    longest = max(map(len, report(wide).split()))
    assert [line for line in shown.splitlines() if len(line) > max(columns, longest + 8)] == []


def test_messages_break_no_word_either(tmp_path):
    path = tmp_path / "a-name-that-is-rather-long" / "and-another-one"
    code, text = OnTerminal("plan", path, columns=60).end()
    assert code == 3
    assert str(path) in text.split()


@pytest.mark.parametrize(("variables", "coloured"), [({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({}, True)])
def test_colours_of_a_terminal(variables, coloured, tree):
    code, text = OnTerminal("plan", tree, **variables).end()
    assert code == 0
    assert ("\x1b[32m" in text) is coloured
    if variables.get("TERM") == "dumb":
        assert "\x1b" not in text


def test_a_report_in_a_file_has_no_colour_while_the_bar_is_on_the_terminal(large, tmp_path):
    code, text = OnTerminal("verify", large, out=tmp_path / "report").end()
    assert code == 0
    assert "reading" in text
    assert "SOUND" not in text
    written = (tmp_path / "report").read_text()
    assert "\x1b" not in written
    assert "SOUND: all 4 slices" in written


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_during_the_bar_restores_the_terminal(number, code, large):
    process = OnTerminal("verify", large, "--deep")
    before = process.read_until(b"reading")
    os.kill(process.pid, number)
    ended, after = process.end()
    assert ended in (code, 0)
    text = before + after
    assert "Traceback" not in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")
    if ended:
        assert "interrupted" in text


def test_a_terminal_that_goes_away_leaves_no_half_file(large, tmp_path):
    copy = tmp_path / "tree"
    shutil.copytree(large, copy)
    shutil.rmtree(copy / "ckpt_dir0")
    process = OnTerminal("apply", copy)
    process.read_until(b"reading")
    os.close(process.descriptor)
    os.waitpid(process.pid, 0)
    lost = copy / "ckpt_dir0" / "test-1_8.ckpt"
    assert not lost.exists() or lost.read_bytes() == (large / "ckpt_dir0" / "test-1_8.ckpt").read_bytes()


def run(*arguments, shell=None, env=None, command=COMMAND):
    line = ["sh", "-c", shell, "sh"] if shell else []
    return subprocess.run(
        [*line, *command, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **(env or {})},
    )


def test_lines_off_the_terminal_go_to_standard_error_alone(large):
    done = run("verify", large)
    assert done.returncode == 0
    lines = done.stderr.splitlines()
    shares = [
        int(re.match(r"recover-ckpt: reading: (\d+) %, \S+ MiB of 64\.0 MiB, \S+ GB/s, ", line)[1]) for line in lines
    ]
    assert 1 <= len(shares) <= 10
    assert shares == sorted(set(shares))
    assert shares[-1] == 100
    assert "reading" not in done.stdout
    assert "\x1b" not in done.stdout + done.stderr


def test_json_has_no_lines_beside_it(large):
    for command in ("verify", "plan"):
        done = run(command, large, "--json")
        assert done.stderr == ""
        assert done.stdout.startswith("{")


def test_apply_says_bytes_seconds_and_rate(large, tmp_path):
    copy = tmp_path / "tree"
    shutil.copytree(large, copy)
    shutil.rmtree(copy / "ckpt_dir0")
    done = run("apply", copy)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\nWritten: 16\.0 MiB in \S+ s \(\S+ GB/s\)\n$", done.stdout)
    assert "recover-ckpt: writing: 100 %, 16.0 MiB of 16.0 MiB" in done.stderr
    again = run("apply", copy)
    assert "Written" not in again.stdout


@pytest.mark.parametrize("line", ['"$@" 2>&-', '"$@" 2>/dev/full'])
def test_lines_for_a_standard_error_that_is_closed_or_full_stop_nothing(line, large):
    done = run("verify", large, shell=line)
    assert done.returncode == 0
    assert "SOUND: all 4 slices" in done.stdout


def test_force_color_off_the_terminal(tree):
    assert "\x1b[32m" in run("plan", tree, env={"FORCE_COLOR": "1", "NO_COLOR": ""}).stdout
    assert "\x1b" not in run("plan", tree, env={"FORCE_COLOR": "1", "NO_COLOR": "1"}).stdout


def test_python_m_is_recover_ckpt(tree):
    assert run("--version").stdout == "recover-ckpt, version 0.1.0\n"
    assert run("plan", tree).returncode == 0
    done = run("aply", tree)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: recover-ckpt ")


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["recover-ckpt", "ver"], ["verify"]),
        (["recover-ckpt", "s"], ["scan", "seal", "serve"]),
        (["recover-ckpt", "plan", "--det"], ["--detailed-exitcode"]),
        (["recover-ckpt", "completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_bash_completes_commands_and_options(words, found, tmp_path):
    script = run("completion", "bash").stdout
    (tmp_path / "recover-ckpt").write_text(f'#!/bin/sh\nexec {" ".join(COMMAND)} "$@"\n')
    (tmp_path / "recover-ckpt").chmod(0o755)
    (tmp_path / "script").write_text(script)
    typed = " ".join(f"'{word}'" for word in words)
    code = f"""
source "$1" || exit 1
complete -p recover-ckpt >/dev/null || exit 2
COMP_WORDS=({typed})
COMP_CWORD={len(words) - 1}
function=$(complete -p recover-ckpt | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$function recover-ckpt
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(
        ["bash", "-c", code, "bash", tmp_path / "script"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.split() == found


def test_serve_prints_a_line_of_json_at_the_start_and_at_the_end(tree, tmp_path):
    import json

    from tests.cli.test_json_outputs import validator

    token = tmp_path / "token"
    token.write_text("a secret of 16 bytes and more\n")
    token.chmod(0o600)
    port = free_port()
    for ending, reason in ((["--idle", "0.5"], "idle"), ([], "signal")):
        with subprocess.Popen(
            [*COMMAND, "serve", tree, "--port", str(port), "--json", "--token-file", token, "-vv", *ending],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                started = json.loads(process.stdout.readline())
                if reason == "signal":
                    process.send_signal(signal.SIGTERM)
                out, err = process.communicate(timeout=60)
            finally:
                process.kill()
        assert process.returncode == 0, err
        stopped = json.loads(out)
        validator("serve").validate(started)
        validator("serve").validate(stopped)
        assert started == {
            "event": "started",
            "version": 1,
            "root": str(tree),
            "address": "127.0.0.1",
            "port": port,
            "tls": False,
            "token": True,
            "token_file": str(token),
            "pid": process.pid,
        }
        assert stopped == {"event": "stopped", "version": 1, "reason": reason}
        assert "a secret" not in out + err


def test_no_log_of_either_side_holds_the_token(tree, tmp_path):
    secret = "a-token-of-more-than-16-bytes"
    env = {"MS_RECOVER_TOKEN": secret}
    (node,) = split(tree, tmp_path, node=[2, 3])
    server = Served(node, "-vv", "--log-file", str(tmp_path / "server.log"), env={**os.environ, **env})
    try:
        (here := tmp_path / "here").mkdir()
        log = tmp_path / "client.log"
        done = run("apply", here, "--from", server.address, "--ranks", "0,2", "-vv", "--log-file", log, env=env)
        assert done.returncode == 0, done.stderr
        code, said = server.end()
        assert code == 0
    finally:
        server.kill()
        server.process.stdout.close()
        server.process.stderr.close()
    served = (tmp_path / "server.log").read_text()
    assert "a client asks: GET /ckpt_dir2/test-1_8.ckpt" in served
    assert f"{server.url} has 2 slices of 2 ranks" in log.read_text()
    assert "rank 0: ckpt_dir0/test-1_8.ckpt copied from ckpt_dir2/test-1_8.ckpt" in log.read_text()
    for text in (done.stdout, done.stderr, said, served, log.read_text()):
        assert secret not in text
