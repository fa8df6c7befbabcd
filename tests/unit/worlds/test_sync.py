"""Worlds without an event loop: methods, signatures and types of the synchronous classes."""

import asyncio
import inspect
import subprocess
import sys

import pytest

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
