"""Tasks on the workers of a dask cluster."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from distributed.scheduler import KilledWorker

from ms_recover.engine.dask_calls import MOST_LOSSES, Call, Chunk, Seat, Team
from ms_recover.engine.dask_cluster import ANSWER_SECONDS, END_SECONDS, Cluster
from ms_recover.engine.dask_worker import Session, run_chunk
from ms_recover.engine.engine import Engine
from ms_recover.engine.packing import pack, unpack
from ms_recover.engine.places import returned
from ms_recover.engine.workers import Node, WorkerReport
from ms_recover.errors import MsRecoverError, StorageError, UsageError

_log = logging.getLogger(__name__)
_TICK_SECONDS = 1.0
_T = TypeVar("_T")


class DaskEngine(Engine):
    """The workers of the cluster whose scheduler is at a URL, ``dask://HOST:PORT`` or ``dask:///FILE`` of a scheduler.

    TLS is used where the configuration of dask has certificates, and always with ``tls://``. One thread owns the
    calls; others pass it events. Each call is pinned to a worker of its node, and given to another one when that is
    lost; errors and parameters are those of `ms_recover.engine.open_engine`.
    """

    def __init__(self, url: str, *, timeout: float = 60.0) -> None:
        self._url, self._timeout = url, timeout
        self._session = Session(name=f"ms_recover-{uuid.uuid4().hex}", timeout=timeout)
        self._cluster = Cluster(url, timeout)
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._teams: dict[tuple[str, str], Team] = {}
        self._chunks: dict[int, Chunk] = {}
        self._numbers = itertools.count()
        self._heard: dict[str, tuple[float, float]] = {}
        self._answered = time.monotonic()
        self._strangers: dict[str, float] = {}
        self._dead: MsRecoverError | None = None
        self._closing = False
        self._used: set[str] = set()
        self._cluster.client.subscribe_topic(self._session.name, lambda event: self._events.put(("count", event[1])))
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

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
            if not lost or time.monotonic() >= deadline:
                return (*reports.values(), *lost.values())
            time.sleep(_TICK_SECONDS)

    def submit(
        self,
        function: Callable[..., _T],
        /,
        *arguments: object,
        where: Node | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Future[_T]:
        """Give a call to the thread that owns them; see `Engine.submit`."""
        future: Future[_T] = Future()
        call = Call(future, function, arguments, where, progress)
        future.add_done_callback(lambda ended: self._events.put(("cancel",)) if ended.cancelled() else None)
        self._events.put(("submit", call))
        return future

    def close(self) -> None:
        """Release all tasks, wait until the workers have ended them, and leave the cluster."""
        self._events.put(("close",))
        self._thread.join(ANSWER_SECONDS + END_SECONDS)
        with suppress(Exception):
            self._cluster.wait_for_the_end(self._session.name, self._used)
        self._cluster.close()

    def _run(self) -> None:
        due = time.monotonic() + _TICK_SECONDS
        while not self._closing:
            try:
                self._take(max(0.0, due - time.monotonic()))
                if time.monotonic() >= due:
                    self._tick()
                    due = time.monotonic() + _TICK_SECONDS
                self._dispatch()
            except Exception as error:
                _log.exception("the engine fails")
                self._die(MsRecoverError(f"{self._url}: {type(error).__name__}: {error}"))
        self._die(StorageError(f"{self._url}: the engine is closed"))

    def _take(self, seconds: float) -> None:
        """Take the events that are there, and wait for the first."""
        with suppress(queue.Empty):
            event = self._events.get(timeout=seconds)
            while True:
                getattr(self, f"_on_{event[0]}")(*event[1:])
                event = self._events.get_nowait()

    def _on_submit(self, call: Call) -> None:
        if self._dead is not None:
            _fail([call], self._dead)
            return
        team = self._teams.setdefault(call.team, Team(None))
        call.since = time.monotonic()
        team.waiting.append(call)
        if call.node is None and not team.seats:
            with suppress(MsRecoverError):  # the next look at the cluster finds them, or gives up
                team.seats = {address: Seat(one["nthreads"]) for address, one in self._cluster.workers().items()}
        elif call.node is not None and (team.node is None or team.node.workers != call.node.workers):
            known = team.seats
            team.seats = {one.address: known.get(one.address) or Seat(one.threads) for one in call.node.workers}
        team.node = call.node

    def _on_count(self, message: Sequence[int]) -> None:
        number, index, total = message
        if number in self._chunks:
            self._chunks[number].calls[index].count(total)

    def _on_cancel(self) -> None:
        for number, chunk in list(self._chunks.items()):
            if all(call.future.cancelled() for call in chunk.calls):
                self._forget(number)
        for team in self._teams.values():
            for call in [call for call in team.waiting if call.future.cancelled()]:
                team.waiting.remove(call)

    def _on_close(self) -> None:
        self._closing = True
        for number in list(self._chunks):
            self._forget(number)

    def _on_ended(self, number: int) -> None:
        """Take the results of a chunk whose task has ended."""
        chunk = self._chunks.get(number)
        if chunk is None:
            return
        if chunk.task.status == "finished":
            try:
                results = unpack(chunk.task.result(timeout=ANSWER_SECONDS))
            except Exception as error:  # the worker was lost before it could hand them over
                self._lost(number, str(error))
                return
            self._forget(number)
            for call, (end, value, total) in zip(chunk.calls, results, strict=True):
                call.count(total)
                if call.future.set_running_or_notify_cancel():
                    if end == "done":
                        call.future.set_result(value)
                    else:
                        call.future.set_exception(value)
        elif chunk.task.status == "error":
            failure = chunk.task.exception(timeout=ANSWER_SECONDS)
            if isinstance(failure, KilledWorker):
                self._lost(number, "it was lost several times")
            else:
                self._forget(number)
                text = f"worker {chunk.address}: {type(failure).__name__}: {failure}"
                _fail(chunk.calls, MsRecoverError(text))
        elif not self._cluster.connected:
            self._die(self._cluster.gone())
        else:
            self._lost(number, "its task was cancelled")

    def _dispatch(self) -> None:
        for team in self._teams.values():
            while (address := team.next_seat()) is not None:
                calls = [call for call in team.take() if not call.future.cancelled()]
                if calls:
                    self._start(calls, address, team)

    def _start(self, calls: list[Call], address: str, team: Team) -> None:
        number = next(self._numbers)
        try:
            data = pack([(call.function, call.arguments) for call in calls])
        except Exception as error:
            _fail(calls, UsageError(f"a call cannot be sent to a worker: {error}"))
            return
        try:
            task = self._submit(number, data, calls[0], address)
        except Exception as error:
            _fail(calls, StorageError(f"{self._url}: a task cannot be sent: {error or type(error).__name__}"))
            return
        self._used.add(address)
        team.seats[address].chunks.add(number)
        self._chunks[number] = Chunk(calls, address, task)
        task.add_done_callback(lambda _: self._events.put(("ended", number)))

    def _submit(self, number: int, data: bytes, first: Call, address: str) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a graph is large: it holds headers
            return self._cluster.client.submit(
                run_chunk,
                self._session,
                number,
                data,
                key=f"{first.function.__name__}-{self._session.name}-{number}",
                workers=[address],
                allow_other_workers=False,
                pure=False,
            )

    def _forget(self, number: int) -> Chunk:
        """Drop a chunk: where it still runs its worker ends it."""
        chunk = self._chunks.pop(number)
        for team in self._teams.values():
            for seat in team.seats.values():
                seat.chunks.discard(number)
        with suppress(Exception):  # where the client has lost the scheduler there is nobody to be told
            chunk.task.release()
        return chunk

    def _lost(self, number: int, why: str) -> None:
        """Let calls wait for another worker."""
        chunk = self._forget(number)
        for call in reversed(chunk.calls):
            call.losses += 1
            call.since = time.monotonic()
            if call.losses >= MOST_LOSSES:
                name = call.node.label if call.node is not None else chunk.address
                _fail([call], StorageError(f"{name}: {call.losses} workers were lost at one task ({why}): see logs"))
            else:
                self._teams[call.team].waiting.appendleft(call)

    def _tick(self) -> None:
        """Look for workers that are gone, silent or new, and give up what nobody can do."""
        if not self._chunks and not any(team.waiting for team in self._teams.values()):
            self._answered = time.monotonic()
            return
        now = time.monotonic()
        try:
            workers = self._cluster.workers()
            self._answered = now
        except MsRecoverError:
            if self._cluster.client.status == "closed" or now > self._answered + self._timeout:
                self._die(self._cluster.gone())
            return
        for address, one in workers.items():
            if self._heard.get(address, (0.0, 0.0))[0] != one["last_seen"]:
                self._heard[address] = (one["last_seen"], now)
        alive = {address for address in workers if now <= self._heard[address][1] + self._timeout}
        for team in self._teams.values():
            team.seats = {address: seat for address, seat in team.seats.items() if address in alive}
        for number, chunk in list(self._chunks.items()):
            if chunk.address not in alive:
                self._lost(number, f"{chunk.address} is gone")
        for team in self._teams.values():
            if team.waiting and not team.seats:
                self._find_seats(team, {address: str(workers[address]["name"]) for address in alive})
            self._give_up(team, now)

    def _find_seats(self, team: Team, names: dict[str, str]) -> None:
        """Ask workers that are new whether they see the tree of a node that has lost its own."""
        if team.node is None:
            team.seats = {address: Seat(1) for address in names}
            return
        now = time.monotonic()
        new = {address: name for address, name in names.items() if now >= self._strangers.get(address, 0.0)}
        for one in self._cluster.look(team.node.root, new, min(self._timeout, ANSWER_SECONDS)):
            worker = returned(team.node, one)
            if worker is not None:
                team.seats[worker.address] = Seat(worker.threads)
            else:
                self._strangers[one.address] = now + 5 * _TICK_SECONDS

    def _give_up(self, team: Team, now: float) -> None:
        if team.seats or not team.waiting or now <= team.waiting[0].since + self._timeout:
            return
        name = team.node.label if team.node is not None else "the cluster"
        error = StorageError(
            f"{name}: its workers are gone, and none that sees the same tree came within {self._timeout:g} s: start "
            "dask worker there again, then run this again"
        )
        calls, team.waiting = list(team.waiting), type(team.waiting)()
        _fail(calls, error)

    def _die(self, error: MsRecoverError) -> None:
        """Fail everything: the cluster cannot be reached any more."""
        self._dead = self._dead or error
        calls = [call for team in self._teams.values() for call in team.waiting]
        for team in self._teams.values():
            team.waiting.clear()
        for number in list(self._chunks):
            calls += self._forget(number).calls
        while True:
            try:
                event = self._events.get_nowait()
            except queue.Empty:
                break
            if event[0] == "submit":
                calls.append(event[1])
        _fail(calls, self._dead)


def _fail(calls: Iterable[Call], error: Exception) -> None:
    for call in calls:
        if call.future.set_running_or_notify_cancel():
            call.future.set_exception(error)
