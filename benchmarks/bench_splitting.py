"""Time a split model: throughput over devices, the overhead over the ideal schedule, and the steps of a recovery.

Splitters take turns (A B A B), so that other load of the machine affects all of them; ratios are of medians.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn

from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter, Span

TABLE = Path(__file__).with_name("splitting.md")
MODES = {"graph": ms.GRAPH_MODE, "PyNative": ms.PYNATIVE_MODE}
WIDTH, BLOCKS, ROWS = 1024, 12, 8192
Phases = dict[str, float]
"""Seconds by the name of the phase."""
TRAINING = "## Training"
"""Title of the section that bench_split_training.py writes."""


class Block(nn.Cell):
    """A layer with much work and few weights."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(WIDTH, WIDTH, activation="relu")

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Return the sum of input and layer."""
        return x + self.dense(x)


def model() -> nn.Cell:
    made = nn.SequentialCell(*[Block() for _ in range(BLOCKS)])
    made.set_train(False)
    return made


def ideal(spans: Sequence[Span], parts: int) -> float:
    """Return the seconds that the measured compute times take without any overhead.

    A chunk begins at a part once the part is free and the part before is done with the chunk.
    """
    chunks = sorted({span.rows for span in spans})
    took = {(span.rows, span.part): span.ended - span.began for span in spans}
    free = [0.0] * parts
    for rows in chunks:
        at = 0.0
        for part in range(parts):
            at = max(at, free[part]) + took[rows, part]
            free[part] = at
    return max(free)


def throughput(turns: int, devices: Sequence[int]) -> list[str]:
    cell, x = model(), ms.Tensor(np.random.default_rng(0).standard_normal((ROWS, WIDTH)), ms.float32)
    rows = [
        "| mode | split | devices | chunks | median | times one device | over the ideal schedule |",
        "|---|---|---|---|---|---|---|",
    ]
    for mode, split in itertools.product(MODES, ("layers", "batch")):
        ms.set_context(mode=MODES[mode])
        taken: dict[int, list[float]] = {count: [] for count in devices}
        over: dict[int, list[float]] = {count: [] for count in devices}
        with ExitStack() as stack:
            splitters = {count: stack.enter_context(ModelSplitter(cell, count, split, threads=1)) for count in devices}
            for splitter in splitters.values():
                splitter.forward(x)
            for _ in range(turns):
                for count, splitter in splitters.items():
                    before = len(splitter.spans)
                    began = time.perf_counter()
                    splitter.forward(x)
                    taken[count].append(time.perf_counter() - began)
                    if split == "layers":
                        over[count].append(taken[count][-1] / ideal(splitter.spans[before:], count) - 1)
            one = statistics.median(taken[devices[0]])
            for count, splitter in splitters.items():
                middle = statistics.median(taken[count])
                report = splitter.last_report
                extra = f"{statistics.median(over[count]) * 100:+.0f} %" if over[count] else ""
                rows.append(
                    f"| {mode} | {split} | {count} | {report.chunks if report else ''} | {middle * 1e3:.0f} ms "
                    f"| {one / middle:.2f} | {extra} |"
                )
    return rows


def kill_within(splitter: FaultTolerantModelSplitter, device: int, after: float, work: Callable[[], object]) -> Phases:
    """Kill a device's process so many seconds after some work began; return the seconds of each phase until its end."""
    struck: list[float] = []

    def strike() -> None:
        time.sleep(after)
        process = splitter.processes[device]
        assert process is not None
        struck.append(time.perf_counter())
        os.kill(process, signal.SIGKILL)

    before, origin = len(splitter.events), time.perf_counter() - splitter.now
    striker = threading.Thread(target=strike)
    striker.start()
    work()
    done = time.perf_counter()
    striker.join()
    news = splitter.events[before:]
    lost = next(event for event in news if event.kind == "lost")
    back = next(event for event in news if event.kind == "recovered")
    return {
        "detection": lost.at + origin - struck[0],
        **dict(back.phases),
        "again": done - (back.at + origin),
        "kill to answer": done - struck[0],
    }


def wait_for_spares(splitter: FaultTolerantModelSplitter, spares: int) -> None:
    deadline = time.monotonic() + 60
    while splitter.spares < spares and time.monotonic() < deadline:
        time.sleep(0.05)


def recovery_row(spares: int, usual: float, kills: Sequence[Phases]) -> str:
    """Return a row of the table of recoveries, in ms: the work without fault, the phases, and our own share of them."""
    middles = {name: statistics.median(kill[name] for kill in kills) for name in kills[0]}
    own = sum(middles[name] for name in ("detection", "proof", "weights"))
    return " | ".join([f"| {spares}", *(f"{each * 1e3:.0f} ms" for each in (usual, *middles.values(), own))]) + " |"


def recovery(times: int, spares: int) -> str:
    cell, x = model(), ms.Tensor(np.random.default_rng(0).standard_normal((ROWS // 4, WIDTH)), ms.float32)
    with FaultTolerantModelSplitter(cell, 2, spares=spares, max_restarts=10 * times, threads=1) as splitter:
        splitter.forward(x)
        plain = []
        for _ in range(3):
            began = time.perf_counter()
            splitter.forward(x)
            plain.append(time.perf_counter() - began)
        kills = []
        for turn in range(times):
            kills.append(kill_within(splitter, turn % 2, min(plain) / 3, lambda: splitter.forward(x)))
            wait_for_spares(splitter, spares)
    return recovery_row(spares, min(plain), kills)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} beside this file")
    options = parser.parse_args()
    table = "\n".join(
        [
            "# A split model in figures",
            "",
            f"{os.cpu_count()} cores, Python {sys.version.split()[0]}, MindSpore {ms.__version__}.",
            f"One thread per process; {BLOCKS} layers of {WIDTH} x {WIDTH}, float32, {ROWS} rows. Medians of turns",
            "that alternate. `python benchmarks/bench_splitting.py --write` measures again.",
            "",
            "## Throughput",
            "",
            "The ideal schedule has the compute times of the same forward and nothing else: a part begins a chunk when",
            "it is free and the part before has done it. In PyNative mode MindSpore arranges the weights anew for",
            "every product, so that chunks cost more than their share of the batch; graph mode does so once.",
            "",
            *throughput(options.turns, options.devices),
            "",
            "## From a kill to the answer",
            "",
            f"A worker of two is killed within a forward of {ROWS // 4} rows, {options.kills} times; medians.",
            "Proof is finding the slice and checking its bytes; start is the import of MindSpore and of the model's",
            "code, unless a spare waits. Our own share is detection, proof and weights.",
            "",
            "| spares | no fault | detection | start | proof | weights | rerun | kill to answer | own share |",
            "|---|---|---|---|---|---|---|---|---|",
            recovery(options.kills, 0),
            recovery(options.kills, 1),
            "",
        ]
    )
    print(table)
    if options.write:
        _, mark, training = TABLE.read_text().partition(f"\n{TRAINING}\n")  # of the other script
        TABLE.write_text(table + mark + training)


if __name__ == "__main__":
    main()
