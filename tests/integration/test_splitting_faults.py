"""Devices that are killed, frozen, raise or run out of memory: no wrong answer, and nothing left over."""

import contextlib
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.mindspore, pytest.mark.usefixtures("watched")]
ms = pytest.importorskip("mindspore")

from ms_recover.errors import DeviceLostError, NoDeviceLeftError, PartError  # noqa: E402
from ms_recover.splitting import FaultTolerantModelSplitter, ModelSplitter  # noqa: E402
from tests.support.splitting import (  # noqa: E402
    EXITS,
    FILLS,
    RAISES,
    STALLS,
    Unsupported,
    children,
    chunks_done,
    close_to,
    given,
    make,
    outcome,
    wait_for,
)

FORWARDS = int(os.environ.get("MS_RECOVER_FORWARDS", "4"))
SEED = int(os.environ.get("MS_RECOVER_SEED", "1"))
HEARTBEAT = 1.0
ROWS = 400


class Striker:
    """Kills or freezes a random worker at a random moment of what runs under it."""

    def __init__(self, splitter, within, seed=SEED):
        self.splitter, self.within, self.random = splitter, within, random.Random(seed)
        self.strikes = []

    def __enter__(self):
        how = self.random.choice([signal.SIGKILL, signal.SIGSTOP])
        self._timer = threading.Timer(self.random.random() * self.within, self._strike, (how,))
        self._timer.start()

    def _strike(self, how):
        pairs = []
        while not pairs:  # each device may be about to get a process
            pairs = [pair for pair in enumerate(self.splitter.processes) if pair[1]]
            time.sleep(0 if pairs else 0.01)
        device, process = self.random.choice(pairs)
        with contextlib.suppress(ProcessLookupError):  # a frozen one that was noticed just now
            os.kill(process, how)
        self.strikes.append((device, process, how.name))

    def __exit__(self, *_):
        self._timer.join()

    def noticed(self):
        """Whether the splitter knows of the last strike."""
        device, process, _ = self.strikes[-1]
        return self.splitter.processes[device] != process


def rows_left(report):
    """Return which rows a report does not call missing."""
    keep = np.ones(report.rows, bool)
    for gap in report.missing:
        assert gap.cause
        assert gap.words
        assert keep[gap.start : gap.stop].all(), "a row is reported twice"
        keep[gap.start : gap.stop] = False
    return keep


def seconds_of(splitter, x):
    """Return what a forward takes."""
    splitter.forward(x)
    begin = time.monotonic()
    splitter.forward(x)
    return time.monotonic() - begin


def restarted(splitter):
    return wait_for(lambda: all(splitter.device_states), "all devices are back")


@pytest.mark.timeout(60 + 60 * FORWARDS)
@pytest.mark.parametrize(("split", "devices"), [("layers", 2), ("batch", 2)][: 1 if FORWARDS < 10 else 2])
def test_every_answer_is_right_where_devices_recover(split, devices, capsys):
    model, x = make("mlp", width=512, layers=6), given("mlp", ROWS)
    want = outcome(model, x)
    redone = lost = 0
    with FaultTolerantModelSplitter(model, devices, split, heartbeat=HEARTBEAT, max_restarts=10**6) as splitter:
        striker = Striker(splitter, seconds_of(splitter, x))
        worst = 0.0
        for number in range(FORWARDS):
            with striker:
                got = splitter.forward(x)
            assert close_to(got.asnumpy(), want), (number, striker.strikes[-1])
            assert splitter.last_report.missing == ()
            redone, lost = redone + splitter.last_report.redone, lost + len(splitter.last_report.lost)
            worst = max(worst, splitter.last_report.seconds)
        # between forwards it is noticed as well
        wait_for(striker.noticed, "the last strike is noticed")
        restarted(splitter)
        splitter.forward(x)
        assert splitter.last_report.lost == ()
        seconds = [event.seconds for event in splitter.events if event.kind == "recovered"]
        # one that is struck again before it holds its part is lost twice and recovers once
        assert 1 <= len(seconds) <= len([event for event in splitter.events if event.kind == "lost"])
    with capsys.disabled():
        print(
            f"\nrecover, {split}: {FORWARDS} forwards, {lost} devices lost in one, {redone} chunks redone, "
            f"recovery {np.median(seconds):.2f} s (worst {max(seconds):.2f}), worst forward {worst:.2f} s"
        )


@pytest.mark.timeout(60 + 60 * FORWARDS)
@pytest.mark.parametrize(("split", "devices"), [("batch", 2), ("layers", 3)][: 1 if FORWARDS < 10 else 2])
def test_every_missing_row_is_reported_where_they_are_skipped(split, devices, capsys):
    model, x = make("mlp", width=512, layers=6), given("mlp", ROWS)
    if split == "layers":  # two parts, one of them twice
        model = make("mlp", width=512, layers=0)
    want = outcome(model, x)
    partial = empty = whole = 0
    with FaultTolerantModelSplitter(
        model, devices, split, on_failure="skip", heartbeat=HEARTBEAT, chunk_rows=25
    ) as splitter:
        striker = Striker(splitter, seconds_of(splitter, x))
        for number in range(FORWARDS):
            with striker:
                try:
                    got = splitter.forward(x).asnumpy()
                except NoDeviceLeftError:
                    got = None
            keep = rows_left(splitter.last_report)
            if got is None:
                assert not keep.any()
            else:
                assert keep.any()
                # which rows are there is what is reported, each one in its place
                assert got.shape == want[keep].shape
                assert np.abs(got - want[keep]).max() <= 1e-6 * np.abs(want).max(), (number, striker.strikes[-1])
            empty, whole, partial = empty + (got is None), whole + keep.all(), partial + (0 < keep.sum() < ROWS)
            wait_for(striker.noticed, f"strike {striker.strikes[-1]} is noticed")
            assert splitter.device_states[striker.strikes[-1][0]] is False, "it stays away until reset"
            splitter.reset_device_states()
            assert splitter.device_states == [True] * devices
        assert close_to(splitter.forward(x).asnumpy(), want)
        assert splitter.last_report.missing == ()
    with capsys.disabled():
        print(f"\nskip, {split}: {FORWARDS} forwards, {whole} whole, {partial} with rows missing, {empty} empty")


def test_a_lost_device_raises_where_that_is_asked_for():
    model, x = make("mlp"), given("mlp", ROWS)
    want = outcome(model, x)
    with FaultTolerantModelSplitter(model, 2, on_failure="raise", heartbeat=HEARTBEAT) as splitter:
        assert close_to(splitter.forward(x).asnumpy(), want)
        os.kill(splitter.processes[0], signal.SIGKILL)
        with pytest.raises(DeviceLostError, match="device 0") as caught:
            splitter.forward(x)
        assert (caught.value.device, caught.value.part) == (0, 0)
        assert splitter.device_states == [False, True]
        with pytest.raises(DeviceLostError):
            splitter.forward(x)
        splitter.reset_device_states()
        assert splitter.device_states == [True, True]
        assert close_to(splitter.forward(x).asnumpy(), want)
        os.kill(splitter.processes[1], signal.SIGSTOP)
        with pytest.raises(DeviceLostError, match="heartbeat") as caught:
            splitter.forward(x)
        assert (caught.value.device, caught.value.cause) == (1, "heartbeat")


def spoilt(x, value, row):
    y = x.copy()
    y[row, 0] = value
    return y


class Passing:
    """Hands the first columns through the first layer of `moody`, so that its second sees them."""

    @staticmethod
    def model():
        model = make("moody")
        identity = np.eye(64, dtype=np.float32)
        model[0].weight.set_data(ms.Tensor.from_numpy(identity))
        model[0].bias.set_data(ms.Tensor.from_numpy(np.zeros(64, np.float32)))
        return model


def test_a_part_that_raises_harms_no_device():
    model, x = Passing.model(), given("moody", 64)
    want = outcome(model, x)
    with ModelSplitter(model, 2, heartbeat=HEARTBEAT) as splitter:
        processes = splitter.processes
        for value, words in ((RAISES, "such a row again"), (FILLS, "Unable to allocate|MemoryError")):
            with pytest.raises(PartError, match=words) as caught:
                splitter.forward(spoilt(x, value, 40))
            assert caught.value.part == 0
            assert splitter.last_report.missing
            assert close_to(splitter.forward(x).asnumpy(), want)
        assert splitter.processes == processes
        with pytest.raises(DeviceLostError, match=r"(?i)exit code 77|connection") as caught:
            splitter.forward(spoilt(x, EXITS, 3))
        assert not isinstance(caught.value, PartError)
        with pytest.raises(DeviceLostError):
            splitter.forward(x)


@pytest.mark.parametrize("read_as", [ms.bfloat16, ms.float32], ids=str)
def test_an_operator_that_fails_in_the_background_raises(read_as):
    """MindSpore reports it when the output is read, which for bfloat16 is when it is sent."""
    splitter = ModelSplitter(Unsupported(read_as), 1, "batch", timeout=30.0)
    with splitter, pytest.raises(PartError, match=r"TypeError: .*Erfinv"):
        splitter.forward(given("mlp", 16))


def test_inputs_that_raise_wherever_they_run():
    """The first device is given a new process; when the rows raise again it is them, and no device is retired."""
    model, x = Passing.model(), given("moody", 64)
    want = outcome(model, x)
    with FaultTolerantModelSplitter(model, 2, heartbeat=HEARTBEAT, max_restarts=0) as splitter:
        for value in (RAISES, FILLS):
            splitter.reset_device_states()
            with pytest.raises(PartError):
                splitter.forward(spoilt(x, value, 40))
            assert close_to(splitter.forward(x).asnumpy(), want)
    with FaultTolerantModelSplitter(
        model, 2, "batch", on_failure="skip", heartbeat=HEARTBEAT, timeout=15.0
    ) as splitter:
        got = splitter.forward(spoilt(x, RAISES, 40)).asnumpy()
        keep = rows_left(splitter.last_report)
        assert not keep[40]
        assert keep[:32].all()
        assert splitter.last_report.missing[0].cause == "raised"
        assert "such a row" in splitter.last_report.missing[0].words
        assert np.abs(got - want[keep]).max() <= 1e-6 * np.abs(want).max()
        assert splitter.device_states.count(False) == 1
        assert close_to(splitter.forward(x).asnumpy(), want), "the other one can do it all"
        with pytest.raises(NoDeviceLeftError, match="timeout"):
            splitter.forward(spoilt(x, STALLS, 0)[:20])
        assert [gap.cause for gap in splitter.last_report.missing] == ["timeout"]


def test_inputs_that_end_every_process_of_the_only_device():
    """It is they that are at fault, and the device stays."""
    model, x = Passing.model(), given("moody", 64)
    with FaultTolerantModelSplitter(model, 1, heartbeat=HEARTBEAT, max_restarts=1) as splitter:
        with pytest.raises(PartError, match=r"(?i)(exit code 77|connection).*every process that got these rows"):
            splitter.forward(spoilt(x, EXITS, 40))
        assert close_to(splitter.forward(x).asnumpy(), outcome(model, x))
        assert splitter.device_states == [True]


@pytest.mark.parametrize(("devices", "restarts"), [(1, 1), (2, 0)])
def test_devices_that_rows_have_killed_are_away_until_fresh_processes_are_at_work(devices, restarts):
    """Behind the PartError nothing has to be called for that, and no device stays retired."""
    model, x, states = Passing.model(), given("moody", 64), []

    def looked_at(event):
        states.append((event.kind, event.device, made and list(made[0].device_states)))

    made = []
    options = {"heartbeat": HEARTBEAT, "max_restarts": restarts, "on_event": looked_at}
    with FaultTolerantModelSplitter(model, devices, "batch", **options) as splitter:
        made.append(splitter)
        with pytest.raises(PartError, match="every process that got these rows"):
            splitter.forward(spoilt(x, EXITS, 0)[:16])
        lost = [(device, found[device]) for kind, device, found in states if kind == "lost"]
        assert {device for device, _ in lost} == set(range(devices))
        assert not any(at_work for _, at_work in lost)
        restarted(splitter)
        assert {(device, found[device]) for kind, device, found in states if kind == "recovered"} == {
            (device, True) for device in range(devices)
        }
        assert close_to(splitter.forward(x).asnumpy(), outcome(model, x))


def test_a_device_that_keeps_failing_is_retired():
    model, x = make("mlp"), given("mlp", ROWS)
    want = outcome(model, x)
    with FaultTolerantModelSplitter(model, 2, max_restarts=0, heartbeat=HEARTBEAT) as splitter:
        os.kill(splitter.processes[0], signal.SIGKILL)
        wait_for(lambda: splitter.device_states == [False, True], "the loss is noticed")
        assert close_to(splitter.forward(x).asnumpy(), want)
        assert splitter.device_states == [False, True]
        assert [event.kind for event in splitter.events if event.kind in ("retired", "moved")] == ["retired", "moved"]
        done = chunks_done(splitter)
        assert done[0] == 0
        assert done[1] > 0
        os.kill(splitter.processes[1], signal.SIGKILL)
        with pytest.raises(NoDeviceLeftError):
            splitter.forward(x)
        with pytest.raises(NoDeviceLeftError):
            splitter.forward(x)
        assert splitter.device_states == [False, False]
        assert splitter.last_report.missing[0].start == 0
        splitter.reset_device_states()
        assert splitter.device_states == [True, True]
        assert close_to(splitter.forward(x).asnumpy(), want)
        assert chunks_done(splitter)[0] > 0


def slices(splitter, part):
    return sorted(
        path for path in Path(splitter.directory).glob("rank_*/*.ckpt") if int(path.parent.name[5:]) // 2 == part
    )


def test_weights_are_repaired_before_they_are_used():
    """A damaged and a missing slice; and what is said when no whole one is left."""
    model, x = make("mlp"), given("mlp", 100)
    want = outcome(model, x)
    told = []
    with FaultTolerantModelSplitter(model, 2, heartbeat=HEARTBEAT, on_event=told.append) as splitter:
        first = slices(splitter, 0)[0]
        whole = first.read_bytes()
        first.chmod(0o600)
        first.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
        os.kill(splitter.processes[0], signal.SIGKILL)
        assert close_to(splitter.forward(x).asnumpy(), want)
        restarted(splitter)
        assert first.read_bytes() == whole
        assert [event.part for event in told if event.kind == "repaired"] == [0]
        first.unlink()
        os.kill(splitter.processes[0], signal.SIGKILL)
        assert close_to(splitter.forward(x).asnumpy(), want)
        restarted(splitter)
        assert first.read_bytes() == whole
        assert [event.part for event in told if event.kind == "repaired"] == [0, 0]
        assert tuple(told) == splitter.events


def test_a_part_without_any_slice_is_named_with_its_directory():
    model, x = make("mlp"), given("mlp", 100)
    with FaultTolerantModelSplitter(model, 2, heartbeat=HEARTBEAT, max_restarts=0) as splitter:
        for path in slices(splitter, 0):
            path.unlink()
        os.kill(splitter.processes[0], signal.SIGKILL)
        with pytest.raises(NoDeviceLeftError, match="slice") as caught:
            splitter.forward(x)
        assert splitter.directory in str(caught.value)


def waiting(splitter):
    """Return the process ids of workers that serve no device."""
    found = [int(child) for child in children() if "splitting.worker" in Path("/proc", child, "cmdline").read_text()]
    return set(found) - set(splitter.processes)


def test_a_spare_takes_over(capsys):
    model, x = make("mlp"), given("mlp", 100)
    want = outcome(model, x)
    with FaultTolerantModelSplitter(model, 2, spares=1, heartbeat=HEARTBEAT) as splitter:
        splitter.forward(x)
        before = splitter.processes
        [spare] = waiting(splitter)
        begin = time.monotonic()
        os.kill(before[1], signal.SIGKILL)
        wait_for(lambda: splitter.processes[1] not in (None, before[1]), "a spare takes over")
        assert close_to(splitter.forward(x).asnumpy(), want)
        took = time.monotonic() - begin
        assert splitter.processes == [before[0], spare]
        [event] = [event for event in splitter.events if event.kind == "recovered"]
        assert event.device == 1
        assert event.cause in ("eof", "reset")
        # the next spare dies while it waits, and is replaced
        splitter.reset_device_states()
        [spare] = wait_for(lambda: waiting(splitter), "another spare")
        os.kill(spare, signal.SIGKILL)
        [another] = wait_for(lambda: waiting(splitter) - {spare}, "a spare in place of the one that died")
        splitter.reset_device_states()
        os.kill(splitter.processes[0], signal.SIGKILL)
        assert close_to(splitter.forward(x).asnumpy(), want)
        wait_for(lambda: all(splitter.device_states), "all devices are back")
        assert splitter.processes[0] == another
    with capsys.disabled():
        print(f"\na spare: {took:.2f} s from the kill to the answer, {event.seconds:.2f} s to readiness")
