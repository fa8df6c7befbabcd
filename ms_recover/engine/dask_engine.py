"""Tasks on the workers of a dask cluster."""

from __future__ import annotations

import itertools
import pickle
import queue
import time
import uuid
import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from distributed.scheduler import KilledWorker

from ms_recover.engine.dask_cluster import ANSWER_SECONDS, Cluster
from ms_recover.engine.dask_worker import Session, run_task
from ms_recover.engine.engine import Engine, Task
from ms_recover.engine.nodes import returned
from ms_recover.engine.workers import Node, WorkerReport
from ms_recover.errors import MsRecoverError, StorageError, UsageError
from ms_recover.model.progress import Progress

_MOST_LOSSES = 4
"""Workers that may be lost at one task, before it counts as their end."""
_TICK_SECONDS = 1.0
_POLL_SECONDS = 0.2


@dataclass(eq=False, slots=True)
class _Run:
    """A task on its way; dask pins it to one worker of its node at a time."""

    task: Task
    call: bytes
    key: str = ""
    """Of the attempt that counts."""
    address: str | None = None
    """Of the worker; None while it waits for one."""
    since: float = field(default_factory=time.monotonic)
    """When it began to wait."""
    future: Any = None
    counted: int = 0
    """Bytes that were handed on; after a loss the task begins anew, and what was counted stays."""
    losses: int = 0
    end: tuple[Any] | None = None
    """Its result or error, once there is one."""


class DaskEngine(Engine):
    """The workers of the cluster whose scheduler is at a URL, ``dask://HOST:PORT`` or ``dask:///FILE`` of a scheduler.

    TLS is used where the configuration of dask has certificates, and always with ``tls://``. dask runs each task on
    the worker that it is pinned to, cancels it, and reports how it ends. A task whose worker is gone, which dask would
    keep for ever, is pinned to another one that sees the same tree, and ends in time where there is none. Errors and
    parameters are those of `ms_recover.engine.open_engine`.
    """

    def __init__(self, url: str, *, timeout: float = 60.0) -> None:
        self._timeout = timeout
        self._session = Session(name=f"ms_recover-{uuid.uuid4().hex}", timeout=timeout)
        self._cluster = Cluster(url, timeout)
        self._seats: dict[Node, dict[str, int]] = {}
        """Threads of the workers of a node, by address."""
        self._busy: Counter[str] = Counter()
        """How many tasks are pinned to a worker, by address."""
        self._totals: dict[str, int] = {}
        """Bytes that a task has counted, by its key."""
        self._heard: dict[str, tuple[float, float]] = {}
        self._answered = 0.0
        self._foreign: dict[tuple[Node, str], float] = {}
        """When a worker that does not see the tree of a node may be asked again, by its address."""
        self._used: set[str] = set()
        self._numbers = itertools.count()
        self._over: list[_Run] = []
        """Tasks that have ended since they were last looked at."""
        self._ended: queue.SimpleQueue[tuple[_Run, Any]] = queue.SimpleQueue()
        self._cluster.client.subscribe_topic(self._session.name, self._take_count)

    def look(self, root: str) -> tuple[WorkerReport, ...]:
        """Ask all workers at once, and again those that do not answer: one that was lost may come back."""
        deadline = time.monotonic() + self._timeout
        reports: dict[str, WorkerReport] = {}
        lost: dict[str, WorkerReport] = {}
        while True:
            names = {address: str(one["name"]) for address, one in self._cluster.workers().items()}
            for address in reports.keys() - names.keys():
                gone = reports.pop(address)
                lost[gone.name] = WorkerReport(address=address, name=gone.name, problem="was lost a moment ago")
            new = {address: name for address, name in names.items() if address not in reports}
            for one in self._cluster.look(root, new, self._timeout):
                if one.reached:
                    reports[one.address] = one
                    lost.pop(one.name, None)
                else:
                    lost[one.name] = one
            anew = self._cluster.started_anew
            some_may_come = bool(lost) or (anew and not names)
            if not some_may_come or time.monotonic() >= deadline:
                if some_may_come and anew:
                    raise self._cluster.gone()
                return (*reports.values(), *lost.values())
            time.sleep(_TICK_SECONDS)

    def run_each(
        self, tasks: Sequence[Task], *, progress: Progress | None = None, until_error: bool = False
    ) -> list[Any]:
        """Run tasks on workers; see `Engine.run_each`."""
        runs = [_Run(task, _packed(task)) for task in tasks]
        left = set(runs)
        self._answered = time.monotonic()
        due, count_again = self._answered + _TICK_SECONDS, self._answered
        self._over = []
        try:
            for run in runs:
                self._seats.setdefault(run.task.node, {one.address: one.threads for one in run.task.node.workers})
                self._start(run)
            while left:
                with suppress(queue.Empty):
                    self._take_end(*self._ended.get(timeout=_POLL_SECONDS))
                    while True:
                        self._take_end(*self._ended.get_nowait())
                if time.monotonic() >= due:
                    self._watch(left)
                    due = time.monotonic() + _TICK_SECONDS
                ended, self._over = self._over, []
                now = time.monotonic()
                for run in left if now >= count_again else ended:
                    self._count(run, progress)
                count_again = now + _POLL_SECONDS if now >= count_again else count_again
                left.difference_update(ended)
                if until_error and any(isinstance(run.end[0], Exception) for run in ended if run.end):
                    break
        finally:
            for run in runs:
                self._release(run)
        return [run.end[0] if run.end is not None else None for run in runs]

    def close(self) -> None:
        """Wait until the workers have ended what nobody waits for any more, and leave the cluster."""
        with suppress(Exception):
            self._cluster.wait_for_the_end(self._session.name, self._used)
        self._cluster.close()

    def _start(self, run: _Run) -> None:
        """Pin a task to the worker with the least to do for each of its threads, where there is one."""
        seats = self._seats[run.task.node]
        if not seats:
            return
        run.address = min(seats, key=lambda one: self._busy[one] / seats[one])
        run.key = f"{run.task.function.__name__}-{self._session.name}-{next(self._numbers)}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that a graph is large: it holds headers
                run.future = self._cluster.client.submit(
                    run_task,
                    self._session,
                    run.call,
                    key=run.key,
                    workers=[run.address],
                    allow_other_workers=False,
                    pure=False,
                )
        except Exception as error:
            text = f"{self._cluster.url}: a task cannot be sent: {error or type(error).__name__}"
            run.address = None
            self._end(run, StorageError(text))
            return
        self._used.add(run.address)
        self._busy[run.address] += 1
        self._totals[run.key] = 0
        run.future.add_done_callback(lambda future: self._ended.put((run, future)))

    def _take_count(self, event: tuple[float, tuple[str, int]]) -> None:
        key, total = event[1]
        if key in self._totals:
            self._totals[key] = total

    def _count(self, run: _Run, progress: Progress | None) -> None:
        total = self._totals.get(run.key, 0)
        if progress is not None and total > run.counted:
            more, run.counted = total - run.counted, total
            progress(more)

    def _take_end(self, run: _Run, future: Any) -> None:
        """Take the result of a task that has ended, if that is still wanted."""
        if future is not run.future or run.end is not None:
            return
        if future.status == "finished":
            try:
                value, self._totals[run.key] = pickle.loads(future.result(timeout=ANSWER_SECONDS))  # noqa: S301
            except Exception as error:  # the worker was lost before it could hand it over
                self._lose(run, str(error))
                return
            self._end(run, value)
        elif future.status == "error":
            failure = future.exception(timeout=ANSWER_SECONDS)
            if isinstance(failure, KilledWorker):
                self._end(run, _lost_often(run, "it was lost several times"))
            else:
                self._end(run, MsRecoverError(f"worker {run.address}: {type(failure).__name__}: {failure}"))
        elif self._cluster.client.status != "running":
            self._end(run, self._cluster.gone())
        else:
            self._lose(run, "its task was cancelled")

    def _end(self, run: _Run, value: Any) -> None:
        run.end = (value,)
        self._over.append(run)

    def _release(self, run: _Run) -> None:
        """Let go of a task: where it still runs its worker ends it."""
        if run.address is not None:
            self._busy[run.address] -= 1
            self._totals.pop(run.key, None)
            with suppress(Exception):  # where the client has lost the scheduler there is nobody to be asked
                run.future.release()
        run.address, run.future = None, None

    def _lose(self, run: _Run, why: str) -> None:
        """Pin a task to another worker, at once or when there is one."""
        self._seats[run.task.node].pop(run.address or "", None)
        self._release(run)
        run.losses += 1
        run.since = time.monotonic()
        if run.losses >= _MOST_LOSSES:
            self._end(run, _lost_often(run, why))
        else:
            self._start(run)

    def _watch(self, left: Collection[_Run]) -> None:
        """Look for workers that are gone, silent or new, and give up what nobody can do."""
        now = time.monotonic()
        try:
            workers = self._cluster.workers()
        except MsRecoverError:
            if self._cluster.client.status == "closed" or now > self._answered + self._timeout:
                for run in left:
                    if run.end is None:
                        self._end(run, self._cluster.gone())
            return
        self._answered = now
        for address, one in workers.items():
            if self._heard.get(address, (0.0, 0.0))[0] != one["last_seen"]:
                self._heard[address] = (one["last_seen"], now)
        alive = {address for address in workers if now <= self._heard[address][1] + self._timeout}
        for node, seats in self._seats.items():
            self._seats[node] = {address: threads for address, threads in seats.items() if address in alive}
        for run in left:
            if run.end is None and run.address is not None and run.address not in alive:
                self._lose(run, f"{run.address} is gone")
        waiting = [run for run in left if run.end is None and run.address is None]
        for node in {run.task.node for run in waiting}:
            if not self._seats[node]:
                self._find_seats(node, {address: str(workers[address]["name"]) for address in alive})
        for run in waiting:
            self._start(run)
            if run.address is None and run.end is None and now > run.since + self._timeout:
                self._end(run, self._nobody(run.task.node))

    def _find_seats(self, node: Node, names: Mapping[str, str]) -> None:
        """Ask workers that are new whether they see the tree of a node that has lost its own."""
        now = time.monotonic()
        new = {address: name for address, name in names.items() if now >= self._foreign.get((node, address), 0.0)}
        for one in self._cluster.look(node.root, new, min(self._timeout, ANSWER_SECONDS)):
            worker = returned(node, one)
            if worker is not None:
                self._seats[node][worker.address] = worker.threads
            else:
                self._foreign[node, one.address] = now + 5 * _TICK_SECONDS

    def _nobody(self, node: Node) -> StorageError:
        return StorageError(
            f"{node.label}: its workers are gone, and none that sees the same tree came within {self._timeout:g} s: "
            "start dask worker there again, then run this again"
        )


def _packed(task: Task) -> bytes:
    try:
        return pickle.dumps((task.function, task.arguments))
    except Exception as error:
        raise UsageError(f"a call cannot be sent to a worker: {error}") from error


def _lost_often(run: _Run, why: str) -> StorageError:
    return StorageError(f"{run.task.node.label}: {_MOST_LOSSES} workers were lost at one task ({why}): see logs")
