"""Plan over the trees of other nodes, and fetch missing slices from them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ms_recover import api
from ms_recover.model.contents import Contents
from ms_recover.model.explanation import Explanation
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.outcome import Outcome
from ms_recover.model.plan import Plan
from ms_recover.model.progress import expect_bytes
from ms_recover.planning.explain import explain_planned
from ms_recover.planning.planner import refuse_older_step
from ms_recover.planning.union import Union, cut_down, unite
from ms_recover.remote.peer import Address, Peer
from ms_recover.remote.slice_source import RemoteSource
from ms_recover.scanning.read import read_contents
from ms_recover.stores.local import StoppedError
from ms_recover.worlds.loop_thread import LoopThread
from ms_recover.worlds.security import Security

_log = logging.getLogger(__name__)
_GOODBYE_S = 10.0
_T = TypeVar("_T")


@dataclass(frozen=True)
class RemotePlan:
    """The plan of this node, with its actions alone; the explanation of one rank where it was asked for."""

    plan: Plan
    explanation: Explanation | None
    union: Union


class Peers:
    """The nodes that serve their trees at the `addresses`; a context manager.

    Everything that waits for the network runs in an event loop of its own thread, so that other threads can ask for
    slices at the same time. The security is by default that of the environment; a server has `timeout` seconds to
    answer at all.

    Raises
    ------
    MsRecoverError
        On entering, when one cannot be reached, does not accept the token, or sends an invalid inventory.
    """

    def __init__(
        self, addresses: Sequence[Address], *, security: Security | None = None, timeout: float = 10.0
    ) -> None:
        self._addresses, self._timeout = addresses, timeout
        self._security = Security.from_environment() if security is None else security
        self._loop_thread = LoopThread("Peers")
        self.peers: list[Peer] = []
        self.served: list[Inventory] = []

    def __enter__(self) -> Peers:
        self._loop_thread.__enter__()
        try:
            for address in self._addresses:
                self.peers.append(self.wait(partial(self._make, address)))
            self.served = [self.wait(peer.inventory) for peer in self.peers]
            for peer, inventory in zip(self.peers, self.served, strict=True):
                _log.info("%s serves %d slices of %d ranks", peer.name, len(inventory.slices), len(inventory.ranks))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            with suppress(asyncio.TimeoutError):
                self._loop_thread.run(lambda: asyncio.wait_for(self._close(), _GOODBYE_S))
        finally:
            self._loop_thread.__exit__()

    async def _close(self) -> None:
        await asyncio.gather(*(peer.close() for peer in self.peers), return_exceptions=True)

    async def _make(self, address: Address) -> Peer:
        return Peer(address, self._security, self._timeout)

    def wait(self, make: Callable[[], Coroutine[Any, Any, _T]], stop: Callable[[], bool] = lambda: False) -> _T:
        """Run the coroutine that `make` returns in the event loop and wait for it, from any other thread.

        Raises
        ------
        StoppedError
            When `stop` returns True; that cancels the work, and so does Ctrl-C.
        """

        def check() -> None:
            if stop():
                raise StoppedError

        return self._loop_thread.run(make, check)

    def plan(
        self,
        local: Inventory,
        options: PlanOptions = DEFAULT_PLAN,
        *,
        explain: int | None = None,
        jobs: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> RemotePlan:
        """Plan over this node's tree and those that are served.

        Parameters
        ----------
        options : PlanOptions
            With `ranks` those that live here; only these need a slice. By default all that have no files on other
            nodes alone, and every rank of the world needs a slice.
        explain : int, optional
            A rank to explain.
        jobs, progress
            As for `ms_recover.api.plan`.

        Raises
        ------
        MsRecoverError
            As `ms_recover.api.plan` does, and when a server cannot be reached any more.
        """
        union = unite(local, self.served)

        def read(files: Sequence[SliceFile]) -> Contents:
            here = [file for file in files if file.path not in union.holders]
            found = read_contents(local.root, here, jobs=jobs, progress=progress)
            for number, peer in enumerate(self.peers):
                theirs = [file for file in files if union.holders.get(file.path) == number]
                if theirs:
                    expect_bytes(progress, sum(file.size for file in theirs))
                    found = found.merged(self.wait(partial(peer.digests, theirs, progress)))
            return found

        planned, contents = api.plan_with_evidence(union.inventory, options, read=read)
        explanation = None if explain is None else explain_planned(planned, explain)
        names = [peer.name for peer in self.peers]
        made = cut_down(planned.plan, union, options.ranks, names, contents.digests)
        if options.require_newest:
            refuse_older_step(made, explanation)
        return RemotePlan(made, explanation, union)

    def apply(self, planned: RemotePlan, **options: Any) -> Outcome:
        """Carry out a plan from `plan`; options and errors as for `ms_recover.api.apply`."""
        served = zip(self.peers, self.served, strict=True)
        sources = [RemoteSource(peer, inventory, self) for peer, inventory in served]
        away = {path: sources[number] for path, number in planned.union.holders.items()}
        return api.apply(planned.plan, sources=away, **options)
