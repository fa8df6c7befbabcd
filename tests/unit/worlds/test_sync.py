"""Worlds without an event loop: methods, signatures and types of the synchronous classes."""

import asyncio
import inspect
import os
import subprocess
import sys
import threading
import time

import pytest

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds import SyncWorldManager, WorldCommunicator

USER_CODE = """
from typing import Any

from ms_recover.worlds import BrokenWorldError, Security, SyncWorldManager, WorldCommunicator, WorldManager


def use(manager: SyncWorldManager, tensor: Any) -> None:
    communicator = manager.communicator
    broken: bool = communicator.is_broken("w")
    gathered: list[Any] | None = communicator.gather(tensor, 1, world="w", tag=2, timeout=1.5)
    nothing: None = communicator.barrier(world="w")
    received = communicator.recv(1, world="w", out=tensor, as_tensor=True)
    communicator.send(tensor, dst=1, world="w")
    communicator.send(tensor, 1)
    communicator.recv(tensor, 1, "w")
    communicator.send(tensor)  # type: ignore[call-arg]
    communicator.all_reduce(tensor)  # type: ignore[call-arg]
    communicator.send(tensor, "1", world="w")  # type: ignore[arg-type]
    communicator.recv(1, world="w", most=3)  # type: ignore[call-arg]
    communicator.sent(tensor, 1, world="w")  # type: ignore[attr-defined]
    manager.initialize_world("w", "0", 2)  # type: ignore[arg-type]
    print(broken, gathered, nothing, received, manager.worlds["w"].epoch)


async def use_in_a_loop(manager: WorldManager, tensor: Any) -> None:
    communicator: WorldCommunicator = manager.communicator
    try:
        await communicator.send(tensor, 1, world="w")
    except BrokenWorldError as error:
        print(error.rank)
    Security(5)  # type: ignore[arg-type]
"""


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_communicator_has_the_methods_of_the_asynchronous_one_with_their_signatures():
    communicator = SyncWorldManager().communicator
    assert {"send", "recv", "all_reduce", "is_broken"} <= public(communicator) == public(WorldCommunicator)
    for name in public(communicator):
        ours, theirs = getattr(communicator, name), getattr(WorldCommunicator, name)
        assert ours.__doc__ == theirs.__doc__
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)[1:]
        assert not inspect.iscoroutinefunction(ours)


@pytest.mark.processes
def test_user_code_is_typed_under_mypy_strict(tmp_path):
    path = tmp_path / "user.py"
    path.write_text(USER_CODE)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--ignore-missing-imports", path],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_event_loop_comes_from_the_given_factory():
    made = []

    def factory():
        made.append(asyncio.new_event_loop())
        return made[-1]

    with SyncWorldManager(loop_factory=factory) as manager:
        manager.initialize_world("w", 0, 1)
        manager.communicator.barrier(world="w")
    with manager:
        assert not manager.worlds
    assert len(made) == 2
    assert all(loop.is_closed() for loop in made)


@pytest.fixture
def pair(port):
    """Two entered managers and their world "w"."""
    at = port()
    with SyncWorldManager() as one, SyncWorldManager() as two:
        other = threading.Thread(target=two.initialize_world, args=["w", 1, 2], kwargs={"port": at})
        other.start()
        one.initialize_world("w", 0, 2, port=at, timeout=60)
        other.join()
        yield one, two


@pytest.mark.processes
def test_a_callback_that_calls_the_manager_gets_an_error_and_stops_nothing(pair):
    one, two = pair
    found, called = [], threading.Event()

    def callback(error):
        for call in (
            lambda: one.remove_world("w"),
            lambda: one.communicator.recv(1, world="w"),
            one.__exit__,
            one.__enter__,
        ):
            with pytest.raises(UsageError) as caught:
                call()
            found.append(str(caught.value))
        assert str(one.worlds["w"].error) == str(error)
        called.set()

    one.on_broken(callback)
    two.remove_world("w")
    with pytest.raises(BrokenWorldError):
        one.communicator.recv(1, world="w")
    assert called.wait(60)
    assert len(found) == 4
    one.remove_world("w")
    one.initialize_world("alone", 0, 1)


@pytest.mark.processes
def test_a_forked_child_gets_errors_and_leaves_the_worlds_alone(pair):
    one, two = pair
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        for call in (lambda: one.communicator.barrier(world="w"), lambda: one.remove_world("w"), one.__enter__):
            try:
                call()
                os.write(writing, b"it worked; ")
            except UsageError:
                os.write(writing, b"refused; ")
            except BaseException as error:
                os.write(writing, repr(error).encode())
        one.__exit__()
        two.__exit__()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 999) == b"refused; refused; refused; "
    for descriptor in (reading, writing):
        os.close(descriptor)
    sending = threading.Thread(target=two.communicator.send, args=[b"still here", 0], kwargs={"world": "w"})
    sending.start()
    assert bytes(one.communicator.recv(1, world="w", timeout=60)) == b"still here"
    sending.join()


@pytest.mark.processes
@pytest.mark.parametrize("rank", [0, 1])
def test_leaving_ends_a_call_of_another_thread_that_makes_a_world(port, rank):
    ended = []

    def make(manager):
        with pytest.raises((UsageError, BrokenWorldError)) as caught:
            manager.initialize_world("w", rank, 2, port=port(), timeout=600)
        ended.append(caught.value)

    with SyncWorldManager() as manager:
        making = threading.Thread(target=make, args=[manager])
        making.start()
        time.sleep(0.2)
    making.join(30)
    assert len(ended) == 1


def test_a_call_that_comes_as_the_loop_is_closed_is_refused(monkeypatch):
    manager = SyncWorldManager()
    with manager:
        running = manager._loop_thread._running
    manager._loop_thread._running = running  # as another thread has seen it a moment earlier
    with pytest.raises(UsageError, match="was closed during a call"):
        manager.remove_world("w")
    manager._loop_thread._running = None


@pytest.mark.processes
def test_the_table_of_worlds_is_a_copy_while_other_threads_make_and_remove_worlds():
    done = threading.Event()

    def churn(manager, name):
        while not done.is_set():
            manager.initialize_world(name, 0, 1)
            manager.remove_world(name)

    with SyncWorldManager() as manager:
        threads = [threading.Thread(target=churn, args=[manager, str(number)]) for number in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(3000):
            manager.worlds["mine"] = None
            assert "mine" not in manager.worlds
        done.set()
        for thread in threads:
            thread.join()
