"""Collective calls, run by all members of a world in the order that `schedules` gives.

Each ends with a barrier: no member returns before every member has its result. Frames carry collective, root,
operation, and the whole tensor's element type and shape; a mismatch breaks the world.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds import schedules
from ms_recover.worlds.instructions import Expected, Key
from ms_recover.worlds.link import Operation
from ms_recover.worlds.tensors import OPERATIONS, Raw, accumulate, allocate
from ms_recover.worlds.wire import DTYPES, FrameKind
from ms_recover.worlds.world import World

_SEGMENT = 1 << 22
_CLOSING = 1 << 40
_OPENING = 1 << 41
_NOTHING = Raw("", (), memoryview(bytearray()))


class Call:
    """One member's part in one collective call; root and operation are 0 and "sum" for collectives without one."""

    def __init__(self, world: World, tag: int, name: str, root: int, operation: str) -> None:
        self.world = world
        self.rank = world.rank
        self.size = world.size
        self.root = root
        self.operation = operation
        self._key = Key(FrameKind.PART, tag, world.next_call(tag))
        self._detail = _CODES[name] | OPERATIONS.index(operation) << 8 | root << 16
        self._rooted = name in _ROOTED
        self._opening: Operation | None = None

    async def open(self) -> None:
        """Pass collective, root and operation to the next rank, where there is a root, without waiting for an answer.

        With different roots all members might wait for data of each other. In the ring of ranks there are two
        neighbours that differ then, and the second of them breaks the world.
        """
        if self._rooted and self.size > 1:
            detail, self._detail = self._detail, self._detail | _OPENING
            self._opening = self.post((self.rank - 1) % self.size, _NOTHING)
            await self.send((self.rank + 1) % self.size, _NOTHING)
            self._detail = detail

    async def send(self, peer: int, tensor: Raw, part: memoryview | None = None) -> None:
        """Send a tensor or a part of it."""
        if part is not None:
            tensor = Raw(tensor.dtype, tensor.shape, part)
        await self.world.send(peer, self._key, self._detail, tensor)

    def post(self, peer: int, like: Raw | None = None, part: memoryview | None = None) -> Operation:
        """Start to receive a tensor, or a part of a tensor with the type and shape of `like`."""
        if like is None:
            return self.world.post(peer, self._key, Expected(self._detail), None)
        buffer = like.data if part is None else part
        return self.world.post(peer, self._key, Expected(self._detail, like.dtype, like.shape, len(buffer)), buffer)

    async def received(self, posted: Operation) -> Raw:
        """Wait until a posted receive is done."""
        header, data = await self.world.received(posted)
        return Raw(header.dtype, header.shape, data)

    async def close(self) -> None:
        """Run the barrier that ends the call."""
        if self._opening is not None:
            await self.received(self._opening)
        self._detail |= _CLOSING
        for after, before in schedules.barrier(self.rank, self.size):
            posted = self.post(before, _NOTHING)
            await self.send(after, _NOTHING)
            await self.received(posted)


async def barrier(_: Call) -> None:
    """Do nothing: a barrier is only the barrier that ends every collective."""


async def meet(world: World, answers: list[Operation]) -> None:
    """Exchange nothing with each member directly, so that it is known who has not answered; no barrier follows.

    The receives are added to `answers`.
    """
    call = Call(world, 0, "barrier", 0, "sum")
    answers += [call.post(peer) for peer in schedules.others(call.rank, call.size)]
    for peer in schedules.others(call.rank, call.size):
        await call.send(peer, _NOTHING)
    for answer in answers:
        await call.received(answer)


async def broadcast(call: Call, tensor: Raw | None) -> Raw:
    """Send the root's tensor to all; other members give a tensor to fill, or None."""
    above = schedules.parent(call.rank, call.size, call.root)
    result = tensor if above is None else await call.received(call.post(above, tensor))
    assert result is not None
    for below in schedules.children(call.rank, call.size, call.root):
        await call.send(below, result)
    return result


async def all_reduce(call: Call, tensor: Raw) -> None:
    """Reduce the tensors of all, in place, in a ring: each member sends and receives at most twice the size."""
    width = DTYPES[tensor.dtype]
    bounds = schedules.chunks(len(tensor.data) // width, call.size)
    parts = [tensor.data[start * width : stop * width] for start, stop in bounds]
    right, left = (call.rank + 1) % call.size, (call.rank - 1) % call.size
    scratch = allocate(max(map(len, parts)))
    for outgoing, incoming in schedules.ring(call.rank, call.size, 0):
        pieces = schedules.segments(0, len(parts[incoming]), _SEGMENT)
        posted = [call.post(left, tensor, scratch[start:stop]) for start, stop in pieces]
        async with _concurrently(call.world, _send_pieces(call, right, tensor, parts[outgoing])):
            for (start, stop), operand in zip(pieces, posted, strict=True):
                arrived = await call.received(operand)
                accumulate(call.operation, tensor.dtype, parts[incoming][start:stop], arrived.data)
    for outgoing, incoming in schedules.ring(call.rank, call.size, 1):
        arriving = call.post(left, tensor, parts[incoming])
        await call.send(right, tensor, parts[outgoing])
        await call.received(arriving)


async def reduce(call: Call, tensor: Raw) -> None:
    """Reduce the tensors of all into the root's, in place, up a tree; other members' tensors are overwritten."""
    below = schedules.children(call.rank, call.size, call.root)
    scratch = tensor._replace(data=allocate(len(tensor.data) if below else 0))
    for child in below[::-1]:
        await call.received(call.post(child, scratch))
        accumulate(call.operation, tensor.dtype, tensor.data, scratch.data)
    above = schedules.parent(call.rank, call.size, call.root)
    if above is not None:
        await call.send(above, tensor)


async def gather(call: Call, tensor: Raw) -> list[Raw] | None:
    """Send the tensors of all to the root; None on other members."""
    if call.rank != call.root:
        await call.send(call.root, tensor)
        return None
    posted = {peer: call.post(peer) for peer in schedules.others(call.rank, call.size)}
    return [await call.received(posted[rank]) if rank in posted else tensor for rank in range(call.size)]


async def scatter(call: Call, tensors: Sequence[Raw], out: Raw | None = None) -> Raw:
    """Send each member its tensor of the root's tensors; other members may give a tensor to fill."""
    if call.rank != call.root:
        return await call.received(call.post(call.root, out))
    for peer in schedules.others(call.rank, call.size):
        await call.send(peer, tensors[peer])
    return tensors[call.root]


async def exchange(call: Call, tensors: Sequence[Raw]) -> list[Raw]:
    """Send each member one of these tensors and receive one from each: all_to_all, and all_gather of copies."""
    posted = {peer: call.post(peer) for peer in schedules.others(call.rank, call.size)}
    for peer in posted:
        await call.send(peer, tensors[peer])
    return [await call.received(posted[rank]) if rank in posted else tensors[rank] for rank in range(call.size)]


COLLECTIVES: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
    "barrier": barrier,
    "broadcast": broadcast,
    "all_reduce": all_reduce,
    "reduce": reduce,
    "all_gather": exchange,
    "gather": gather,
    "scatter": scatter,
    "all_to_all": exchange,
}
"""The code on the wire is the position here."""
_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_CODES = {name: code for code, name in enumerate(COLLECTIVES)}


async def _send_pieces(call: Call, peer: int, tensor: Raw, part: memoryview) -> None:
    for start, stop in schedules.segments(0, len(part), _SEGMENT):
        await call.send(peer, tensor, part[start:stop])


@asynccontextmanager
async def _concurrently(world: World, work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a coroutine during a block; the block ends when both have ended. An error of either breaks the world."""

    def ended(task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not isinstance(error, BrokenWorldError):
            world.failed(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    try:
        yield
        await task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
