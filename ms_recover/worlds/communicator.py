"""Point-to-point and collective communication of tensors in a world."""

from __future__ import annotations

import math
from asyncio import get_running_loop
from collections.abc import Callable, Sequence, Sized
from numbers import Integral
from typing import Any

from ms_recover.arguments import is_whole
from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.tensors.memory import is_tensor
from ms_recover.worlds import arguments, tensors
from ms_recover.worlds.collectives import COLLECTIVES, Call
from ms_recover.worlds.instructions import Expected, Fault, Key
from ms_recover.worlds.tensors import OPERATIONS, Raw
from ms_recover.worlds.wire import DTYPES, MAX_DIMENSIONS, MAX_LENGTH, FrameKind
from ms_recover.worlds.world import World

Tensor = Any
"""A numpy array, a ``mindspore.Tensor``, or bytes, a bytearray or a memoryview as an array of its elements."""
Seconds = float | None
"""A time limit; None for no limit."""
_NOBODY = object()
_ANYTHING = Expected()
_UNTAGGED = Key(FrameKind.MESSAGE, 0)


class WorldCommunicator:
    """Sends and receives tensors in the worlds of a `WorldManager`.

    Every method takes `world`, a name; `tag`, an integer that separates streams of messages (or of collective calls);
    and `timeout` in seconds, None for no limit. Methods raise `BrokenWorldError` when the world breaks. Invalid
    arguments, and calls from another event loop than the one that made the world, raise `UsageError` before any data
    moves.

    A `recv` may be cancelled at any time, for example by ``asyncio.wait_for``: its message goes to the next `recv` with
    this tag, in order, and only the contents of `out` are undefined then. With several pending ones, those that have
    their message keep it. A `timeout` breaks the world, and so does the cancellation of a collective, or of a `send`
    that the kernel has not taken whole.

    `send`, `recv` and `broadcast` take their arguments in the order of ``torch.distributed`` and
    ``mindspore.mint.distributed``, with the name of a world as the group. With `barrier` they may leave the world out
    where this process is in one world only. The other collectives return their results, and change no argument but
    `out`; `ms_recover.worlds.multiworld` has them in place.

    Tensors are sent from their own memory: do not change one before the call returns. After an error the contents of
    `out` are undefined. Results are numpy arrays, or ``mindspore.Tensor`` where one was given or ``as_tensor`` is set.
    numpy has no bfloat16: without either it arrives as float32 with the same values.

    All members of the world must call a collective, with the same tag in the same order. It returns only when every
    member has its result.
    """

    def __init__(self, find: Callable[[str | None], World]) -> None:
        self._find = find

    def is_broken(self, world: str) -> bool:
        """Whether operations on a world fail: it is broken, removed, or was never made."""
        try:
            return not self._find(world).is_open
        except UsageError:
            return True

    async def send(
        self, tensor: Tensor, dst: int, world: str | None = None, tag: int = 0, *, timeout: Seconds = None
    ) -> None:
        """Send a tensor; return when the kernel has taken it, which does not mean that it was received."""
        member = self._open(world, tag, dst)
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout)
        await member.send(dst, _key(tag), 0, _sendable(tensor), timeout)

    async def recv(  # noqa: PLR0913 (the keywords of programs)
        self,
        tensor: Tensor | None = None,
        src: int | None = None,
        world: str | None = None,
        tag: int = 0,
        *,
        out: Tensor | None = None,
        timeout: Seconds = None,
        as_tensor: bool = False,
    ) -> Tensor:
        """Receive the next tensor from a rank with this tag: ``recv(src)``, or ``recv(tensor, src)`` to fill `tensor`.

        A given `tensor`, or `out`, an array, tensor or writable buffer, is filled and returned; another type or shape
        than the sent tensor's breaks the world. Messages that had arrived before a world broke can still be received,
        unless an invalid frame or this process itself broke it.
        """
        out, src = _destination(tensor, src, out)
        member = self._open(world, tag, src, broken_too=True)
        if timeout is not None:
            timeout = arguments.seconds("timeout", timeout)
        expected, buffer, finish = _ANYTHING, None, None
        if out is not None:
            plain = tensors.writable(out)  # the usual one, without more ado
            if plain is None:
                plain, finish = tensors.target(out)
            dtype, shape, buffer = plain
            expected = Expected(0, dtype, shape, len(buffer))
        posted = member.post(src, _key(tag), expected, buffer)
        header, data = await member.received(posted, timeout)
        if finish is None and out is not None:
            return out
        return finish() if finish else _result(Raw(header.dtype, header.shape, data), as_tensor)

    async def broadcast(
        self,
        tensor: Tensor | None = None,
        src: int = 0,
        world: str | None = None,
        *,
        tag: int = 0,
        timeout: Seconds = None,
        as_tensor: bool = False,
    ) -> Tensor:
        """Send the tensor of `src` to all members; on other members `tensor`, when given, is filled."""
        member = self._open(world, tag, src, self_too=True)
        if member.rank == src:
            await _run(member, tag, "broadcast", _sendable(tensor), root=src, timeout=timeout)
            return tensor
        target, finish = (None, None) if tensor is None else tensors.target(tensor)
        result = await _run(member, tag, "broadcast", target, root=src, timeout=timeout)
        return finish() if finish else _result(result, as_tensor)

    async def all_reduce(
        self,
        tensor: Tensor,
        op: str = "sum",
        *,
        world: str,
        out: Tensor | None = None,
        tag: int = 0,
        timeout: Seconds = None,
    ) -> Tensor:
        """Reduce the tensors of all members; all get the same bits. `out` may be `tensor` itself."""
        member = self._open(world, tag)
        sent, finish = _reducible(tensor, op, out)
        await _run(member, tag, "all_reduce", sent, operation=op, timeout=timeout)
        return finish()

    async def reduce(
        self, tensor: Tensor, dst: int = 0, op: str = "sum", *, world: str, tag: int = 0, timeout: Seconds = None
    ) -> Tensor | None:
        """Reduce the tensors of all members to `dst`; return None on other members."""
        member = self._open(world, tag, dst, self_too=True)
        sent, finish = _reducible(tensor, op, None)
        await _run(member, tag, "reduce", sent, root=dst, operation=op, timeout=timeout)
        return finish() if member.rank == dst else None

    async def all_gather(self, tensor: Tensor, *, world: str, tag: int = 0, timeout: Seconds = None) -> list[Tensor]:
        """Return the tensors of all members, by rank; shapes may differ. This member's own is not copied."""
        member = self._open(world, tag)
        result = await _run(member, tag, "all_gather", [_sendable(tensor)] * member.size, timeout=timeout)
        return _results(result, member.rank, tensor)

    async def gather(
        self, tensor: Tensor, dst: int = 0, *, world: str, tag: int = 0, timeout: Seconds = None
    ) -> list[Tensor] | None:
        """Return the tensors of all members, by rank, on `dst`, and None on others. `dst`'s own is not copied."""
        member = self._open(world, tag, dst, self_too=True)
        result = await _run(member, tag, "gather", _sendable(tensor), root=dst, timeout=timeout)
        return None if result is None else _results(result, member.rank, tensor)

    async def scatter(  # noqa: PLR0913 (the keywords of programs)
        self,
        given: Sequence[Tensor] | None = None,
        src: int = 0,
        *,
        world: str,
        out: Tensor | None = None,
        tag: int = 0,
        timeout: Seconds = None,
        as_tensor: bool = False,
    ) -> Tensor:
        """Send each member its tensor of those that `src` gives, by rank, and return it. `src`'s own is not copied."""
        member = self._open(world, tag, src, self_too=True)
        if member.rank == src:
            await _run(member, tag, "scatter", _one_each(given, member), root=src, timeout=timeout)
            return (given or ())[src]
        target, finish = (None, None) if out is None else tensors.target(out)
        result = await _run(member, tag, "scatter", (), target, root=src, timeout=timeout)
        return finish() if finish else _result(result, as_tensor)

    async def all_to_all(
        self, given: Sequence[Tensor], *, world: str, tag: int = 0, timeout: Seconds = None
    ) -> list[Tensor]:
        """Send each member its tensor of those given, by rank; return the tensors from all members, by rank."""
        member = self._open(world, tag)
        result = await _run(member, tag, "all_to_all", _one_each(given, member), timeout=timeout)
        return _results(result, member.rank, given[member.rank])

    async def barrier(self, world: str | None = None, *, tag: int = 0, timeout: Seconds = None) -> None:
        """Wait until all members have called this."""
        await _run(self._open(world, tag), tag, "barrier", timeout=timeout)

    def _open(
        self, world: str | None, tag: int, peer: Any = _NOBODY, *, self_too: bool = False, broken_too: bool = False
    ) -> World:
        member = self._find(world)
        if get_running_loop() is not member.loop:
            raise UsageError(f"world {member.name!r} belongs to another event loop: use it in the one that made it")
        if member.state.phase != "open" and not (broken_too and member.error):
            raise member.error or UsageError(f"world {member.name!r} is still being made")
        if not 0 <= (tag if type(tag) is int else arguments.whole("tag", tag)) < 1 << 63:
            raise UsageError(f"tag {tag} is out of range: tags are 0 to 2**63 - 1")
        if peer is _NOBODY:
            return member
        rank = peer if type(peer) is int else arguments.whole("rank", peer)
        if not 0 <= rank < member.size or (rank == member.rank and not self_too):
            name, own, size = member.name, member.rank, member.size
            raise UsageError(f"rank {rank} is no peer of rank {own} in world {name!r} of size {size}")
        return member


def _key(tag: int) -> Key:
    return Key(FrameKind.MESSAGE, tag) if tag else _UNTAGGED


def _destination(tensor: Tensor | None, src: int | None, out: Tensor | None) -> tuple[Tensor | None, int]:
    """Return the tensor to fill and the source of ``recv(src)`` or ``recv(tensor, src)``."""
    if src is None and type(tensor) is int:  # the usual one: an abstract class answers slowly
        return out, tensor
    if src is None and isinstance(tensor, Integral):
        tensor, src = None, tensor
    if not is_whole(src):
        raise UsageError(f"recv needs the rank of the sender: recv(src) or recv(tensor, src), not src={src!r}")
    if tensor is not None and out is not None:
        raise UsageError("recv fills either tensor or out, not both")
    return (out if tensor is None else tensor), int(src)


async def _run(
    world: World, tag: int, name: str, *args: Any, root: int = 0, operation: str = "sum", timeout: Seconds
) -> Any:
    """Run a collective and the barrier that ends it; break the world when either fails."""
    timeout = arguments.optional_seconds("timeout", timeout)
    call = Call(world, int(tag), name, int(root), operation)
    timer = world.limit(None, timeout)
    try:
        await call.open()
        result = await COLLECTIVES[name](call, *args)
        await call.close()
    except BrokenWorldError:
        raise
    except BaseException as error:
        world.break_world(Fault(world.rank, "closed", f"a collective call ended with {type(error).__name__}"))
        raise
    finally:
        if timer is not None:
            timer.cancel()
    return result


def _sendable(tensor: Tensor) -> Raw:
    sent = tensors.raw(tensor)
    _, shape, data = sent
    if len(shape) > MAX_DIMENSIONS:
        raise UsageError(f"tensor of {len(shape)} dimensions, the limit is {MAX_DIMENSIONS}")
    if len(data) > MAX_LENGTH:
        raise UsageError(f"tensor of {len(data)} bytes, the limit is {MAX_LENGTH}")
    return sent


def _reducible(tensor: Tensor, op: str, out: Tensor | None) -> tuple[Raw, Callable[[], Tensor]]:
    """Return a copy of the tensor to reduce into, and a function that returns the result."""
    if not isinstance(op, str) or op not in OPERATIONS:
        raise UsageError(f"invalid operation {op!r:.80}: expected one of {', '.join(OPERATIONS)}")
    sent = _sendable(tensor)
    if sent.dtype.startswith("complex") and op in ("max", "min"):
        raise UsageError(f"invalid operation {op!r} for complex numbers")
    if out is None:
        own = tensors.copied(sent)
        return own, lambda: _result(own, is_tensor(tensor))
    target, finish = tensors.target(out)
    if (target.dtype, target.shape) != (sent.dtype, sent.shape):
        raise UsageError(f"out is {target.dtype} {target.shape}, expected {sent.dtype} {sent.shape} as the tensor")
    tensors.copy_bytes(target.data, sent.data)
    return target, finish


def _one_each(given: Sequence[Tensor] | None, world: World) -> list[Raw]:
    count = len(given) if isinstance(given, Sized) else 0
    if given is None or count != world.size:
        raise UsageError(f"{count} tensors for {world.size} members: give one for each")
    return [_sendable(tensor) for tensor in given]


def _result(result: Raw, as_tensor: bool) -> Tensor:
    assert math.prod(result.shape) * DTYPES[result.dtype] == len(result.data)
    return tensors.to_tensor(result) if as_tensor else tensors.to_array(result)


def _results(result: Sequence[Raw], rank: int, own: Tensor) -> list[Tensor]:
    as_tensor = is_tensor(own)
    return [own if index == rank else _result(raw, as_tensor) for index, raw in enumerate(result)]
