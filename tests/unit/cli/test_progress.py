"""Progress where there is no terminal: lines on standard error, and figures for the end line."""

import io
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from ms_recover import api
from ms_recover.cli import progress
from ms_recover.cli.progress import Meter, progress_bar
from ms_recover.model.options import ScanOptions
from ms_recover.model.progress import Expecting, expect_bytes
from ms_recover.testing.trees import make_tree

MIB = 1 << 20


@pytest.fixture
def clock(monkeypatch):
    """Let time pass only when a test says so."""

    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def test_a_line_every_10_percent_on_standard_error(capsys, clock):
    with progress_bar("reading", None, False) as meter:
        meter.expect(1000 * MIB)
        for _ in range(1000):
            clock.now += 0.01
            meter(MIB)
    done = capsys.readouterr()
    assert done.out == ""
    lines = done.err.splitlines()
    assert len(lines) == 10
    assert lines[0] == "recover-ckpt: reading: 10 %, 100.0 MiB of 1000.0 MiB, 0.105 GB/s, 9.00 s left"
    assert lines[-1].startswith("recover-ckpt: reading: 100 %, 1000.0 MiB of 1000.0 MiB")
    assert (meter.done, round(meter.seconds, 3)) == (1000 * MIB, 10.0)


def test_each_phase_has_its_own_lines(capsys, clock):
    with progress_bar("reading", None, False) as meter:
        for total in (100 * MIB, 20 * MIB):
            meter.expect(total)
            for _ in range(2):
                clock.now += 1
                meter(total // 2)
    shares = [line.split()[2] for line in capsys.readouterr().err.splitlines()]
    assert shares == ["50", "100", "50", "100"]


def test_a_line_comes_also_while_no_byte_does(capsys, clock, monkeypatch):
    monkeypatch.setattr(progress, "_TICK_SECONDS", 0.001)
    said = threading.Event()
    monkeypatch.setattr(progress, "print_error", lambda text: (print(text, file=sys.stderr), said.set()))
    with progress_bar("reading", None, False) as meter:
        meter.expect(1000 * MIB)
        clock.now += 31
        assert said.wait(30)
    assert "reading: 0 %, 0 B of 1000.0 MiB" in capsys.readouterr().err


def test_no_thread_is_left(clock):
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt), progress_bar("reading", 100 * MIB, False):
        raise KeyboardInterrupt
    assert threading.active_count() == before


def test_beside_json_nothing_is_shown_and_everything_counted(capsys, clock):
    with progress_bar("reading", None, True) as meter:
        meter.expect(1000 * MIB)
        clock.now += 2
        meter(1000 * MIB)
    assert capsys.readouterr() == ("", "")
    assert (meter.done, meter.seconds) == (1000 * MIB, 2)


@pytest.mark.parametrize("kind", ["none", "closed", "full"])
def test_a_standard_error_that_takes_nothing_stops_no_work(kind, monkeypatch, clock):
    closed = io.StringIO()
    closed.close()
    with suppress(OSError), open("/dev/full", "w") as full:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stderr", {"none": None, "closed": closed, "full": full}[kind])
            with progress_bar("reading", 100 * MIB, False) as meter:
                meter(50 * MIB)
                meter(50 * MIB)
        assert meter.done == 100 * MIB


def test_threads_count_together(capsys):
    with progress_bar("reading", 64 * MIB, False) as meter, ThreadPoolExecutor(8) as pool:
        list(pool.map(meter, [MIB // 16] * 1024))
    assert meter.done == 64 * MIB
    assert len(capsys.readouterr().err.splitlines()) == 10


def test_plain_callbacks_need_no_total():
    counts = []
    expect_bytes(counts.append, 5)
    expect_bytes(None, 5)
    assert counts == []
    assert isinstance(Meter("reading"), Expecting)


def test_the_bytes_of_a_crc_check_are_counted_and_have_lines_without_a_total(tmp_path, capsys, clock):
    tree = make_tree(tmp_path / "tree", crc=True)
    size = sum(path.stat().st_size for path in tree.rglob("*.ckpt"))
    with progress_bar("checking CRCs", None, False) as meter:
        api.scan(tree, progress=meter)
        assert size * 0.9 < meter.done <= size
        clock.now += 30
        meter(1)
    assert re.fullmatch(r"recover-ckpt: checking CRCs: \S+ KiB, under 0.001 GB/s\n", capsys.readouterr().err)
    with progress_bar("checking CRCs", None, False) as meter:
        api.scan(tree, ScanOptions(crc=False), progress=meter)
    assert meter.done == 0
