import asyncio
import os
import signal
import threading

import pytest

from ms_recover.errors import UsageError
from ms_recover.worlds.loop_thread import LoopThread


async def answer():
    await asyncio.sleep(0)
    return threading.current_thread()


def test_work_runs_in_the_thread_and_its_result_or_error_comes_back():
    async def fail():
        raise KeyError("lost")

    with LoopThread("Tested") as loop_thread:
        thread = loop_thread.run(answer)
        assert thread is not threading.current_thread()
        with pytest.raises(KeyError, match="lost"):
            loop_thread.run(fail)
    assert not thread.is_alive()


def test_an_error_of_the_check_cancels_the_work_and_is_raised_after_its_end():
    ended = threading.Event()

    async def work():
        try:
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.1)
            ended.set()

    def check():
        raise InterruptedError

    with LoopThread("Tested") as loop_thread:
        with pytest.raises(InterruptedError):
            loop_thread.run(work, check)
        assert ended.is_set()


def test_ctrl_c_cancels_the_work_and_is_raised_after_its_end():
    ended = threading.Event()

    async def work():
        try:
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            await asyncio.sleep(600)
        finally:
            await asyncio.sleep(0.1)
            ended.set()

    with LoopThread("Tested") as loop_thread:
        with pytest.raises(KeyboardInterrupt):
            loop_thread.run(work)
        assert ended.is_set()
        assert loop_thread.run(answer) is not threading.current_thread()


def test_the_own_thread_is_known():
    async def here(loop_thread):
        return loop_thread.here

    loop_thread = LoopThread("Tested")
    assert not loop_thread.here
    with loop_thread:
        assert loop_thread.run(lambda: here(loop_thread))
        assert not loop_thread.here


def test_work_is_refused_before_the_start_after_the_end_and_in_the_own_thread():
    async def run_inside(loop_thread):
        return loop_thread.run(answer)

    loop_thread = LoopThread("Tested")
    with pytest.raises(UsageError, match="Tested is not open: use it as a context manager"):
        loop_thread.run(answer)
    with loop_thread, pytest.raises(UsageError, match="cannot be used from its own event loop"):
        loop_thread.run(lambda: run_inside(loop_thread))
    with pytest.raises(UsageError, match="context manager"):
        loop_thread.run(answer)


def test_a_call_ends_when_the_loop_is_closed_meanwhile_and_its_work_cleans_up():
    cleaned = threading.Event()

    async def work():
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    loop_thread = LoopThread("Tested")
    with pytest.raises(UsageError, match="closed during a call"), loop_thread:
        closing = threading.Timer(0.3, loop_thread.__exit__)
        closing.start()
        try:
            loop_thread.run(work)
        finally:
            closing.join()
    assert cleaned.is_set()


def test_work_that_is_interrupted_before_it_begins_is_never_made(monkeypatch, recwarn):
    """Ctrl-C may strike before the work is handed to the loop: Python warns of a coroutine that nobody awaits."""
    made = []
    loop_thread = LoopThread("Tested")
    with loop_thread:
        loop, _ = loop_thread._running
        hand_over = loop.call_soon_threadsafe

        def interrupt(*_):
            monkeypatch.setattr(loop, "call_soon_threadsafe", hand_over)
            raise KeyboardInterrupt

        monkeypatch.setattr(loop, "call_soon_threadsafe", interrupt)
        with pytest.raises(KeyboardInterrupt):
            loop_thread.run(lambda: made.append("work") or answer())
        assert loop_thread.run(answer)
    assert made == []
    assert not recwarn.list


def test_work_is_made_in_the_thread_and_an_error_of_making_it_comes_back():
    made_in = []

    def make():
        made_in.append(threading.current_thread())
        return answer()

    with LoopThread("Tested") as loop_thread:
        assert loop_thread.run(make) is made_in[0]
        with pytest.raises(ZeroDivisionError):
            loop_thread.run(lambda: 1 // 0)
        assert loop_thread.run(answer)


def test_a_forked_child_is_refused_and_does_its_parent_no_harm():
    with LoopThread("Tested") as loop_thread:
        loop_thread.run(answer)
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                loop_thread.run(answer)
            except UsageError as error:
                os.write(writing, str(error).encode())
            finally:
                loop_thread.__exit__()
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            words = pipe.read().decode()
        os.waitpid(child, 0)
        assert f"this Tested belongs to process {os.getpid()}" in words
        assert str(child) in words
        assert loop_thread.run(answer)
