"""Point-to-point and collective communication of tensors in a world."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds import collectives, tensors
from ms_recover.worlds.collectives import Call
from ms_recover.worlds.state import Expected, Fault, Key
from ms_recover.worlds.tensors import OPERATIONS, Raw
from ms_recover.worlds.wire import DTYPES, MAX_DIMENSIONS, Kind
from ms_recover.worlds.world import World

Tensor = Any
"""A numpy array or a ``mindspore.Tensor``."""


class WorldCommunicator:
    """Sends and receives tensors in the worlds of a `WorldManager`.

    Every method takes `world`, the name; `tag`, an integer that keeps streams of messages (or of collective calls)
    apart; and `timeout` in seconds, None for no limit. They raise `BrokenWorldError` when the world breaks; a timeout
    breaks the world, and so does cancelling a call that has begun to move data. They raise `UsageError` for arguments
    that cannot be meant, before anything moves.

    Tensors are sent from their own memory: do not change one before the call returns. After an error what was given
    as `out` holds anything. Results are numpy arrays, or ``mindspore.Tensor`` where one was given or ``as_tensor`` is
    set; numpy has no bfloat16: without either it arrives as float32 with the same values.

    A collective has to be called by all members of the world, with the same tag in the same order. It returns on one
    only when every member has its result.
    """

    def __init__(self, find: Callable[[str], World]) -> None:
        self._find = find

    def is_broken(self, world: str) -> bool:
        """Tell whether operations on a world fail: it is broken, removed, or was never made."""
        try:
            return not self._find(world).is_open
        except UsageError:
            return True

    async def send(self, tensor: Tensor, dst: int, *, world: str, tag: int = 0, timeout: float | None = None) -> None:
        """Send a tensor; returns when it is on its way, which does not say that it has been received."""
        at = self._open(world, tag, dst)
        dtype, shape, data = _sendable(tensor)
        sending = at.send(dst, Key(Kind.MESSAGE, tag), 0, dtype, shape, data)
        if timeout is None:
            await sending
        else:
            with _limit(at, timeout, dst):
                await sending

    async def recv(
        self,
        src: int,
        *,
        world: str,
        out: Tensor | None = None,
        tag: int = 0,
        timeout: float | None = None,
        as_tensor: bool = False,
    ) -> Tensor:
        """Receive the next tensor that a rank sent with this tag.

        Parameters
        ----------
        src : int
        world : str
        out : numpy.ndarray or mindspore.Tensor, optional
            Filled and returned; one of another type or shape than what comes breaks the world.
        tag : int
        timeout : float, optional
        as_tensor : bool
            Return a ``mindspore.Tensor``.
        """
        at = self._open(world, tag, src)
        expected, buffer, finish = Expected(), None, None
        if out is not None:
            (dtype, shape, buffer), finish = tensors.target(out)
            expected = Expected(0, dtype, shape, len(buffer))
        posted = at.post(src, Key(Kind.MESSAGE, tag), expected, buffer)
        if timeout is None:
            header, data = await at.received(posted)
        else:
            with _limit(at, timeout, src):
                header, data = await at.received(posted)
        return finish() if finish else _result(Raw(header.dtype, header.shape, data), as_tensor)

    async def broadcast(
        self,
        tensor: Tensor | None = None,
        src: int = 0,
        *,
        world: str,
        tag: int = 0,
        timeout: float | None = None,
        as_tensor: bool = False,
    ) -> Tensor:
        """Bring the tensor of `src` to all; on others `tensor` is filled when it is given."""
        at = self._open(world, tag, src, self_too=True)
        if at.rank == src:
            have = _sendable(tensor)
            await self._run(Call(at, tag, "broadcast", src), collectives.broadcast, src, have, timeout=timeout)
            return tensor
        target, finish = (None, None) if tensor is None else tensors.target(tensor)
        call = Call(at, tag, "broadcast", src)
        came = await self._run(call, collectives.broadcast, src, target, timeout=timeout)
        return finish() if finish else _result(came, as_tensor)

    async def all_reduce(
        self,
        tensor: Tensor,
        op: str = "sum",
        *,
        world: str,
        out: Tensor | None = None,
        tag: int = 0,
        timeout: float | None = None,
    ) -> Tensor:
        """Reduce the tensors of all, with the same result on all, bit by bit; `out` may be `tensor` itself."""
        at = self._open(world, tag)
        have, finish = _reducible(tensor, op, out)
        call = Call(at, tag, "all_reduce", 0, op)
        await self._run(call, collectives.all_reduce, have, op, timeout=timeout)
        return finish()

    async def reduce(
        self,
        tensor: Tensor,
        dst: int = 0,
        op: str = "sum",
        *,
        world: str,
        tag: int = 0,
        timeout: float | None = None,
    ) -> Tensor | None:
        """Reduce the tensors of all to `dst`; None on others."""
        at = self._open(world, tag, dst, self_too=True)
        have, finish = _reducible(tensor, op, None)
        call = Call(at, tag, "reduce", dst, op)
        await self._run(call, collectives.reduce, dst, have, op, timeout=timeout)
        return finish() if at.rank == dst else None

    async def all_gather(
        self, tensor: Tensor, *, world: str, tag: int = 0, timeout: float | None = None
    ) -> list[Tensor]:
        """Return the tensors of all, by rank; they may differ in shape. The own one is returned itself."""
        at = self._open(world, tag)
        have = [_sendable(tensor)] * at.size
        came = await self._run(Call(at, tag, "all_gather"), collectives.exchange, have, timeout=timeout)
        return _results(came, at.rank, tensor)

    async def gather(
        self, tensor: Tensor, dst: int = 0, *, world: str, tag: int = 0, timeout: float | None = None
    ) -> list[Tensor] | None:
        """Return the tensors of all, by rank, on `dst`; None on others. The own one is returned itself."""
        at = self._open(world, tag, dst, self_too=True)
        have = _sendable(tensor)
        came = await self._run(Call(at, tag, "gather", dst), collectives.gather, dst, have, timeout=timeout)
        return None if came is None else _results(came, at.rank, tensor)

    async def scatter(
        self,
        given: Sequence[Tensor] | None = None,
        src: int = 0,
        *,
        world: str,
        out: Tensor | None = None,
        tag: int = 0,
        timeout: float | None = None,
        as_tensor: bool = False,
    ) -> Tensor:
        """Return this rank's one of the tensors that `src` gives; the own one is returned itself."""
        at = self._open(world, tag, src, self_too=True)
        if at.rank == src:
            have = _one_each(given, at)
            await self._run(Call(at, tag, "scatter", src), collectives.scatter, src, have, None, timeout=timeout)
            return (given or ())[src]
        target, finish = (None, None) if out is None else tensors.target(out)
        call = Call(at, tag, "scatter", src)
        came = await self._run(call, collectives.scatter, src, None, target, timeout=timeout)
        return finish() if finish else _result(came, as_tensor)

    async def all_to_all(
        self, given: Sequence[Tensor], *, world: str, tag: int = 0, timeout: float | None = None
    ) -> list[Tensor]:
        """Send each rank its one of the tensors given; return those from all, by rank."""
        at = self._open(world, tag)
        have = _one_each(given, at)
        came = await self._run(Call(at, tag, "all_to_all"), collectives.exchange, have, timeout=timeout)
        return _results(came, at.rank, given[at.rank])

    async def barrier(self, *, world: str, tag: int = 0, timeout: float | None = None) -> None:
        """Wait until all members are here."""
        await self._run(Call(self._open(world, tag), tag, "barrier"), _nothing, timeout=timeout)

    def _open(self, world: str, tag: int, peer: int | None = None, *, self_too: bool = False) -> World:
        at = self._find(world)
        if not at.is_open:
            raise at.error or UsageError(f"world {world!r} is being made")
        if not 0 <= tag < 1 << 63:
            raise UsageError(f"tag {tag}: not between 0 and 2**63")
        if peer is not None and (not 0 <= peer < at.size or (peer == at.rank and not self_too)):
            raise UsageError(f"rank {peer} is no peer of rank {at.rank} in world {world!r} of {at.size}")
        return at

    async def _run(
        self, call: Call, collective: Callable[..., Coroutine[Any, Any, Any]], *args: Any, timeout: float | None
    ) -> Any:
        """Carry a collective out as a whole, or break the world."""
        world = call.world
        try:
            with _limit(world, timeout, None):
                result = await collective(call, *args)
                await call.close()
        except BrokenWorldError:
            raise
        except BaseException as error:
            world.give_up(Fault(world.rank, "closed", f"a collective call ended by {type(error).__name__}"))
            raise
        return result


async def _nothing(_: Call) -> None:
    """Do what a barrier does before its end."""


@contextmanager
def _limit(world: World, timeout: float | None, peer: int | None) -> Iterator[None]:
    """Break the world when a block takes longer."""
    if timeout is None:
        yield
        return
    timer = asyncio.get_running_loop().call_later(timeout, world.expire, peer, timeout)
    try:
        yield
    finally:
        timer.cancel()


def _sendable(tensor: Tensor) -> Raw:
    have = tensors.raw(tensor)
    if len(have.shape) > MAX_DIMENSIONS:
        raise UsageError(f"tensor of {len(have.shape)} dimensions: at most {MAX_DIMENSIONS} can be sent")
    return have


def _reducible(tensor: Tensor, op: str, out: Tensor | None) -> tuple[Raw, Callable[[], Tensor]]:
    """Return the memory to reduce in, which holds the tensor, and what makes the result of it."""
    if op not in OPERATIONS:
        raise UsageError(f"no operation {op!r}: there are {', '.join(OPERATIONS)}")
    have = _sendable(tensor)
    if have.dtype.startswith("complex") and op in ("max", "min"):
        raise UsageError(f"complex numbers have no {op}")
    if out is None:
        own = tensors.copied(have)
        return own, lambda: _result(own, tensors.is_tensor(tensor))
    target, finish = tensors.target(out)
    if (target.dtype, target.shape) != (have.dtype, have.shape):
        raise UsageError(f"out is {target.dtype} {target.shape}, the tensor {have.dtype} {have.shape}")
    target.data[:] = have.data
    return target, finish


def _one_each(given: Sequence[Tensor] | None, world: World) -> list[Raw]:
    if given is None or len(given) != world.size:
        raise UsageError(f"{'no' if given is None else len(given)} tensors for {world.size} members")
    return [_sendable(tensor) for tensor in given]


def _result(came: Raw, as_tensor: bool) -> Tensor:
    assert math.prod(came.shape) * DTYPES[came.dtype] == len(came.data)
    return tensors.to_tensor(came) if as_tensor else tensors.to_array(came)


def _results(came: Sequence[Raw], rank: int, own: Tensor) -> list[Tensor]:
    as_tensor = tensors.is_tensor(own)
    return [own if index == rank else _result(raw, as_tensor) for index, raw in enumerate(came)]
