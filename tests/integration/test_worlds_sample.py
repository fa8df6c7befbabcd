"""The samples, by the command lines of their page and of MultiWorld's.

A leader in two worlds loses a worker, goes on with the other, and takes a new one in. A MindSpore cluster does not.
"""

import os
import queue
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[2] / "sample_code" / "multiworld"
PAGE = (SAMPLE / "README.md").read_text()
LONG = 120
ADDRESS = "10.20.1.50"
MINDSPORE = [
    "python multiworld_asyncio.py --backend mindspore --worldinfo 1,0 --worldinfo 2,0 --addr 127.0.0.1",
    "python multiworld_asyncio.py --backend mindspore --worldinfo 1,1 --addr 127.0.0.1",
    "python multiworld_asyncio.py --backend mindspore --worldinfo 2,1 --addr 127.0.0.1",
]
NCCL = [
    "python multiworld_asyncio.py --backend nccl --worldinfo 1,0 --worldinfo 2,0 --addr 10.20.1.50",
    "python multiworld_asyncio.py --backend nccl --worldinfo 1,1 --addr 10.20.1.50",
    "python multiworld_asyncio.py --backend nccl --worldinfo 2,1 --addr 10.20.1.50",
]
BY_RANK = [f"python multiworld_asyncio.py --backend nccl --rank {rank} --addr 10.20.1.50" for rank in range(3)]
SINGLE = "python single_world.py --backend nccl --worldsize 3"
MULTIHOST = [
    f"python single_world.py --backend nccl --addr 10.20.1.50 --multihost --worldsize 3 --rank {rank}"
    for rank in range(3)
]
NUMPY = [line.replace("mindspore", "numpy") + " --interval 0.05" for line in MINDSPORE]
OWN_HOST = pytest.mark.skipif("MS_RECOVER_EXAMPLES" not in os.environ, reason="only with MS_RECOVER_EXAMPLES")


class Command:
    """A command line that runs in the folder of the samples, and the lines it prints."""

    def __init__(self, line, prefix, env, cwd):
        path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self.process = subprocess.Popen(
            [*prefix, *shlex.split(line)],
            cwd=cwd,
            env={**os.environ, **path, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = []
        self._lines = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.said.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def hear(self, words):
        """Wait for a line that matches, and return it."""
        deadline = time.monotonic() + LONG
        while True:
            line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            assert line is not None, self.said
            if re.search(words, line):
                return line

    def interrupt(self):
        """End it with Ctrl-C, in good order."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(LONG) == 0, self.said

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LONG)
        self._reader.join(LONG)
        self.process.stdout.close()


@pytest.fixture
def start():
    started = []

    def go(line, prefix=(), env=(), cwd=SAMPLE):
        started.append(Command(line, prefix, dict(env), cwd))
        return started[-1]

    yield go
    for command in started:
        command.close()


@pytest.fixture
def host():
    """Prefix of commands that run on a host of our own with this address."""
    for tool in ("unshare", "nsenter", "ip"):
        if shutil.which(tool) is None:
            pytest.skip(f"a host of our own needs {tool}")
    if os.geteuid():
        pytest.skip("a host of our own needs root")
    made = f"ip link set lo up && ip address add {ADDRESS}/32 dev lo && echo made && exec sleep 3600"
    holder = subprocess.Popen(["unshare", "--net", "sh", "-c", made], stdout=subprocess.PIPE, text=True)
    try:
        if holder.stdout.readline() != "made\n":
            pytest.skip("a host of our own cannot be made here")
        yield ["nsenter", f"--net=/proc/{holder.pid}/ns/net"]
    finally:
        holder.kill()
        holder.communicate()


def a_leader_survives_its_worker(start, lines, **options):
    leader, one, other = (start(line, **options) for line in lines)
    leader.hear("world1: received")
    leader.hear("world2: received")
    one.process.kill()
    leader.hear(r"world 'world1' \(epoch 0\) is broken by rank 1")
    leader.hear("world2: received")
    start(lines[1], **options)
    leader.hear("world1: made, epoch 1")
    leader.hear(r"world1: received \[0\. 0\. 0\. 0\.\]")
    leader.hear("world2: received")
    for command in (other, leader):  # in the other order the worker may be about to end by itself
        command.interrupt()
    assert len([line for line in leader.said if "world1" in line and "is broken" in line]) == 1
    assert not [line for command in (leader, other) for line in command.said if "Traceback" in line]
    return leader


def need_ports(*ports):
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is in use")


def test_the_page_of_the_samples_has_these_command_lines():
    for line in [*MINDSPORE, *NCCL, SINGLE, *MULTIHOST]:
        assert f"{line}\n" in re.sub(" +#.*", "", PAGE), line


def test_leader_survives_its_worker_and_takes_another(start):
    need_ports(29501, 29502)
    a_leader_survives_its_worker(start, NUMPY)


@pytest.mark.mindspore
def test_leader_survives_its_worker_with_tensors_of_mindspore(start):
    pytest.importorskip("mindspore")
    need_ports(29501, 29502)
    a_leader_survives_its_worker(start, MINDSPORE)


@pytest.mark.mindspore
@OWN_HOST
@pytest.mark.parametrize("lines", [NCCL, BY_RANK], ids=["worldinfo", "rank"])
def test_the_command_lines_of_multiworld_run_as_they_are(start, host, lines):
    pytest.importorskip("mindspore")
    leader = a_leader_survives_its_worker(
        start, lines, prefix=host, env={"MS_RECOVER_WORLDS_TOKEN": "a token for these hosts"}
    )
    assert leader.said[0] == "--backend nccl: mindspore tensors cross host memory and TCP, not nccl\n"


@pytest.mark.parametrize(
    ("line", "words", "code"),
    [
        ("multiworld_asyncio.py --worldinfo 1,5", "'1,5' is not WORLD,RANK", 2),
        ("multiworld_asyncio.py --backend numpy", "one of the arguments --worldinfo --rank is required", 2),
        ("multiworld_asyncio.py --backend numpy --worldinfo 1,0 --worldinfo 1,1", "names a world twice", 2),
        (NCCL[0].removeprefix("python ").replace("nccl", "numpy"), f"{ADDRESS} is not loopback, so a token", 1),
        ("single_world.py --worldsize 1", "--worldsize 1: a cluster in which one rank is killed has at least 2", 2),
        ("single_world.py --multihost --worldsize 3", "--multihost needs --rank, 0 to 2", 2),
    ],
)
def test_errors_are_one_line(line, words, code):
    done = subprocess.run(
        [sys.executable, *line.split()], cwd=SAMPLE, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")
    assert re.fullmatch(rf"{line.split()[0]}: .*{re.escape(words)}.*\n", done.stderr), done.stderr


def test_a_port_that_is_in_use_is_one_line():
    need_ports(29501)
    with socket.create_server(("127.0.0.1", 29501)):
        done = subprocess.run(
            [sys.executable, *NUMPY[0].split()[1:]],
            cwd=SAMPLE,
            capture_output=True,
            text=True,
            timeout=LONG,
            check=False,
        )
    words = "multiworld_asyncio.py: cannot listen at 127.0.0.1 port 29501: Address already in use\n"
    assert (done.returncode, done.stderr) == (1, words)


@pytest.mark.mindspore
def test_a_cluster_does_not_survive_one_of_its_ranks(start):
    pytest.importorskip("mindspore")
    command = start(SINGLE, env={"MS_NODE_TIMEOUT": "5"})  # 30 s by default
    command.hear(re.escape("--backend nccl: MindSpore's collectives for the CPU carry the bytes (MCCL over TCP)"))
    command.hear("rank 1 is killed")
    steps = [line for line in command.said if re.search(r"rank \d: step 0, \[6\. 6\. 6\. 6\.\]", line)]
    assert len(steps) == 3  # it is killed only after the first step
    assert command.process.wait(LONG) == 0
    command.hear("nobody is left")
    dead = re.findall(r"s later (scheduler|rank \d) is dead too", "".join(command.said))
    assert sorted(dead) == ["rank 0", "rank 2", "scheduler"]


@pytest.mark.mindspore
@OWN_HOST
def test_the_command_lines_of_multiworld_for_several_hosts_start_one_cluster(start, host):
    pytest.importorskip("mindspore")
    ranks = [start(line, prefix=host, env={"MS_NODE_TIMEOUT": "5"}) for line in MULTIHOST]
    pid = int(ranks[1].hear("rank 1 is process").split()[-1])
    for rank, command in enumerate(ranks):
        command.hear(rf"rank {rank}: step 0, \[6\. 6\. 6\. 6\.\]")
    os.kill(pid, signal.SIGKILL)  # a process of this test
    ranks[1].hear("rank 1 is dead: SIGKILL")
    for rank in (0, 2):
        ranks[rank].hear(f"rank {rank} is dead: ")
        assert ranks[rank].process.wait(LONG) == 0
