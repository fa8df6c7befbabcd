"""The text of a splitter's report."""

from __future__ import annotations

import pytest

from ms_recover.splitting.events import Event, ForwardReport, Missing, Span
from ms_recover.splitting.progress import Device
from ms_recover.splitting.summary import EVENTS, WORDS, seconds_text, summary, totals

DEVICES = [
    Device(number=0, original=frozenset({0}), parts={0, 2}, generation=1, status="at work"),
    Device(number=1, original=frozenset({1}), parts={1}, generation=2, status="loading"),
    Device(number=2, original=frozenset({2}), generation=4, status="retired"),
]
PROCESSES = [4711, None, None]
SPANS = [
    Span(device=0, part=0, call=0, rows=(0, 5), began=10.0, ended=11.0),
    Span(device=1, part=1, call=0, rows=(0, 5), began=11.0, ended=12.0, outcome="lost"),
    Span(device=0, part=0, call=0, rows=(5, 9), began=11.0, ended=12.5),
    Span(device=2, part=2, call=0, rows=(0, 5), began=13.0, ended=14.0, outcome="raised"),
    Span(device=0, part=2, call=0, rows=(0, 5), began=19.5, ended=20.0),
]
EVENTS_THEN = [
    Event(at=9.5, kind="ready", device=0),
    Event(at=12.0, kind="lost", device=1, part=1, rows=None, cause="eof", words="process 4712 ended by SIGKILL"),
    Event(at=12.0, kind="redone", device=1, part=1, rows=(0, 5)),
    Event(at=14.0, kind="lost", device=2, part=2, rows=None, cause="raised", words="ValueError: bad\nshape"),
    Event(at=14.2, kind="retired", device=2, part=None, rows=None, cause="raised"),
    Event(at=14.25, kind="moved", device=0, part=2, rows=None, cause="", words="from device 2"),
    Event(at=1234.5678, kind="recovered", device=1, part=None, rows=None, cause="eof", words="", seconds=2.345),
]
REPORTS = [
    ForwardReport(
        call=0,
        rows=9,
        chunks=2,
        missing=(Missing(start=5, stop=9, device=1, part=1, cause="eof", words=""),),
        redone=1,
        lost=(1, 2),
        seconds=10.0,
    ),
    ForwardReport(call=1, rows=9, chunks=2, missing=(), redone=0, lost=(), seconds=0.05),
]
GOLDEN = """\
device  state    parts  process  chunks  rows  busy s  busy  lost  restarts
0       ok       0, 2      4711       3    14    3.00   30%     0         0
1       lost     1            -       0     0    0.00    0%     1         1
2       retired  -            -       0     0    1.00   10%     1         3

2 forwards, 18 rows, 4 missing, 1 chunk redone, median 5.03 s, worst 10.00 s

events:
     9.500 s  ready device 0
    12.000 s  lost device 1, part 1: eof: process 4712 ended by SIGKILL
    12.000 s  redone device 1, part 1, rows 0 to 5
    14.000 s  lost device 2, part 2: raised: ValueError: bad\\nshape
    14.200 s  retired device 2: raised
    14.250 s  moved device 0, part 2: from device 2
  1234.568 s  recovered device 1 after 2.35 s: eof"""


def test_the_report_lists_devices_totals_and_events() -> None:
    assert summary(DEVICES, PROCESSES, SPANS, EVENTS_THEN, REPORTS) == GOLDEN


def test_a_splitter_without_devices_and_forwards_says_so() -> None:
    assert summary([], [], [], [], []) == "no devices\n\nno forwards yet"


def test_devices_that_did_nothing_yet_have_no_share() -> None:
    device = Device(number=0, original=frozenset(), parts={0, 1, 2}, generation=1, status="at work")
    text = summary([device], [7], [], [], [])
    assert text.splitlines()[1].split() == ["0", "ok", "0-2", "7", "0", "0", "0.00", "-", "0", "0"]


def test_a_span_of_no_length_has_no_share() -> None:
    text = summary(
        DEVICES[:1], PROCESSES[:1], [Span(device=0, part=0, call=0, rows=(0, 1), began=3.0, ended=3.0)], [], []
    )
    assert text.splitlines()[1].split()[-3:] == ["-", "0", "0"]


def test_only_the_last_events_are_shown_newest_last() -> None:
    lines = summary([], [], [], [Event(at=float(at), kind="lost", device=at) for at in range(35)], []).splitlines()
    assert f"last {EVENTS} of 35 events:" in lines
    assert lines[-1].endswith("lost device 34")
    assert lines[-EVENTS].endswith("lost device 15")


def test_long_words_are_cut() -> None:
    line = summary([], [], [], [Event(at=1.0, kind="lost", device=0, words="x" * 5000)], []).splitlines()[-1]
    assert line.endswith("xxx...")
    assert len(line) < WORDS + 20


def test_an_event_about_no_device_leaves_no_trailing_space() -> None:
    assert summary([], [], [], [Event(at=1.0, kind="reset")], []).splitlines()[-1] == "     1.000 s  reset"


def test_totals_of_one_forward() -> None:
    assert totals([ForwardReport(call=0, rows=1, chunks=1, missing=(), redone=2, lost=(), seconds=0.0123)]) == (
        "1 forward, 1 row, 0 missing, 2 chunks redone, median 12.3 ms, worst 12.3 ms"
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (0.00085, "850 us"),
        (0.0009999, "1.0 ms"),
        (0.0123, "12.3 ms"),
        (0.99997, "1.00 s"),
        (2.3, "2.30 s"),
        (119.999, "2 min 0 s"),
        (200.2, "3 min 20 s"),
    ],
)
def test_durations_have_a_unit_that_fits(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
