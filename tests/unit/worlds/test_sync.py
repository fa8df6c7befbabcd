"""Worlds without an event loop: the names that are there, and which loop runs them."""

import asyncio
import inspect
import sys
from types import SimpleNamespace

from ms_recover.worlds import SyncWorldManager, WorldCommunicator, sync


def public(thing):
    return {name for name in dir(thing) if not name.startswith("_")}


def test_the_names_of_the_communicator_can_be_listed_and_described():
    communicator = SyncWorldManager().communicator
    assert {"send", "recv", "all_reduce", "is_broken"} <= public(communicator) == public(WorldCommunicator)
    assert communicator.send.__doc__ == WorldCommunicator.send.__doc__
    assert list(inspect.signature(communicator.recv).parameters) == [
        name for name in inspect.signature(WorldCommunicator.recv).parameters if name != "self"
    ]
    assert not inspect.iscoroutinefunction(communicator.send)


async def answer():
    return 42


def test_run_takes_uvloop_when_it_is_there(monkeypatch):
    for missing in (None, SimpleNamespace()):  # not installed, or too old
        monkeypatch.setitem(sys.modules, "uvloop", missing)
        assert sync.run(answer()) == 42
    taken = []
    monkeypatch.setitem(
        sys.modules, "uvloop", SimpleNamespace(run=lambda work: (taken.append(1), asyncio.run(work))[1])
    )
    assert sync.run(answer()) == 42
    assert taken
