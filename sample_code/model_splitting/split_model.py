"""A model over four devices, then again with one of them killed in the middle of a forward.

It can be run from any directory::

    python split_model.py                     # the model's layers over four processes
    python split_model.py --split batch       # the whole model on each, a share of the batch each
    python split_model.py --on_failure skip   # leave out the lost rows instead of computing them again
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time

import mindspore as ms
import numpy as np
from mindspore import nn

from ms_recover.splitting import DeviceLostError, Event, FaultTolerantModelSplitter, ModelSplitter

ROWS, FEATURES, WIDTH, CLASSES, DEVICES = 100, 64, 512, 10, 4


class MyModel(nn.Cell):
    """Four layers, in three stages between which the model can be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Dense(FEATURES, WIDTH, activation="relu")
        self.hidden = nn.SequentialCell(
            nn.Dense(WIDTH, WIDTH, activation="relu"), nn.LayerNorm((WIDTH,)), nn.Dense(WIDTH, WIDTH, activation="relu")
        )
        self.head = nn.Dense(WIDTH, CLASSES)

    def construct(self, x: ms.Tensor) -> ms.Tensor:
        """Return the logits."""
        return self.head(self.hidden(self.embed(x)))

    def stages(self) -> list[nn.Cell]:
        """Return the cells that `construct` calls; each takes the output of the one before."""
        return [self.embed, self.hidden, self.head]


def difference(output: ms.Tensor, expected: np.ndarray) -> float:
    """Return the largest difference, relative to the largest value."""
    return float(np.abs(output.asnumpy() - expected).max() / np.abs(expected).max())


def kill_at_work(splitter: FaultTolerantModelSplitter) -> threading.Thread:
    """Kill the process of a device as soon as it has computed its first chunk of the next forward."""
    before, device = len(splitter.spans), DEVICES // 2

    def watch() -> None:
        while not any(span.device == device for span in splitter.spans[before:]):
            time.sleep(0.0005)
        process = splitter.processes[device]
        if process is not None:
            os.kill(process, signal.SIGKILL)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def print_event(event: Event) -> None:
    """Print an event."""
    print(f"  {event.at:7.3f} s  {event}", flush=True)


def main() -> None:
    """Split the model, compute, kill a device, compute again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("layers", "batch"), default="layers")
    parser.add_argument("--on_failure", choices=("recover", "skip", "raise"), default="recover")
    parser.add_argument("--spares", type=int, default=0, help="number of idle processes that can take over")
    parser.add_argument("--timeline", default="timeline.html", help="page with the work of each device")
    options = parser.parse_args()

    model = MyModel()
    model.set_train(False)
    x = ms.Tensor(np.random.default_rng(0).standard_normal((ROWS, FEATURES)), ms.float32)
    expected = model(x).asnumpy()

    with ModelSplitter(model, DEVICES, options.split) as splitter:
        output = splitter.forward(x)
        print(f"{ROWS} rows over {DEVICES} devices: output {output.shape}, off by {difference(output, expected):.1e}")

    with FaultTolerantModelSplitter(
        model,
        DEVICES,
        options.split,
        on_failure=options.on_failure,
        spares=options.spares,
        chunk_rows=50,
        on_event=print_event,
    ) as splitter:
        splitter.forward(x)
        killer = kill_at_work(splitter)
        many = ms.Tensor(np.tile(x.asnumpy(), (20, 1)))
        whole = np.tile(expected, (20, 1))
        try:
            output = splitter.forward(many)
        except DeviceLostError as error:
            print(f"{type(error).__name__}: {error}")
        else:
            report = splitter.last_report
            assert report is not None
            there = np.ones(len(whole), bool)
            for gap in report.missing:
                there[gap.start : gap.stop] = False
            off = difference(output, whole[there])
            print(f"{len(output)} of {len(whole)} rows, {report.redone} chunks done again, off by {off:.1e}")
        killer.join()
        print(f"devices at work: {splitter.device_states}")
        splitter.reset_device_states()
        print(f"after the reset: {splitter.device_states}")
        output = splitter.forward(x)
        print(f"and again {output.shape}, off by {difference(output, expected):.1e}")
        splitter.report()
        splitter.timeline(options.timeline)


if __name__ == "__main__":
    main()
