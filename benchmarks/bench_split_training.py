"""Time training through a splitter: throughput over devices, the cost of snapshots, and the steps of a recovery.

Splitters take turns (A B A B), so that other load of the machine affects all of them; ratios are of medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import mindspore as ms
import numpy as np
from bench_splitting import BLOCKS, TABLE, TRAINING, WIDTH, kill_within, model, recovery_row, wait_for_spares
from mindspore import nn

from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter

ROWS = 4096
SNAPSHOT_ROWS, RECOVERY_ROWS = 1024, 512
SNAPSHOT_STEPS = 10


def adam(weights: list[Any]) -> Any:
    return nn.Adam(weights, 1e-4)


def splitter(kind: type[ModelSplitter], devices: int, split: str, **options: Any) -> ModelSplitter:
    return kind(model(), devices, split, loss_fn=nn.MSELoss(), optimizer=adam, threads=1, **options)


def batch(rows: int) -> tuple[Any, Any]:
    drawn = np.random.default_rng(0)
    x, y = (ms.Tensor(drawn.standard_normal((rows, WIDTH)), ms.float32) for _ in "xy")
    return x, y


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def shown(lines: list[str]) -> list[str]:
    """Print lines as soon as they are known."""
    print(*lines, sep="\n", file=sys.stderr, flush=True)
    return lines


def throughput(turns: int, devices: Sequence[int]) -> list[str]:
    x, y = batch(ROWS)
    lines = ["| split | devices | chunks | median step | times one device |", "|---|---|---|---|---|"]
    for split in ("layers", "batch"):
        with ExitStack() as stack:
            made = {
                count: stack.enter_context(splitter(ModelSplitter, count, split, snapshot_steps=10**6))
                for count in devices
            }
            taken: dict[int, list[float]] = {count: [] for count in devices}
            for one in made.values():
                one.train_step(x, y)
                one.train_step(x, y)
            for _ in range(turns):
                for count, one in made.items():
                    taken[count].append(seconds(lambda one=one: one.train_step(x, y)))
            alone = statistics.median(taken[devices[0]])
            for count, one in made.items():
                middle = statistics.median(taken[count])
                lines.append(
                    f"| {split} | {count} | {len(one.chunks(ROWS))} | {middle * 1e3:.0f} ms | {alone / middle:.2f} |"
                )
    return lines


def snapshots(turns: int) -> list[str]:
    x, y = batch(SNAPSHOT_ROWS)
    taken: dict[int, list[float]] = {SNAPSHOT_STEPS: [], 10**6: []}
    with ExitStack() as stack:
        made = {
            steps: stack.enter_context(splitter(ModelSplitter, 2, "layers", snapshot_steps=steps)) for steps in taken
        }
        for one in made.values():  # both end at a multiple of the steps, so that every turn takes one snapshot
            for _ in range(SNAPSHOT_STEPS):
                one.train_step(x, y)
        for _ in range(turns):
            for steps, one in made.items():
                taken[steps].append(seconds(lambda one=one: [one.train_step(x, y) for _ in range(SNAPSHOT_STEPS)]))
    with_them, without = (statistics.median(taken[steps]) for steps in taken)
    return [
        f"| {SNAPSHOT_STEPS} steps, one snapshot | {SNAPSHOT_STEPS} steps, none | cost |",
        "|---|---|---|",
        f"| {with_them * 1e3:.0f} ms | {without * 1e3:.0f} ms | {(with_them / without - 1) * 100:+.1f} % |",
    ]


def recovery(times: int, spares: int) -> str:
    x, y = batch(RECOVERY_ROWS)
    options = {"spares": spares, "max_restarts": 10 * times, "snapshot_steps": SNAPSHOT_STEPS}
    with splitter(FaultTolerantModelSplitter, 2, "layers", **options) as one:
        usual = statistics.median([seconds(lambda: one.train_step(x, y)) for _ in range(SNAPSHOT_STEPS)][1:])
        kills = []
        for turn in range(times):
            for _ in range(SNAPSHOT_STEPS // 2 - 1):
                one.train_step(x, y)
            kills.append(kill_within(one, turn % 2, usual / 3, lambda: one.train_step(x, y)))
            for _ in range(SNAPSHOT_STEPS - SNAPSHOT_STEPS // 2):
                one.train_step(x, y)
            wait_for_spares(one, spares)
    return recovery_row(spares, usual, kills)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--write", action="store_true", help=f"write the section into {TABLE.name}")
    options = parser.parse_args()
    ms.set_context(mode=ms.GRAPH_MODE)
    section = "\n".join(
        [
            TRAINING,
            "",
            f"Graph mode, Adam, one thread per process, {os.cpu_count()} cores. Medians of turns that alternate.",
            "`python benchmarks/bench_split_training.py --write` measures again.",
            "",
            f"Steps of {ROWS} rows in chunks of the splitter's choice: one device computes them at once; two",
            "that split layers can gain at most 2 x 8 / 9, as each waits for the other once.",
            "",
            *shown(throughput(options.turns, options.devices)),
            "",
            f"A snapshot holds weights and moments of {BLOCKS} layers; two devices, layers, {SNAPSHOT_ROWS} rows.",
            "",
            *shown(snapshots(max(2, options.turns // 2))),
            "",
            f"A worker of two is killed within a step of {RECOVERY_ROWS} rows, {SNAPSHOT_STEPS // 2 - 1} steps behind",
            f"the last snapshot, {options.kills} times; medians. Start is the import of MindSpore and of the model's",
            "code, unless a spare waits. Our own share is detection, proof and weights.",
            "",
            "| spares | no fault | detection | start | proof | weights | repeated steps | kill to answer | own share |",
            "|---|---|---|---|---|---|---|---|---|",
            *shown([recovery(options.kills, 0), recovery(options.kills, 1)]),
            "",
        ]
    )
    print(section, flush=True)
    if options.write:
        before = TABLE.read_text().partition(f"\n{TRAINING}\n")[0].rstrip("\n")
        TABLE.write_text(f"{before}\n\n{section}")


if __name__ == "__main__":
    main()
