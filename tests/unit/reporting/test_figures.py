"""Bytes, seconds and rates, and the moments at which a line about progress is due."""

import pytest

from ms_recover.reporting.figures import Phase, rate_text, seconds_text, work_line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.00 s"),
        (0.214, "0.21 s"),
        (9.994, "9.99 s"),
        (12.4, "12 s"),
        (59.7, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3600, "1 h 0 min"),
        (7500, "2 h 5 min"),
    ],
)
def test_seconds(seconds, text):
    assert seconds_text(seconds) == text


@pytest.mark.parametrize(
    ("count", "seconds", "text"),
    [
        (12_800_000_000, 10, "1.28 GB/s"),
        (123_000_000, 1, "0.123 GB/s"),
        (1000, 1, "under 0.001 GB/s"),
        (0, 0, "under 0.001 GB/s"),
        (10**9, 0, "1000000000.00 GB/s"),
    ],
)
def test_rates_are_in_gb_a_second(count, seconds, text):
    assert rate_text(count, seconds) == text


def test_the_end_line_has_bytes_seconds_and_rate():
    assert work_line("Read", 12 << 30, 10) == "Read: 12.0 GiB in 10 s (1.29 GB/s)"
    assert work_line("Written", 0, 0.5) == "Written: 0 B in 0.50 s"


def test_a_line_has_share_total_rate_and_the_time_left():
    phase = Phase(total=10 << 30, began=100.0, done=3 << 30)
    assert phase.line("reading", 103.0) == "reading: 30 %, 3.0 GiB of 10.0 GiB, 1.07 GB/s, 7.00 s left"
    begun = Phase(total=1 << 30, began=0).line("reading", 5)
    assert begun == "reading: 0 %, 0 B of 1.0 GiB, under 0.001 GB/s, time left unknown"
    assert Phase(total=0, began=0, done=1 << 30).line("reading", 1) == "reading: 1.0 GiB, 1.07 GB/s"


def lines(total, counts, seconds_each):
    """Return the percentages at which lines come."""
    phase, now, found = Phase(total=total, began=0.0), 0.0, []
    for count in counts:
        now += seconds_each
        phase = Phase(phase.total, phase.began, phase.done + count, phase.line_at, phase.line_percent)
        if phase.due(now):
            found.append(phase.done * 100 // total)
            phase = phase.after_line(now)
    return found


def test_a_line_comes_every_10_percent():
    assert lines(1000 << 20, [1 << 20] * 1000, 0.001) == list(range(10, 101, 10))


def test_a_line_comes_every_30_seconds_where_10_percent_take_longer():
    assert lines(1000 << 20, [10 << 20] * 16, 10) == [3, 6, 9, 10, 13, 16]


def test_small_work_has_no_line_but_when_it_lasts():
    assert lines(1 << 20, [1 << 10] * 1024, 0.001) == []
    assert lines(1 << 20, [1 << 18] * 4, 31) == [25, 50, 75, 100]


def test_more_bytes_than_announced_stay_at_100_percent():
    assert "100 %" in Phase(total=100, began=0, done=150).line("reading", 1)
