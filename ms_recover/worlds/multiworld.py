"""The names, the order of arguments and the meaning of MultiWorld's package, for programs that were written for it.

Change the imports and the tensor library: docs/from-multiworld.md. The API is that of MultiWorld 0.2.3
(github.com/cisco-open/pymultiworld), with the methods' optional ``tag`` and ``timeout`` in addition.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds import manager
from ms_recover.worlds.communicator import Seconds, Tensor
from ms_recover.worlds.manager import WorldInfo
from ms_recover.worlds.security import Security
from ms_recover.worlds.tensors import check_fillable, fill

__all__ = ["BrokenWorldException", "ReduceOp", "WorldCommunicator", "WorldManager"]
_log = logging.getLogger(__name__)

BrokenWorldException = BrokenWorldError


class ReduceOp:
    """The operations of reductions, by the names that torch.distributed and mint.distributed give them."""

    SUM = "sum"
    PRODUCT = PROD = "prod"
    MAX = "max"
    MIN = "min"


class WorldCommunicator:
    """Communication in place: every method fills the tensors that it is given and returns None.

    A process that is in one world only may leave the name of the world out. Errors are those of
    `ms_recover.worlds.WorldCommunicator`. A tensor is filled by one of its own type and shape only: another one that
    comes breaks the world; in `all_gather` and `gather`, whose tensors may differ, it raises `UsageError` here.
    """

    def __init__(self, worlds: manager.WorldManager) -> None:
        self._worlds = worlds
        self._communicator = worlds.communicator

    def is_broken(self, world_name: str) -> bool:
        """Whether operations on a world fail: it is broken, removed, or was never made."""
        return self._communicator.is_broken(world_name)

    async def send(
        self, tensor: Tensor, dst: int, world_name: str | None = None, *, tag: int = 0, timeout: Seconds = None
    ) -> None:
        """Send a tensor; return when the kernel has taken it, which does not mean that it was received."""
        await self._communicator.send(tensor, dst, world_name or None, tag, timeout=timeout)

    async def recv(
        self, tensor: Tensor, src: int, world_name: str | None = None, *, tag: int = 0, timeout: Seconds = None
    ) -> None:
        """Receive the next tensor from a rank into this one."""
        await self._communicator.recv(tensor, src, world_name or None, tag, timeout=timeout)

    async def broadcast(
        self, tensor: Tensor, src: int, world_name: str | None = None, *, tag: int = 0, timeout: Seconds = None
    ) -> None:
        """Send the tensor of `src` to all members; on other members `tensor` is filled."""
        await self._communicator.broadcast(tensor, src, world_name or None, tag=tag, timeout=timeout)

    async def all_reduce(
        self,
        tensor: Tensor,
        op: str = ReduceOp.SUM,
        world_name: str | None = None,
        *,
        tag: int = 0,
        timeout: Seconds = None,
    ) -> None:
        """Reduce the tensors of all members into each of them; all get the same bits."""
        name = self._info(world_name).name
        await self._communicator.all_reduce(tensor, op, world=name, out=tensor, tag=tag, timeout=timeout)

    async def reduce(
        self,
        tensor: Tensor,
        dst: int,
        op: str = ReduceOp.SUM,
        world_name: str | None = None,
        *,
        tag: int = 0,
        timeout: Seconds = None,
    ) -> None:
        """Reduce the tensors of all members into that of `dst`; those of other members stay as they are."""
        world = self._info(world_name)
        if world.rank == dst:
            check_fillable(tensor)
        result = await self._communicator.reduce(tensor, dst, op, world=world.name, tag=tag, timeout=timeout)
        if result is not None:
            fill(tensor, result)

    async def all_gather(
        self,
        tensors: Sequence[Tensor],
        tensor: Tensor,
        world_name: str | None = None,
        *,
        tag: int = 0,
        timeout: Seconds = None,
    ) -> None:
        """Fill `tensors` with the tensors of all members, by rank."""
        world = self._info(world_name)
        _count(tensors, world)
        check_fillable(*tensors)
        result = await self._communicator.all_gather(tensor, world=world.name, tag=tag, timeout=timeout)
        for out, came in zip(tensors, result, strict=True):
            fill(out, came)

    async def gather(
        self,
        tensor: Tensor,
        gather_list: Sequence[Tensor] | None = None,
        dst: int = 0,
        world_name: str | None = None,
        *,
        tag: int = 0,
        timeout: Seconds = None,
    ) -> None:
        """Fill `gather_list` of `dst` with the tensors of all members, by rank."""
        world = self._info(world_name)
        if world.rank == dst:
            _count(gather_list, world)
            check_fillable(*(gather_list or ()))
        result = await self._communicator.gather(tensor, dst, world=world.name, tag=tag, timeout=timeout)
        if result is not None:
            for out, came in zip(gather_list or (), result, strict=True):
                fill(out, came)

    async def scatter(
        self,
        tensor: Tensor,
        scatter_list: Sequence[Tensor] | None = None,
        src: int = 0,
        world_name: str | None = None,
        *,
        tag: int = 0,
        timeout: Seconds = None,
    ) -> None:
        """Send each member its tensor of the `scatter_list` of `src`, by rank, and fill `tensor` with it."""
        world = self._info(world_name)
        scatter = self._communicator.scatter
        if world.rank == src:
            check_fillable(tensor)
            fill(tensor, await scatter(scatter_list, src, world=world.name, tag=tag, timeout=timeout))
        else:
            await scatter(None, src, world=world.name, out=tensor, tag=tag, timeout=timeout)

    def _info(self, world_name: str | None) -> WorldInfo:
        worlds = self._worlds.worlds
        name = world_name or manager.only(worlds)
        if name not in worlds:
            raise UsageError(f"there is no world {name!r}")
        return worlds[name]


class WorldManager:
    """Makes, removes and watches the worlds of this process, in one event loop.

    Peers are always watched, whatever `enable_monitor` says: without that a frozen one would never be noticed.
    The other parameters are those of `ms_recover.worlds.WorldManager`.
    """

    def __init__(
        self, enable_monitor: bool = True, *, heartbeat: float = 3.0, security: Security | None = None
    ) -> None:
        self._manager = manager.WorldManager(heartbeat=heartbeat, security=security)
        self.communicator = WorldCommunicator(self._manager)
        self._leaving: dict[str, asyncio.Task[None]] = {}
        if not enable_monitor:
            _log.warning("enable_monitor=False is not followed: peers are always watched")

    async def initialize_world(  # noqa: PLR0913, PLR0917 (as in MultiWorld)
        self,
        world_name: str,
        rank: int,
        world_size: int,
        backend: str = "gloo",
        addr: str = "127.0.0.1",
        port: int = -1,
        timeout: float = 30.0,
        device: object = None,
    ) -> None:
        """Become a member of a new world; return when all members have joined.

        Each world needs a port of its own while it is being made. `backend` and `device` choose nothing: worlds carry
        host memory over TCP. Errors are those of `ms_recover.worlds.WorldManager.initialize_world`: a name that is in
        use and an address off loopback without a token raise `UsageError`, which is a ValueError; a world that could
        not be made raises `BrokenWorldError`.
        """
        if world_name in self._leaving:
            await asyncio.wait([self._leaving.pop(world_name)])
        await self._manager.initialize_world(world_name, rank, world_size, addr, port, timeout, backend=backend)

    def remove_world(self, world_name: str) -> asyncio.Task[None]:
        """Leave a world in good order, or forget a broken one; its name may be used again at once.

        Raises `UsageError`, which is a ValueError, when there is no such world. Await the returned task to wait until
        the peers have what was sent to them.
        """
        if world_name in self._leaving or world_name not in self._manager.worlds:
            raise UsageError(f"there is no world {world_name!r}")
        leaving = asyncio.get_running_loop().create_task(self._manager.remove_world(world_name))
        leaving.add_done_callback(lambda _: self._leaving.pop(world_name, None))
        self._leaving[world_name] = leaving
        return leaving

    def cleanup(self) -> asyncio.Task[None]:
        """Leave all worlds in good order, as the last thing that a program does; the process goes on to its end.

        Await the returned task to wait until the peers have what was sent to them; a program that does not is held for
        that at its exit.
        """
        return self._manager.cleanup()


def _count(tensors: Sequence[Tensor] | None, world: WorldInfo) -> None:
    count = 0 if tensors is None else len(tensors)
    if count != world.size:
        raise UsageError(f"{count} tensors to fill for {world.size} members of world {world.name!r}: give one for each")
