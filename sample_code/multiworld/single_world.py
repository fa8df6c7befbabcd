"""The same in one MindSpore cluster: all ranks reduce together, one is killed, and the others do not survive it.

On one host this starts a scheduler and the ranks, kills rank 1 after the first step, and prints the effect::

    python single_world.py --backend mindspore --worldsize 3

On several hosts, one command for each rank, with the address of rank 0; kill a rank yourself::

    python single_world.py --backend mindspore --addr 10.20.1.50 --multihost --worldsize 3 --rank 0
    python single_world.py --backend mindspore --addr 10.20.1.50 --multihost --worldsize 3 --rank 1
    python single_world.py --backend mindspore --addr 10.20.1.50 --multihost --worldsize 3 --rank 2

With MindSpore's own collectives the cluster is one fault domain. The survivors wait until the operation's time limit,
get an error, and are ended by the cluster soon after, although they could still reach each other.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import NoReturn

OTHER_BACKENDS = ("nccl", "gloo", "hccl", "mccl")
VICTIM = "rank 1"
FIRST_STEP = "step 0"


class Parser(argparse.ArgumentParser):
    """Prints an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def be_scheduler() -> None:
    import mindspore
    from mindspore.communication import init

    mindspore.set_device("CPU")
    init()


def be_worker() -> None:
    import mindspore
    import numpy as np
    from mindspore import nn, ops
    from mindspore.communication import get_rank, init

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    mindspore.set_device("CPU")
    init()

    class Reduce(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.all_reduce = ops.AllReduce()

        def construct(self, x: mindspore.Tensor) -> mindspore.Tensor:
            return self.all_reduce(x)

    net, rank = Reduce(), get_rank()
    for step in range(1_000_000):
        result = net(mindspore.Tensor(np.full(4, rank + 1, np.float32)))
        if step % 10 == 0:
            print(f"{time.strftime('%X')} rank {rank}: step {step}, {result}", flush=True)
        time.sleep(0.1)


def be(role: str) -> None:
    """Be a process of the cluster; print an error in one line."""
    try:
        {"scheduler": be_scheduler, "worker": be_worker}[role]()
    except (RuntimeError, ValueError) as error:
        lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("-")]
        words = lines[0] if lines else "no message"  # MindSpore frames its headings with dashes
        print(f"{time.strftime('%X')} {os.environ['NAME']}: {type(error).__name__}: {words}", flush=True)
        os._exit(1)  # the end of a broken cluster would wait for its members


class Cluster:
    """Processes of this host, and the lines that they print."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._readers: list[threading.Thread] = []
        self._lines: queue.Queue[str] = queue.Queue()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for reader in self._readers:
            reader.join()
        self.print_lines()

    def start(self, rank: int | None) -> None:
        """Start a rank, or the scheduler."""
        name = "scheduler" if rank is None else f"rank {rank}"
        cluster = {
            "MS_ROLE": "MS_SCHED" if rank is None else "MS_WORKER",
            "MS_WORKER_NUM": str(self._options.worldsize),
            "MS_SCHED_HOST": self._options.addr,
            "MS_SCHED_PORT": str(self._options.port),
            "NAME": name,
        }
        if rank is not None:
            cluster["MS_NODE_ID"] = str(rank)
        process = subprocess.Popen(
            [sys.executable, __file__, "--be", "scheduler" if rank is None else "worker"],
            env={**os.environ, **cluster},
            stdout=subprocess.PIPE,
            stderr=None if self._options.verbose else subprocess.DEVNULL,
            text=True,
        )
        self._processes[name] = process
        self._readers.append(threading.Thread(target=self._read, args=(process,), daemon=True))
        self._readers[-1].start()
        print(f"{name} is process {process.pid}", flush=True)

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines.put(line)

    def print_lines(self, seconds: float = 0.0) -> list[str]:
        """Print and return the lines that arrive within this time."""
        lines = []
        deadline = time.monotonic() + seconds
        with contextlib.suppress(queue.Empty):
            while True:
                lines.append(self._lines.get(timeout=max(0.0, deadline - time.monotonic())))
                print(lines[-1], end="", flush=True)
        return lines

    def wait_for_first_step(self) -> None:
        """Wait until every rank of this host has taken a step."""
        waiting = {name for name in self._processes if name != "scheduler"}
        deadline = time.monotonic() + self._options.timeout
        while True:
            for line in self.print_lines(0.2):
                waiting = {name for name in waiting if f"{name}: {FIRST_STEP}," not in line}
            if not waiting:
                return
            dead = {name: end for name, end in self.ends().items() if end}
            if dead:
                ends = ", ".join(f"{name} ({end})" for name, end in dead.items())
                sys.exit(f"single_world.py: ended before the first step: {ends}; --verbose shows MindSpore's messages")
            if time.monotonic() > deadline:
                names = ", ".join(sorted(waiting))
                sys.exit(
                    f"single_world.py: no step of {names} within {self._options.timeout:g} s: are all ranks started?"
                )

    def kill(self, name: str) -> None:
        """Kill a process with SIGKILL."""
        self._processes[name].kill()
        print(f"{time.strftime('%X')} {name} is killed", flush=True)

    def ends(self) -> dict[str, str]:
        """How each process ended; empty while it lives."""
        codes = {name: process.poll() for name, process in self._processes.items()}
        return {
            name: "" if code is None else signal.Signals(-code).name if code < 0 else f"exit code {code}"
            for name, code in codes.items()
        }

    def watch(self, seconds: float) -> None:
        """Print when and how processes end, until none lives or the time is over."""
        began = time.monotonic()
        living = {name for name, end in self.ends().items() if not end} - {VICTIM}
        while living and time.monotonic() - began < seconds:
            self.print_lines(0.1)
            for name, end in self.ends().items():
                if end and name in living:
                    print(f"{time.monotonic() - began:5.1f} s later {name} is dead too: {end}", flush=True)
                    living.remove(name)
        still = f"still there after {seconds:g} s: {', '.join(sorted(living))}"
        print(still if living else "nobody is left", flush=True)


def one_host(cluster: Cluster, options: argparse.Namespace) -> None:
    """Start all ranks, kill one, watch the others."""
    for rank in (None, *range(options.worldsize)):
        cluster.start(rank)
    cluster.wait_for_first_step()
    cluster.print_lines(options.after)
    cluster.kill(VICTIM)
    cluster.watch(options.watch)


def several_hosts(cluster: Cluster, options: argparse.Namespace) -> None:
    """Start one rank, and beside rank 0 the scheduler; wait for its end."""
    if options.rank == 0:
        cluster.start(None)
    cluster.start(options.rank)
    name = f"rank {options.rank}"
    cluster.wait_for_first_step()
    while not cluster.ends()[name]:
        cluster.print_lines(0.2)
    print(f"{time.strftime('%X')} {name} is dead: {cluster.ends()[name]}", flush=True)


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--backend",
        choices=["mindspore", *OTHER_BACKENDS],
        default="mindspore",
        help="the other names are accepted for MultiWorld's command lines",
    )
    parser.add_argument("--worldsize", type=int, default=3, help="number of ranks")
    parser.add_argument("--addr", default="127.0.0.1", help="address of rank 0")
    parser.add_argument("--port", type=int, help="port of the scheduler; 29500 with --multihost, else a free one")
    parser.add_argument("--multihost", action=argparse.BooleanOptionalAction, default=False, help="start one rank only")
    parser.add_argument("--rank", type=int, help="with --multihost: the rank to start")
    parser.add_argument("--after", type=float, default=2.0, help="seconds from the first step until rank 1 is killed")
    parser.add_argument("--watch", type=float, default=60.0, help="seconds to watch the others then")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds to wait for the first step")
    parser.add_argument("--verbose", action="store_true", help="show MindSpore's own messages")
    options = parser.parse_args()
    if options.worldsize < 2:
        parser.error(f"--worldsize {options.worldsize}: a cluster in which one rank is killed has at least 2")
    if options.multihost and options.rank not in range(options.worldsize):
        parser.error(f"--multihost needs --rank, 0 to {options.worldsize - 1}")
    if options.rank is not None and not options.multihost:
        parser.error("--rank belongs to --multihost: without it all ranks are started here")
    if importlib.util.find_spec("mindspore") is None:
        parser.error("mindspore is not installed, and this is about its cluster")
    if options.backend in OTHER_BACKENDS:
        print(
            f"--backend {options.backend}: MindSpore's collectives for the CPU carry the bytes (MCCL over TCP)",
            flush=True,
        )
    return options


def find_port(options: argparse.Namespace) -> int:
    """Return a port on which the scheduler can listen; this host has it when the scheduler is started here."""
    port = options.port or (29500 if options.multihost else 0)
    if not options.multihost or options.rank == 0:
        try:
            with socket.create_server((options.addr, port)) as probe:
                return int(probe.getsockname()[1])
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (")[0]
            sys.exit(f"single_world.py: the scheduler cannot listen at {options.addr} port {port}: {reason}")
    return int(port)


def main() -> None:
    if sys.argv[1:2] == ["--be"]:
        be(sys.argv[2])
        return
    options = parse()
    options.port = find_port(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the processes that were started end as well
    with contextlib.suppress(KeyboardInterrupt), Cluster(options) as cluster:
        (several_hosts if options.multihost else one_host)(cluster, options)


if __name__ == "__main__":
    main()
