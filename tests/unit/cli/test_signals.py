"""SIGINT and SIGTERM as exceptions."""

import importlib
import signal
import sys
import threading
import time
from concurrent.futures import Future, wait

import pytest

from ms_recover.cli.signals import Terminated, interruptible


@pytest.fixture(autouse=True)
def handlers():
    """Put back the handlers and the timer of the test run."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_raises_and_the_former_handler_comes_back(number, kind, handlers):
    with pytest.raises(KeyboardInterrupt) as caught, interruptible():
        signal.raise_signal(number)
    assert type(caught.value) is kind
    assert signal.getsignal(number) == handlers[number]


def test_an_ignored_sigint_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_changes_no_handler(handlers):
    seen = []

    def work():
        with interruptible():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert seen == [handlers[signal.SIGTERM]]


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_signal_that_is_swallowed_is_raised_again(number, kind, handlers):
    class Removed:
        def __del__(self):
            signal.raise_signal(number)

    hook = sys.unraisablehook
    with pytest.raises(KeyboardInterrupt) as caught, interruptible():
        Removed()
        time.sleep(10)
    assert type(caught.value) is kind
    assert sys.unraisablehook is hook
    assert signal.getsignal(number) == handlers[number]
    assert signal.getsignal(signal.SIGALRM) == handlers[signal.SIGALRM]


@pytest.mark.timeout(60, method="thread")
def test_a_signal_during_an_import_raises_behind_it(tmp_path, monkeypatch):
    """The import system swallows exceptions in some places, so the whole module is imported first."""
    (tmp_path / "slow_module.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsum(range(1000000))\nwhole = True\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    try:
        with pytest.raises(Terminated), interruptible():
            importlib.import_module("slow_module")
            threading.Event().wait(30)
        assert sys.modules["slow_module"].whole
    finally:
        sys.modules.pop("slow_module", None)


@pytest.mark.timeout(60, method="thread")
def test_a_signal_at_the_end_of_an_import_is_not_lost(tmp_path, monkeypatch):
    (tmp_path / "last_module.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsum([1])\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    try:
        with pytest.raises(Terminated), interruptible():
            importlib.import_module("last_module")
    finally:
        sys.modules.pop("last_module", None)
    assert signal.getitimer(signal.ITIMER_REAL)[0] == 0


class StruckLock:
    """A lock during whose taking a signal arrives."""

    def __init__(self):
        self.lock = threading.Lock()
        self.acquire, self.release = self.lock.acquire, self.lock.release

    def __enter__(self):
        self.lock.acquire()
        signal.raise_signal(signal.SIGINT)

    def __exit__(self, *error):
        self.lock.release()


def test_a_signal_while_a_condition_takes_its_lock_leaves_it_free():
    struck = StruckLock()
    with pytest.raises(KeyboardInterrupt), interruptible(), threading.Condition(struck):
        time.sleep(10)
    assert not struck.lock.locked()


@pytest.mark.parametrize("moment", ["acquire", "release"])
def test_a_signal_while_the_locks_of_futures_are_taken_or_given_back_leaves_them_free(moment):
    """Otherwise the thread whose future stays locked cannot end, and whoever waits for that thread waits for ever."""
    futures, struck = [Future() for _ in range(3)], []

    def strike(act):
        def stricken(*given):
            done = act(*given)
            if not struck:
                struck.append(signal.SIGTERM)
                signal.raise_signal(signal.SIGTERM)
            return done

        return stricken

    for future in futures:
        condition = future._condition
        setattr(condition, moment, strike(getattr(condition, moment)))
    with pytest.raises(Terminated), interruptible():
        wait(futures, timeout=10)
    assert struck
    assert not any(future._condition._is_owned() for future in futures)
