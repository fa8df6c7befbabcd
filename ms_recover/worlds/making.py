"""A world that is being made: whom it waits for, why it ends, and who hears of that."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence

from ms_recover.errors import BrokenWorldError
from ms_recover.worlds import handshake
from ms_recover.worlds.authentication import AcceptError, EndedError, Joined, JoinError
from ms_recover.worlds.handshake import Hello, MessageType
from ms_recover.worlds.instructions import Fault
from ms_recover.worlds.link import Operation
from ms_recover.worlds.world import World

_MOST_NAMED = 8


class Making:
    """One world while it is being made.

    Whoever gives up first informs the others, with the rank at fault: rank 0 those who wait for its WELCOME by ENDED,
    each member those to whom its connections stand by the world's own ABORT. So the end of the world ends this.
    """

    def __init__(self, world: World, hello: Hello) -> None:
        loop = asyncio.get_running_loop()
        self.world = world
        self.hello = hello
        """This member's, without ports and nonce."""
        self.stage = ""
        """The last failed attempt or the stage reached, for the message of a timeout."""
        self.awaited: Callable[[], Sequence[int]] = list
        """Returns the ranks that have not answered; none when no member was asked."""
        self.members: dict[int, Joined] = {}
        """Of rank 0: those who have joined and have no WELCOME yet."""
        self.answers: list[Operation] = []
        """The receives of the last step."""
        self.stopped: asyncio.Future[None] = loop.create_future()
        """Done when the world has ended."""
        self.over: asyncio.Future[None] = loop.create_future()
        """Done when nothing of this is left."""

    @property
    def met(self) -> bool:
        """Whether all have answered: the world is made, even if it breaks before this member's call returns."""
        return bool(self.answers) and all(answer.ended and answer.fault is None for answer in self.answers)

    def tell(self, kind: MessageType, body: bytes) -> None:
        """Send a message to those who wait for the WELCOME, as far as it goes without waiting."""
        for joined in self.members.values():
            tell(joined.sock, kind, body)

    def stop(self, fault: Fault) -> None:
        """Inform those who wait for the WELCOME that the world has ended, and close their connections."""
        if not self.stopped.done():
            self.stopped.set_result(None)
        members, self.members = self.members, {}
        for joined in members.values():
            tell(joined.sock, MessageType.ENDED, handshake.pack_ended(fault.rank, fault.words or fault.cause))
            joined.sock.close()

    def expire(self, timeout: float) -> None:
        """End the world because its time is over; the fault is of those who have not answered."""
        if self.met:
            return
        ranks = self.awaited()
        silent = f"{_named(ranks)} did not answer" if ranks else ""
        words = [f"not all members joined within {round(timeout, 3):g} s", silent, self.stage]
        accused = ranks[0] if ranks else self.world.rank
        self.world.break_world(Fault(accused, "timeout", "; ".join(filter(None, words))))

    def fault(self, error: BaseException) -> Fault:
        """Return the fault of a member whose making of a world ends with this error."""
        if isinstance(error, EndedError):
            return error.fault
        if isinstance(error, asyncio.CancelledError):
            return self.own(f"the call of rank {self.world.rank} was cancelled")
        if isinstance(error, JoinError) and not isinstance(error, AcceptError):
            return Fault(0, "protocol", str(error))
        return self.own(str(error) or type(error).__name__)

    def own(self, words: str) -> Fault:
        """Return the fault of this member itself."""
        return Fault(self.world.rank, "closed", words)

    def error(self, epoch: int) -> BrokenWorldError:
        """Return the error of a world that has ended; `epoch` is for one that had none yet."""
        return BrokenWorldError(self.world.name, max(epoch, self.world.epoch), *self.world.state.ended())


def tell(sock: socket.socket, kind: MessageType, body: bytes) -> None:
    """Send a handshake message as far as it goes without waiting."""
    with contextlib.suppress(OSError):
        sock.send(handshake.pack(kind, body))


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return f"ranks {', '.join(map(str, ranks[:_MOST_NAMED]))}{more}"
