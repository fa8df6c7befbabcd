"""Callbacks of ``on_broken``: functions and coroutine functions of every form run, once for each world that breaks."""

import asyncio
import functools
import logging
import threading

import pytest

from ms_recover.worlds import SyncWorldManager, WorldManager, manager
from ms_recover.worlds.instructions import Fault

pytestmark = pytest.mark.filterwarnings("error")  # a coroutine that nobody awaits is one


def break_alone(made, name):
    """Break a world of one member."""
    made._worlds[name].break_world(Fault(0, "closed", "a test"))


class Noting:
    def __init__(self, function):
        self.function = function

    async def __call__(self, error):
        await self.function(error)

    async def method(self, error):
        await self.function(error)


FORMS = {
    "async def": lambda note: note,
    "partial": functools.partial,
    "object": Noting,
    "method": lambda note: Noting(note).method,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("leaves", ["at once", "later"])
def test_a_coroutine_function_runs_to_its_end_as_callback(form, leaves):
    seen, done = [], []

    async def note(error):
        seen.append((error.world, error.cause))
        await asyncio.sleep(0.05)
        done.append(error.world)

    async def main():
        async with WorldManager() as made:
            made.on_broken(FORMS[form](note))
            for name in ("a", "b"):
                await made.initialize_world(name, 0, 1)
                break_alone(made, name)
            if leaves == "later":
                while len(done) < 2:
                    await asyncio.sleep(0.01)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert seen == [("a", "closed"), ("b", "closed")]
    assert done == ["a", "b"]


def test_a_callback_may_make_the_world_again():
    async def main():
        made_again = asyncio.Event()
        async with WorldManager() as made:

            async def again(error):
                await made.initialize_world(error.world, 0, 1)
                made_again.set()

            made.on_broken(again)
            await made.initialize_world("w", 0, 1)
            break_alone(made, "w")
            await asyncio.wait_for(made_again.wait(), 60)
            assert made.worlds["w"].epoch == 1
            assert made.worlds["w"].error is None

    asyncio.run(main())


def test_an_error_of_a_coroutine_is_logged_as_that_of_a_function(caplog):
    async def fails(error):
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def main():
        async with WorldManager() as made:
            for callback in (fails, lambda error: 1 / 0):
                made.on_broken(callback)
            await made.initialize_world("w", 0, 1)
            break_alone(made, "w")

    with caplog.at_level(logging.ERROR):
        asyncio.run(main())
    failed = [record for record in caplog.records if record.getMessage() == "a callback of on_broken failed"]
    assert [record.exc_info[0] for record in failed] == [ZeroDivisionError] * 2


@pytest.mark.parametrize("who", ["the program", "the callback itself"])
def test_leaving_ends_a_callback_that_does_not_end_and_leaves_no_task(monkeypatch, who):
    monkeypatch.setattr(manager, "_LINGER_S", 0.1)
    ended = []

    async def main():
        left = asyncio.Event()
        made = WorldManager()

        async def waits(error):
            try:
                if who == "the callback itself":
                    await made.__aexit__()
                    left.set()
                else:
                    await asyncio.Event().wait()
            finally:
                ended.append(error.world)

        made.on_broken(waits)
        await made.initialize_world("w", 0, 1)
        break_alone(made, "w")
        if who == "the callback itself":
            await asyncio.wait_for(left.wait(), 60)
        await made.__aexit__()
        await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(main())
    assert ended == ["w"]


def test_a_coroutine_runs_in_the_thread_of_a_manager_without_a_loop():
    threads, ran = [], threading.Event()

    async def note(error):
        await asyncio.sleep(0)
        threads.append(threading.current_thread().name)
        ran.set()

    async def strike(made):
        break_alone(made, "w")

    with SyncWorldManager() as made:
        made.on_broken(note)
        made.initialize_world("w", 0, 1)
        made._loop_thread.run(lambda: strike(made._target))
        assert ran.wait(60)
    assert threads == ["ms_recover SyncWorldManager"]
