"""The text of a splitter's report."""

from __future__ import annotations

import pytest

from ms_recover.splitting.events import Event, ForwardReport, Missing, Span
from ms_recover.splitting.summary import EVENTS, WORDS, DeviceRow, seconds_text, summary, totals

DEVICES = [
    DeviceRow(0, True, False, (0, 2), 4711, 0),
    DeviceRow(1, False, False, (1,), None, 1),
    DeviceRow(2, False, True, (), None, 3),
]
SPANS = [
    Span(0, 0, 0, (0, 5), 10.0, 11.0),
    Span(1, 1, 0, (0, 5), 11.0, 12.0, "lost"),
    Span(0, 0, 0, (5, 9), 11.0, 12.5),
    Span(2, 2, 0, (0, 5), 13.0, 14.0, "raised"),
    Span(0, 2, 0, (0, 5), 19.5, 20.0),
]
EVENTS_THEN = [
    Event(9.5, "ready", 0),
    Event(12.0, "lost", 1, 1, None, "eof", "process 4712 ended by SIGKILL"),
    Event(12.0, "redone", 1, 1, (0, 5)),
    Event(14.0, "lost", 2, 2, None, "raised", "ValueError: bad\nshape"),
    Event(14.2, "retired", 2, None, None, "raised"),
    Event(14.25, "moved", 0, 2, None, "", "from device 2"),
    Event(1234.5678, "recovered", 1, None, None, "eof", "", 2.345),
]
REPORTS = [
    ForwardReport(0, 9, 2, (Missing(5, 9, 1, 1, "eof", ""),), 1, (1, 2), 10.0),
    ForwardReport(1, 9, 2, (), 0, (), 0.05),
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


def test_the_whole_text() -> None:
    assert summary(DEVICES, SPANS, EVENTS_THEN, REPORTS) == GOLDEN


def test_nothing_at_all() -> None:
    assert summary([], [], [], []) == "no devices\n\nno forwards yet"


def test_devices_that_did_nothing_yet_have_no_share() -> None:
    text = summary([DeviceRow(0, True, False, (0, 1, 2), 7, 0)], [], [], [])
    assert text.splitlines()[1].split() == ["0", "ok", "0-2", "7", "0", "0", "0.00", "-", "0", "0"]


def test_a_span_of_no_length_has_no_share() -> None:
    text = summary(DEVICES[:1], [Span(0, 0, 0, (0, 1), 3.0, 3.0)], [], [])
    assert text.splitlines()[1].split()[-3:] == ["-", "0", "0"]


def test_only_the_last_events_are_shown_newest_last() -> None:
    lines = summary([], [], [Event(float(at), "lost", at) for at in range(35)], []).splitlines()
    assert f"last {EVENTS} of 35 events:" in lines
    assert lines[-1].endswith("lost device 34")
    assert lines[-EVENTS].endswith("lost device 15")


def test_long_words_are_cut() -> None:
    line = summary([], [], [Event(1.0, "lost", 0, words="x" * 5000)], []).splitlines()[-1]
    assert line.endswith("xxx...")
    assert len(line) < WORDS + 20


def test_an_event_about_no_device_leaves_no_trailing_space() -> None:
    assert summary([], [], [Event(1.0, "reset")], []).splitlines()[-1] == "     1.000 s  reset"


def test_totals_of_one_forward() -> None:
    assert totals([ForwardReport(0, 1, 1, (), 2, (), 0.0123)]) == (
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
def test_times_as_people_read_them(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text
