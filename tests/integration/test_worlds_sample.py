"""The sample: a leader in two worlds loses a worker, goes on with the other, and takes a new one in."""

import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

SAMPLE = Path(__file__).parents[2] / "sample_code" / "multiworld" / "multiworld.py"
LONG = 120


@pytest.fixture
def start():
    started = []

    def go(*worlds):
        arguments = [word for world in worlds for word in ("--worldinfo", world)]
        process = subprocess.Popen(
            [sys.executable, SAMPLE, "--backend", "numpy", "--interval", "0.05", *arguments, "--addr", "127.0.0.1"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        lines, said = queue.Queue(), []
        reader = threading.Thread(
            target=lambda: [(said.append(line), lines.put(line)) for line in process.stdout], daemon=True
        )
        reader.start()
        started.append((process, reader))
        process.said = said

        def hear(words):
            deadline = time.monotonic() + LONG
            while True:
                line = lines.get(timeout=max(0.1, deadline - time.monotonic()))
                if words in line:
                    return line

        return process, hear

    yield go
    for process, reader in started:
        if process.poll() is None:
            process.kill()
        process.wait(LONG)
        reader.join(LONG)
        process.stdout.close()


def test_leader_survives_its_worker_and_takes_another(start):
    for port in (29501, 29502):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is in use")
    leader, hear = start("1,0", "2,0")
    one, _ = start("1,1")
    other, _ = start("2,1")
    hear("world1: received")
    hear("world2: received")
    one.kill()
    hear("world 'world1' (epoch 0) is broken by rank 1")
    hear("world2: received")
    start("1,1")
    hear("world1: made, epoch 1")
    hear("world1: received [0. 0. 0. 0.]")
    hear("world2: received")
    for process in (other, leader):  # in the other order the worker may be about to end by itself
        process.send_signal(signal.SIGINT)
        assert process.wait(LONG) == 0, process.said
    assert len([line for line in leader.said if "world1" in line and "is broken" in line]) == 1
    assert not [line for process in (leader, other) for line in process.said if "Traceback" in line]
