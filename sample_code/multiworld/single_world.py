"""The same in one MindSpore cluster: a leader and two workers reduce together, and one worker is killed.

    python single_world.py                # starts a scheduler and three ranks, kills rank 1, prints the effect

With MindSpore's own collectives the cluster is one fault domain. The survivors wait until the operation's time limit,
get an error, and are ended by the cluster soon after, although rank 0 and rank 2 could still reach each other.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time

SIZE = 3


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


def start(role: str, port: int, rank: int | None = None) -> subprocess.Popen[bytes]:
    cluster = {
        "MS_ROLE": "MS_SCHED" if role == "scheduler" else "MS_WORKER",
        "MS_WORKER_NUM": str(SIZE),
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(port),
    }
    if rank is not None:
        cluster["MS_NODE_ID"] = str(rank)
    return subprocess.Popen([sys.executable, __file__, "--be", role], env={**os.environ, **cluster})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--be", choices=["scheduler", "worker"], help=argparse.SUPPRESS)
    parser.add_argument("--after", type=float, default=20.0, help="seconds after which rank 1 is killed")
    parser.add_argument("--watch", type=float, default=60.0, help="seconds to watch the others then")
    options = parser.parse_args()
    if options.be:
        {"scheduler": be_scheduler, "worker": be_worker}[options.be]()
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    processes = {"scheduler": start("scheduler", port)}
    processes |= {f"rank {rank}": start("worker", port, rank) for rank in range(SIZE)}
    try:
        time.sleep(options.after)
        processes["rank 1"].kill()
        struck = time.monotonic()
        print(f"{time.strftime('%X')} rank 1 is killed", flush=True)
        living = set(processes) - {"rank 1"}
        while living and time.monotonic() - struck < options.watch:
            for name in sorted(living):
                code = processes[name].poll()
                if code is not None:
                    how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                    print(f"{time.monotonic() - struck:5.1f} s later {name} is dead too: {how}", flush=True)
                    living.remove(name)
            time.sleep(0.1)
        print(f"still there after {options.watch:g} s: {', '.join(sorted(living)) or 'nobody'}", flush=True)
    finally:
        for process in processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


if __name__ == "__main__":
    main()
