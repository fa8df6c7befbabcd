"""Time what `SliceManifests` costs a training, as a share of the time that ``ModelCheckpoint`` takes to save.

Trainings with and without it take turns in one process, so that whatever else the machine does hits both alike.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import nn
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.training import SliceManifests

TABLE = Path(__file__).with_name("manifests.md")

METHOD = """\
# Manifests beside MindSpore's own saves

`SliceManifests` beside `ModelCheckpoint` on {cores} cores, file system {file_system}: {saves} saves a training,
{pause:.1f} s of other steps between two, {rounds} rounds of one training with it and one without.

- Waiting: the time that training stood still for `SliceManifests` at a save, as a share of the time that
  `ModelCheckpoint` took to save (goal: at most 5 %; lowest and highest in brackets). A thread beside the training
  writes the manifests.
- End: the wait at the end of the training for the manifest of the last save, as a share of one save.
- Saving: the time of a save with manifests as a multiple of one without: both share disk and memory.

`python benchmarks/bench_manifests.py --help` tells how to run it elsewhere.

| slice | format | save | waiting | end | saving |
|---|---|---|---|---|---|
"""


class TimedCheckpoint(ModelCheckpoint):  # type: ignore[misc]
    """Measures its saves."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seconds: list[float] = []

    def step_end(self, run_context: Any) -> None:
        """Save when a slice is due."""
        before, began = self.latest_ckpt_file_name, time.perf_counter()
        super().step_end(run_context)
        if self.latest_ckpt_file_name != before:
            self.seconds.append(time.perf_counter() - began)


class Pause(Callback):  # type: ignore[misc]
    """Stands for the time of the other steps."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def on_train_step_begin(self, run_context: Any) -> None:
        """Wait."""
        time.sleep(self._seconds)


class Big(nn.Cell):  # type: ignore[misc]
    """A network of some parameters, which a training step changes little."""

    def __init__(self, mib: int) -> None:
        super().__init__()
        count = 16
        rows = mib * (1 << 20) // 4 // 1024 // count
        values = np.ones((rows, 1024), np.float32)
        self.parts = ms.ParameterTuple([ms.Parameter(ms.Tensor(values), name=f"part{i}") for i in range(count)])
        self.small = nn.Dense(1, 1)

    def construct(self, x: Any) -> Any:
        """Use the small part alone."""
        return self.small(x)


def train(
    folder: Path, network: Any, form: str, saves: int, pause: float, manifests: SliceManifests | None
) -> list[float]:
    """Train with a number of saves; return the seconds of each."""
    rows = [(np.ones(1, np.float32), np.ones(1, np.float32))] * (2 * saves)
    data = ms.dataset.GeneratorDataset(rows, ["x", "y"], shuffle=False).batch(1)
    config = CheckpointConfig(save_checkpoint_steps=2, keep_checkpoint_max=2, format=form)
    saver = TimedCheckpoint("net", str(folder / "rank_0"), config)
    callbacks = [Pause(pause / 2), saver, *([manifests] if manifests else [])]
    model = Model(network, nn.MSELoss(), nn.SGD(network.small.trainable_params(), 0.01))
    model.train(1, data, callbacks=callbacks, dataset_sink_mode=False)
    found = len(list(folder.rglob(f"*{MANIFEST_SUFFIX}")))
    assert found == (2 if manifests else 0), found
    return saver.seconds


def measure(root: Path, mib: int, form: str, options: argparse.Namespace) -> str:
    """Return one row of the table."""
    network = Big(mib)
    shares, ends, plain, beside = [], [], [], []
    for number in range(options.rounds):
        for manifests in (SliceManifests(), None):
            folder = root / f"{number}"
            seconds = train(folder, network, form, options.saves, options.pause, manifests)[1:]  # the first warms up
            if manifests is None:
                plain.append(statistics.median(seconds))
            else:
                beside.append(statistics.median(seconds))
                shares += [wait / statistics.median(seconds) for wait in manifests.waits[1 : options.saves]]
                ends.append(sum(manifests.waits[options.saves :]) / statistics.median(seconds))
            shutil.rmtree(folder)
    ratios = [one / other for one, other in zip(beside, plain, strict=True)]
    return (
        f"| {mib} MiB | {form} | {statistics.median(plain):.2f} s | **{statistics.median(shares):.2%}** "
        f"({min(shares):.2%} - {max(shares):.2%}) | {statistics.median(ends):.0%} | {statistics.median(ratios):.2f} |"
    )


def main() -> None:
    """Measure all cases; print the table, and write it on request."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="64,512", help="MiB of a slice, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--saves", type=int, default=5)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two saves")
    parser.add_argument("--folder", help="where to save; default: a temporary folder")
    parser.add_argument("--write", action="store_true", help=f"write the table to {TABLE.name}")
    options = parser.parse_args()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        kinds = {fields[1]: fields[2] for fields in (line.split() for line in open("/proc/mounts"))}  # noqa: SIM115
        mount = max((point for point in kinds if os.path.realpath(name).startswith(point)), key=len)
        text = METHOD.format(
            cores=len(os.sched_getaffinity(0)),
            file_system=kinds[mount],
            saves=options.saves,
            pause=options.pause,
            rounds=options.rounds,
        )
        print(text, end="", flush=True)
        for mib in map(int, options.sizes.split(",")):
            for form in ("ckpt", "safetensors"):
                row = measure(Path(name), mib, form, options)
                print(row, flush=True)
                text += f"{row}\n"
    if options.write:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
