import pytest

from ms_recover.errors import StorageError, UsageError
from ms_recover.stores.local import StoppedError
from ms_recover.stores.patience import BreakError, Limits, Pace, Patience
from ms_recover.stores.store import never


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def pace(**options):
    clock = Clock()
    return clock, Pace("http://host/x", Limits(timeout=10, min_rate=1024), clock=clock, **options)


def test_what_comes_quickly_enough_may_come_for_ever():
    clock, one = pace()
    for _ in range(10_000):
        clock.now += 1
        one.came(1025)


def test_a_byte_now_and_then_ends_after_six_times_the_time_limit():
    clock, one = pace()
    with pytest.raises(StorageError, match=r"http://host/x comes too slowly, 60 bytes in 60 s.*--min-rate"):
        for _ in range(1000):
            clock.now += 1
            one.came(1)
    assert clock.now == 160


def test_a_burst_counts_for_its_window_alone():
    clock, one = pace()
    one.came(1 << 40)
    with pytest.raises(StorageError, match="too slowly, 0 bytes"):
        for _ in range(1000):
            clock.now += 1
            one.came(0)
    assert clock.now == 220


def test_time_that_is_spent_otherwise_does_not_count():
    clock, one = pace(whole=True)
    for _ in range(100):
        clock.now += 1000
        one.resume()
        one.came(0)


def test_a_listing_has_sixty_times_the_time_limit_in_all():
    clock, one = pace(whole=True)
    with pytest.raises(StorageError, match=r"not all there after 600 s.*--timeout"):
        for _ in range(1000):
            clock.now += 1
            one.came(1 << 20)
    assert clock.now == 701


def test_where_no_rate_is_asked_for_the_time_in_all_counts():
    clock, one = pace(whole=True)
    with pytest.raises(StorageError, match="not all there"):
        for _ in range(1000):
            clock.now += 1
            one.came(0, counted=False)
    assert clock.now == 701


def test_limits_are_those_given_and_for_the_rest_those_of_the_environment():
    assert Limits.from_environment(environment={}) == Limits()
    assert Limits.from_environment(environment={"MS_RECOVER_TIMEOUT": "2", "MS_RECOVER_MIN_RATE": ""}) == Limits(
        timeout=2
    )
    assert Limits.from_environment(3, 0, {"MS_RECOVER_TIMEOUT": "2"}) == Limits(timeout=3, min_rate=0)
    for variable, text in (
        ("MS_RECOVER_TIMEOUT", "0"),
        ("MS_RECOVER_MIN_RATE", "nan"),
        ("MS_RECOVER_MIN_RATE", "1 KiB"),
    ):
        with pytest.raises(UsageError, match=f"{variable} is '{text}'"):
            Limits.from_environment(environment={variable: text})


def test_the_fifth_break_in_a_row_is_the_last():
    one = Patience("http://host", 10)
    for _ in range(2):
        for _ in range(4):
            one.broke(BreakError("off", pause=0), never)
        one.progress()
    for _ in range(4):
        one.broke(BreakError("off", pause=0), never)
    with pytest.raises(StorageError, match=r"http://host cannot be reached, or is gone \(off\)"):
        one.broke(BreakError("off", pause=0), never)


def test_where_nobody_was_met_the_time_limit_counts():
    one = Patience("http://host", 0.15)
    with pytest.raises(StorageError, match="refused"):
        one.broke(BreakError("refused", met=False, pause=0), never)
    patient = Patience("http://host", 1000)
    for _ in range(20):
        patient.broke(BreakError("refused", met=False, pause=0), never)


def test_a_pause_ends_when_somebody_wants_it_to():
    with pytest.raises(StoppedError):
        Patience("http://host", 1000).broke(BreakError("busy", pause=900), lambda: True)
