"""The workers of a splitter: made, kept as spares, ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from typing import Any

from ms_recover.errors import DeviceLostError
from ms_recover.splitting.process import RemoteWorker, Worker
from ms_recover.splitting.worker import Job
from ms_recover.worlds.manager import WorldManager

_log = logging.getLogger(__name__)
_SPARE_LOSSES = 3


class WorkerPool:
    """Gives devices their workers.

    Parameters
    ----------
    manager, guest_manager : WorldManager
        For the worlds with workers of this host, and of others.
    job : Job
        Of every worker, but for the name of its world.
    guests : mapping of int to Job
        The jobs of devices whose workers somebody else starts.
    wanted_spares : int
        Workers that wait for a device to be lost.
    go : callable
        Runs a coroutine in the background.
    changed : callable
        Called when there is a spare more or less.
    """

    def __init__(
        self,
        manager: WorldManager,
        guest_manager: WorldManager,
        job: Job,
        guests: Mapping[int, Job],
        wanted_spares: int,
        go: Callable[[Coroutine[Any, Any, None]], None],
        changed: Callable[[], None],
    ) -> None:
        self._manager, self._guest_manager = manager, guest_manager
        self._job, self._guests = job, guests
        self._wanted, self._go, self._changed = wanted_spares, go, changed
        self._names = itertools.count()
        self._all: set[Worker] = set()
        self._losses = self._coming = 0
        self.spares: list[Worker] = []
        """Workers that wait."""

    @property
    def settled(self) -> bool:
        """Whether the spares are there, or known not to come."""
        return len(self.spares) >= self._wanted or self._losses >= _SPARE_LOSSES

    def hire(self) -> None:
        """Start the spares that are not there; those that failed before are forgiven."""
        self._losses = 0
        for _ in range(self._wanted - len(self.spares) - self._coming):
            self._hire_one()

    async def take(self, device: int) -> Worker:
        """Return a worker for a device: a spare when there is one.

        Raises
        ------
        DeviceLostError
            When none starts.
        """
        if device in self._guests:
            return await self._started(RemoteWorker(self._guest_manager, self._guests[device]))
        if not self.spares:
            return await self._new()
        self._hire_one()
        return self.spares.pop(0)

    async def end(self, worker: Worker) -> None:
        """End a worker."""
        await worker.end()
        self._all.discard(worker)

    def look(self) -> None:
        """Replace spares that died."""
        for spare in [one for one in self.spares if self._manager.communicator.is_broken(one.world)]:
            self.spares.remove(spare)
            self._losses += 1
            self._go(self.end(spare))
            self._hire_one()

    async def close(self) -> None:
        """Let all workers end, and see to it."""
        await asyncio.gather(*(worker.end(kindly=True) for worker in self._all))
        self._all.clear()
        self.spares.clear()

    async def _new(self) -> Worker:
        world = f"ms_recover.splitting.{os.getpid()}.{next(self._names)}"
        return await self._started(Worker(self._manager, replace(self._job, world=world)))

    async def _started(self, worker: Worker) -> Worker:
        self._all.add(worker)
        try:
            await worker.start()
        except BaseException:
            self._all.discard(worker)
            raise
        return worker

    def _hire_one(self) -> None:
        if self._losses < _SPARE_LOSSES:
            self._coming += 1
            self._go(self._add_spare())

    async def _add_spare(self) -> None:
        failed = True
        try:
            self.spares.append(await self._new())
            failed = False
        except DeviceLostError as error:
            _log.warning("no spare: %s", error)
        finally:
            self._coming -= 1
            if failed:
                self._losses += 1
                self._hire_one()
            self._changed()
