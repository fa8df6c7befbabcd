"""Time steps, the stall of a save and a resume in real trainings, in turns with another version of ms_recover.

Every training is a process of its own, so that ``--against`` can run the code of another tree in turn with this one
(A B A B). Figures are medians; ratios are of pairs that ran one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("training.md")
HERE = Path(__file__).resolve()
LIMIT = 300.0
STEPS = 60
SAVE_STEPS = 10
READ = 0.02
ROWS = 4
Figures = dict[str, list[float]]
"""Milliseconds by what was measured."""

METHOD = f"""\
# What a training pays, in turns with the version before

{{cores}} cores, {{rounds}} processes of each version in turns, one rank where nothing else is said. A training of
{STEPS} steps an epoch, with batches of 1 MiB, Adam and {SAVE_STEPS} steps a save. Where it is resumed, samples take
{READ * 1e3:.0f} ms each and a batch has {ROWS} ({ROWS * READ * 1e3:.0f} ms). Medians of milliseconds; ratios are of
pairs of processes, lowest and highest in brackets.

- step: a step at which nothing is saved, from its begin to the begin of the next.
- callback: what of it `SliceCheckpoint` takes.
- stall: what `SliceCheckpoint` takes of a step at which it saves.
- two ranks: a small network over two processes (msrun), so that the exchange at a save shows.
- resume within an epoch, at an epoch's first batch: from the call of `recover_train` to the first step (goal: at most
  one batch more than before, resp. the reading of the epoch before, which the printed line says).

| | before | now | now : before |
|---|---|---|---|
"""


# --- one training ----------------------------------------------------------------------------------------------------


def train(folder: str, asynchronous: bool, width: int = 256, cells: int = 20) -> Figures:
    """Train two epochs with saves; return what steps and saves took."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    from ms_recover.training import SliceCheckpoint, recover_train

    class Mark(ms.Callback):  # type: ignore[misc]
        """Writes down when it was called."""

        stateless = True

        def __init__(self) -> None:
            self.begun: list[float] = []

        def on_train_step_begin(self, run_context: Any) -> None:
            self.begun.append(time.perf_counter())

    class Timed(SliceCheckpoint):
        """Writes down how long it takes."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.took: list[float] = []

        def on_train_step_end(self, run_context: Any) -> None:
            begun = time.perf_counter()
            super().on_train_step_end(run_context)
            self.took.append(time.perf_counter() - begun)

    rng = np.random.default_rng(1)
    features = rng.random((STEPS * 256, 1023), np.float32)
    data = ms.dataset.NumpySlicesDataset(
        (features, np.zeros((STEPS * 256, 1), np.float32)), ["data", "label"], shuffle=False
    ).batch(256)
    network = nn.SequentialCell(
        nn.Dense(1023, width), *[nn.Dense(width, width) for _ in range(cells)], nn.Dense(width, 1)
    )
    model = ms.Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 1e-4))
    mark = Mark()
    save = Timed(f"{folder}/ckpt_dir{{rank}}", prefix="net", save_steps=SAVE_STEPS, async_save=asynchronous)
    recover_train(model, data, folder, 2, [mark, save], False, fresh="start")
    figures: Figures = {"step": [], "callback": [], "stall": []}
    for number in range(SAVE_STEPS, 2 * STEPS - 1):  # the first steps warm up
        took = 1e3 * save.took[number]
        if (number + 1) % SAVE_STEPS:
            figures["callback"].append(took)
            figures["step"].append(1e3 * (mark.begun[number + 1] - mark.begun[number]))
        else:
            figures["stall"].append(took)
    return figures


def train_ranks(folder: str) -> Figures:
    """Train a small network as one of several ranks."""
    from mindspore.communication import init

    init()
    return train(folder, False, 16, 2)


def resume(folder: str, done: int) -> Figures:
    """Train up to a step, begin again in the same way and return how long it takes to the first step."""
    import mindspore as ms
    import numpy as np
    from mindspore import nn

    from ms_recover.training import SliceCheckpoint, recover_train

    class Slow:
        """Samples that take their time."""

        def __getitem__(self, index: int) -> Any:
            time.sleep(READ)
            return np.full(8, index, np.float32), np.zeros(1, np.float32)

        def __len__(self) -> int:
            return 40 * ROWS

    class Stop(ms.Callback):  # type: ignore[misc]
        """Stops the training at a step; writes down when the first one begins."""

        stateless = True
        begun = 0.0

        def on_train_step_begin(self, run_context: Any) -> None:
            self.begun = self.begun or time.perf_counter()
            if begin:
                run_context.request_stop()

        def on_train_step_end(self, run_context: Any) -> None:
            if run_context.original_args().cur_step_num == done:
                run_context.request_stop()

    begin = 0.0
    for _ in range(2):
        data = ms.dataset.GeneratorDataset(Slow(), ["data", "label"], shuffle=False).batch(ROWS)
        network = nn.Dense(8, 1)
        model = ms.Model(network, nn.MSELoss(), nn.Momentum(network.trainable_params(), 1e-3, 0.9))
        save = SliceCheckpoint(f"{folder}/ckpt_dir{{rank}}", prefix="net", save_steps=done)
        stop = Stop()
        called = time.perf_counter()
        recover_train(model, data, folder, 3, [stop, save], False, fresh="start")
        begin = called
    return {"within" if done % 40 else "first": [1e3 * (stop.begun - begin)]}


WAYS: dict[str, Callable[[str], Figures]] = {
    "sync": lambda folder: train(folder, False),
    "async": lambda folder: train(folder, True),
    "ranks": train_ranks,
    "within": lambda folder: resume(folder, 30),
    "first": lambda folder: resume(folder, 40),
}
ROWS_OF = {
    ("sync", "step"): "step, saved in the step",
    ("sync", "callback"): "callback, saved in the step",
    ("sync", "stall"): "stall, saved in the step",
    ("async", "step"): "step, `async_save=True`",
    ("async", "callback"): "callback, `async_save=True`",
    ("async", "stall"): "stall, `async_save=True`",
    ("ranks", "callback"): "callback, two ranks",
    ("ranks", "stall"): "stall, two ranks",
    ("within", "within"): "resume within an epoch",
    ("first", "first"): "resume at an epoch's first batch",
}


# --- turns -----------------------------------------------------------------------------------------------------------


def run(tree: Path, way: str) -> dict[str, float]:
    """Run one training with the code of a tree; return the medians of what it measured."""
    child = [str(HERE), "--child", way, "--folder"]
    with tempfile.TemporaryDirectory() as folder:
        launch = [sys.executable]
        if way == "ranks":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            launch = [os.path.join(os.path.dirname(sys.executable), "msrun"), "--worker_num=2", "--local_worker_num=2"]
            launch += [f"--master_port={port}", f"--log_dir={folder}/logs", "--join=True", "--cluster_time_out=60"]
        done = subprocess.run(
            [*launch, *child, folder],
            env=dict(os.environ, PYTHONPATH=str(tree), GLOG_v="4"),
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        logs = sorted(Path(folder).glob("logs/worker_*.log"))
        text = "".join(log.read_text(errors="replace") for log in logs[:1]) if logs else done.stdout
    if done.returncode or "FIGURES " not in text:
        sys.exit(f"{tree}: {way} failed:\n{text[-2000:]}{done.stderr[-2000:]}")
    figures = json.JSONDecoder().raw_decode(text.rsplit("FIGURES ", 1)[1])[0]
    return {name: statistics.median(values) for name, values in figures.items()}


def measure(way: str, before: Path, now: Path, rounds: int) -> list[str]:
    """Return the rows of one way."""
    old, new = [], []
    for number in range(rounds + 1):
        if number % 2:  # A B B A: nobody gains by coming second
            second, first = run(now, way), run(before, way)
        else:
            first, second = run(before, way), run(now, way)
        if number:  # the first warms up
            old.append(first)
            new.append(second)
    rows = []
    for (kind, name), title in ROWS_OF.items():
        if kind == way:
            ratios = [b[name] / a[name] for a, b in zip(old, new, strict=True)]
            middle = [statistics.median(one[name] for one in side) for side in (old, new)]
            rows.append(
                f"| {title} | {middle[0]:.2f} | {middle[1]:.2f} | **{statistics.median(ratios):.3f}** "
                f"({min(ratios):.2f} - {max(ratios):.2f}) |"
            )
    return rows


def main() -> None:
    """Measure all ways; print the table, and write it on request."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--against", type=Path, help="root of the other version's tree")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", choices=sorted(WAYS), action="append")
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.name}")
    parser.add_argument("--child", choices=sorted(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print("FIGURES", json.dumps(WAYS[options.child](options.folder)))
        return
    if options.against is None:
        parser.error("--against is needed: the tree of the version before")
    text = METHOD.format(cores=len(os.sched_getaffinity(0)), rounds=options.rounds)
    print(text, end="", flush=True)
    for way in options.only or WAYS:
        for row in measure(way, options.against.resolve(), HERE.parents[1], options.rounds):
            print(row, flush=True)
            text += f"{row}\n"
    if options.write and not options.only:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
