import threading

import pytest

from ms_recover.stores.threads import in_threads

LIMIT = 10


def test_results_come_in_the_order_of_the_items():
    assert in_threads(3, lambda number: 2 * number, range(20)) == list(range(0, 40, 2))
    assert in_threads(0, str, ()) == []


def test_after_an_error_no_further_item_is_begun():
    begun, failed = [], threading.Event()

    def work(number):
        begun.append(number)
        failed.wait(0 if number == 0 else LIMIT)
        if number == 0:
            raise ValueError("this one")

    threading.Timer(0.2, failed.set).start()
    with pytest.raises(ValueError, match="this one"):
        in_threads(2, work, range(100))
    assert len(begun) < 10


def test_an_error_stops_what_was_begun_and_is_the_one_that_is_raised():
    stop, began = threading.Event(), threading.Event()

    def work(number):
        if number == 0:
            began.set()
            assert stop.wait(LIMIT)
            raise KeyError("stopped")
        assert began.wait(LIMIT)
        raise ValueError("this one")

    with pytest.raises(ValueError, match="this one"):
        in_threads(2, work, range(2), stop)
    in_threads(1, str, range(2), done := threading.Event())
    assert not done.is_set()
