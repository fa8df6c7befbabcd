"""The workers of a splitter: started, kept as spares, ended."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from ms_recover.errors import DeviceLostError
from ms_recover.splitting.job import WorkerJobs
from ms_recover.splitting.process import RemoteWorker, Worker
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.security import Security

_log = logging.getLogger(__name__)
_SPARE_LOSSES = 3
"""Spares that may fail until no more are started."""


class WorkerPool:
    """Provides devices with workers, and keeps some idle ones; `changed` is called when their number has changed."""

    def __init__(
        self,
        jobs: WorkerJobs,
        wanted_spares: int,
        run_in_background: Callable[[Coroutine[Any, Any, None]], None],
        changed: Callable[[], None],
    ) -> None:
        self._jobs = jobs
        heartbeat = jobs.local.heartbeat
        self._manager = WorldManager(heartbeat=heartbeat, security=Security(jobs.local.token))
        self._remote_manager = WorldManager(heartbeat=heartbeat, security=jobs.remote_security)
        self._wanted_spares = wanted_spares
        self._run_in_background = run_in_background
        self._changed = changed
        self._numbers = itertools.count()
        self._workers: set[Worker] = set()
        self._spare_losses = 0
        self._starting_spares = 0
        self.spares: list[Worker] = []
        """Idle workers."""

    @property
    def settled(self) -> bool:
        """Whether all spares are there, or no more of them will come."""
        return len(self.spares) >= self._wanted_spares or self._spare_losses >= _SPARE_LOSSES

    def start_spares(self) -> None:
        """Start the missing spares, however many failed before."""
        self._spare_losses = 0
        for _ in range(self._wanted_spares - len(self.spares) - self._starting_spares):
            self._start_spare()

    async def acquire(self, device: int) -> Worker:
        """Return a worker for a device: a spare, if there is one; one that does not start raises DeviceLostError."""
        if device in self._jobs.remote:
            return await self._started(RemoteWorker(self._remote_manager, self._jobs.remote[device]))
        if not self.spares:
            return await self._new_worker()
        self._start_spare()
        return self.spares.pop(0)

    async def end(self, worker: Worker) -> None:
        """End a worker."""
        await worker.end()
        self._workers.discard(worker)

    def replace_dead_spares(self) -> None:
        """End spares whose world broke, and start others."""
        for spare in [spare for spare in self.spares if self._manager.communicator.is_broken(spare.world)]:
            self.spares.remove(spare)
            self._spare_losses += 1
            self._run_in_background(self.end(spare))
            self._start_spare()

    async def close(self) -> None:
        """End all workers and worlds."""
        await asyncio.gather(*(worker.end(graceful=True) for worker in self._workers))
        self._workers.clear()
        self.spares.clear()
        await asyncio.gather(self._manager.__aexit__(), self._remote_manager.__aexit__())

    async def _new_worker(self) -> Worker:
        world = f"ms_recover.splitting.{os.getpid()}.{next(self._numbers)}"
        return await self._started(Worker(self._manager, replace(self._jobs.local, world=world)))

    async def _started(self, worker: Worker) -> Worker:
        self._workers.add(worker)
        try:
            await worker.start()
        except BaseException:
            self._workers.discard(worker)
            raise
        return worker

    def _start_spare(self) -> None:
        if self._spare_losses < _SPARE_LOSSES:
            self._starting_spares += 1
            self._run_in_background(self._add_spare())

    async def _add_spare(self) -> None:
        failed = True
        try:
            self.spares.append(await self._new_worker())
            failed = False
        except DeviceLostError as error:
            _log.warning("no spare: %s", error)
        finally:
            self._starting_spares -= 1
            if failed:
                self._spare_losses += 1
                self._start_spare()
            self._changed()
