"""Time for which training stands still while a slice is saved, beside MindSpore's own writer and memcpy.

All ways take turns in one process, so that whatever else the machine does hits all of them alike.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn

from ms_recover.training import SliceSaver
from ms_recover.training.batches import digest_batch

TABLE = Path(__file__).with_name("saving.md")

METHOD = """\
# How long training stands still for a save

{mib} MiB a rank in {count} parameters, one rank, {cores} cores, file system {file_system}, {rounds} rounds. In each
round all ways save once, one after the other. Ratios are of one round; the table has the medians, lowest and highest in
brackets.

- MindSpore: `mindspore.save_checkpoint`, then `fsync` of the file and its directory.
- Sync: the stall of `SliceCheckpoint` for slice, digests and manifest, all durable (goal: at most 1.1 times MindSpore).
- memcpy: a copy of the same bytes into memory that was used before.
- Async: the stall with `async_save=True`, when the save before is written (goal: at most 1.2 times memcpy).
- Write: the time until such a save is committed, beside a training that waits.

`python benchmarks/bench_saving.py --help` tells how to run it elsewhere.

| format | MindSpore | sync | sync : MindSpore | memcpy | async | async : memcpy | write |
|---|---|---|---|---|---|---|---|
"""


class Big(nn.Cell):  # type: ignore[misc]
    """A network of many parameters."""

    def __init__(self, mib: int, count: int) -> None:
        super().__init__()
        rows = mib * (1 << 20) // 4 // 1024 // count
        rng = np.random.default_rng(1)
        self.parts = ms.ParameterTuple(
            [ms.Parameter(ms.Tensor(rng.random((rows, 1024), np.float32)), name=f"part{i}") for i in range(count)]
        )


class Saver:
    """Saves step after step, as a training would."""

    def __init__(self, network: Any, folder: Path, form: str, asynchronous: bool) -> None:
        name = "async" if asynchronous else "sync"
        self._saver = SliceSaver(
            network, f"{folder}/{name}/ckpt_dir{{rank}}", "net", 2, async_save=asynchronous, format=form
        )
        self._saver.begin()
        self._step = 0

    def save(self) -> float:
        """Return the seconds for which training would stand still."""
        self._step += 1
        return seconds(lambda: self._saver.save(self._step))

    def wait(self) -> None:
        """Wait until the save is committed."""
        while self._saver.committed is None or self._saver.committed.step != self._step:
            time.sleep(0.002)


def theirs(network: Any, path: Path, form: str) -> None:
    """Save with MindSpore, durably."""
    ms.save_checkpoint(network, str(path), integrated_save=False, format=form)
    for target in (path, path.parent):
        descriptor = os.open(target, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(root: Path, form: str, options: argparse.Namespace) -> str:
    """Return one row of the table."""
    network = Big(options.mib, options.parameters)
    arrays = [parameter.asnumpy() for parameter in network.get_parameters()]
    buffers = [array.copy() for array in arrays]

    def copy() -> None:
        for buffer, array in zip(buffers, arrays, strict=True):
            np.copyto(buffer, array)

    sync, background = Saver(network, root, form, False), Saver(network, root, form, True)
    rows = []
    for number in range(options.rounds + 1):
        path = root / f"theirs-{number}.{form}"
        took = [seconds(lambda path=path: theirs(network, path, form)), sync.save(), seconds(copy), background.save()]
        took.append(seconds(background.wait) + took[3])
        path.chmod(0o600)
        path.unlink()
        if number:  # the first warms up
            rows.append(took)
        time.sleep(options.pause)
    columns = list(zip(*rows, strict=True))
    middle = [statistics.median(column) for column in columns]

    def ratio(one: int, other: int) -> str:
        values = [a / b for a, b in zip(columns[one], columns[other], strict=True)]
        return f"**{statistics.median(values):.2f}** ({min(values):.2f} - {max(values):.2f})"

    return (
        f"| {form} | {middle[0]:.3f} s | {middle[1]:.3f} s | {ratio(1, 0)} | {middle[2]:.3f} s | {middle[3]:.3f} s | "
        f"{ratio(3, 2)} | {middle[4]:.3f} s |"
    )


def measure_digest(rounds: int) -> str:
    """Return the line on the digest of a batch, which is made when a save falls due."""
    batch = (ms.Tensor(np.random.default_rng(1).random((256, 1023), np.float32)), ms.Tensor(np.zeros(256, np.int32)))
    took = [1e3 * seconds(lambda: digest_batch(batch)) for _ in range(100 * rounds)]
    return (
        "The digest of a batch of 1 MiB, which is made when a save falls due (goal: at most 1 ms): "
        f"**{statistics.median(took):.3f} ms** (median of {len(took)}, the fastest {min(took):.3f} ms)."
    )


def main() -> None:
    """Measure both formats; print the table, and write it on request."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mib", type=int, default=300, help="MiB of a rank's slice")
    parser.add_argument("--parameters", type=int, default=60, help="number of parameters that it consists of")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two rounds")
    parser.add_argument("--folder", help="where to save; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.name}")
    options = parser.parse_args()
    ms.set_device("CPU")
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        kinds = {fields[1]: fields[2] for fields in (line.split() for line in open("/proc/mounts"))}  # noqa: SIM115
        mount = max((point for point in kinds if os.path.realpath(name).startswith(point)), key=len)
        text = METHOD.format(
            mib=options.mib,
            count=options.parameters,
            cores=len(os.sched_getaffinity(0)),
            file_system=kinds[mount],
            rounds=options.rounds,
        )
        print(text, end="", flush=True)
        for form in ("ckpt", "safetensors"):
            folder = Path(name) / form
            folder.mkdir()
            row = measure(folder, form, options)
            print(row, flush=True)
            text += f"{row}\n"
            shutil.rmtree(folder)
    digest = measure_digest(options.rounds)
    print(f"\n{digest}")
    text += f"\n{digest}\n"
    if options.write:
        _, section, rest = TABLE.read_text().partition("\n## ")
        TABLE.write_text(f"{text}{section}{rest}")


if __name__ == "__main__":
    main()
