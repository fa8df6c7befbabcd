"""A training under random kills and freezes: it ends with the undisturbed bits, or says which rows are missing."""

import contextlib
import os
import random
import signal
import threading
import time

import pytest

pytestmark = [pytest.mark.mindspore, pytest.mark.usefixtures("watched")]
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.errors import NoDeviceLeftError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter  # noqa: E402
from tests.support.split_training import OPTIMIZERS, batches, equal, network, one_process  # noqa: E402

MORE = "MS_RECOVER_EXAMPLES" in os.environ
STEPS, STRIKES = (200, 50) if MORE else (10, 2)
ROWS = 128
CLIP = 0.25
"""Below the norm of all gradients, which all parts exchange in each step."""


class Strikes:
    """Sends SIGKILL or SIGSTOP to a random device at a random moment of chosen steps."""

    def __init__(self, splitter, seed):
        self._splitter = splitter
        self._random = random.Random(seed)
        self._steps = set(self._random.sample(range(2, STEPS + 1), STRIKES))
        self._threads = []
        self._signals = [signal.SIGKILL, signal.SIGSTOP] * STRIKES
        self.struck = []

    def begin(self, step, usual):
        """Strike within this step, if it is chosen; `usual` are the seconds that a step takes."""
        if step in self._steps:
            delay = self._random.uniform(0, 1.2 * usual)
            device = self._random.randrange(len(self._splitter.processes))
            self._threads.append(threading.Thread(target=self._strike, args=(delay, device, self._signals.pop(0))))
            self._threads[-1].start()

    def _strike(self, delay, device, how):
        time.sleep(delay)
        process = self._splitter.processes[device]
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, how)
                self.struck.append((device, how.name))

    def end(self):
        for thread in self._threads:
            thread.join()
        assert len(self.struck) >= 0.8 * STRIKES, "too few processes were there to be struck"


def made(split, on_failure, **options):
    given = {"heartbeat": 1.5, "spares": 1, "max_restarts": 1000, "snapshot_steps": 7, "threads": 1, **options}
    training = {"loss_fn": nn.CrossEntropyLoss(), "optimizer": OPTIMIZERS["Adam"], "clip_norm": CLIP}
    return FaultTolerantModelSplitter(network(), 2, split, on_failure=on_failure, **given, **training)


@pytest.mark.parametrize("split", ["layers", "batch"] if MORE else ["layers"])
@pytest.mark.timeout(3600)
def test_recover_ends_with_the_undisturbed_bits(split, tmp_path):
    options = {"directory": tmp_path / "slices", "save_steps": 20} if split == "layers" else {}
    with made(split, "recover", **options) as splitter:
        strikes, usual = Strikes(splitter, seed=len(split)), 0.2
        for step, (x, y) in enumerate(batches(STEPS, ROWS), 1):
            strikes.begin(step, usual)
            began = time.monotonic()
            loss = splitter.train_step(x, y)
            usual = min(usual, time.monotonic() - began) if step > 1 else usual
            assert (loss.rows, loss.total, loss.step) == (ROWS, ROWS, step)
            assert splitter.last_report.missing == ()
        strikes.end()
        found, chunks = splitter.state_dict(), splitter.chunks(ROWS)
        lost = [event for event in splitter.events if event.kind == "lost"]
        print(f"{split}: {len(strikes.struck)} strikes in {STEPS} steps, {len(lost)} losses, {splitter.now:.0f} s")
        assert lost
    wanted, _ = one_process(STEPS, chunks, "Adam", ROWS, CLIP)
    assert equal({name: weight.asnumpy() for name, weight in found.items()}, wanted)


@pytest.mark.skipif(not MORE, reason="only with MS_RECOVER_EXAMPLES: it takes minutes")
@pytest.mark.timeout(3600)
def test_skip_reports_every_missing_row():
    with made("batch", "skip", chunk_rows=16) as splitter:
        strikes, usual, missing, refused = Strikes(splitter, seed=3), 0.2, 0, 0
        for step, (x, y) in enumerate(batches(STEPS, ROWS), 1):
            strikes.begin(step, usual)
            began = time.monotonic()
            try:
                loss = splitter.train_step(x, y)
            except NoDeviceLeftError:  # the step is not done, and is asked for again
                refused += 1
                splitter.reset_device_states()
                loss = splitter.train_step(x, y)
            usual = min(usual, time.monotonic() - began) if step > 1 else usual
            report = splitter.last_report
            rows = [row for each in report.missing for row in range(each.start, each.stop)]
            assert len(rows) == len(set(rows)) == loss.total - loss.rows, report
            assert report.rows == loss.total == ROWS
            assert all(each.cause and each.device is not None for each in report.missing)
            missing += len(rows)
            assert splitter.step == loss.step == step
            if not all(splitter.device_states):
                splitter.reset_device_states()
        strikes.end()
        print(f"{len(strikes.struck)} strikes in {STEPS} steps, {missing} rows missing, {refused} steps without device")
        assert missing
