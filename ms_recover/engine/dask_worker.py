"""What runs on the workers of a dask cluster."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as WaitTimeoutError
from dataclasses import dataclass
from inspect import signature
from typing import Any

import distributed
from distributed.core import Status
from distributed.protocol import to_serialize

from ms_recover.engine.context import TaskContext, carried, running
from ms_recover.engine.packing import pack, unpack
from ms_recover.engine.requests import Reply, Request, answer
from ms_recover.engine.roots import look_at, roots_from_environment
from ms_recover.engine.workers import Node, WorkerReport
from ms_recover.errors import MsRecoverError, StorageError
from ms_recover.stores.local import StoppedError
from ms_recover.version import __version__

_log = logging.getLogger(__name__)
HANDLER = "ms_recover_read"
"""Name of the request by which workers read from each other."""
_REPORT_SECONDS = 0.25
_POLL_SECONDS = 0.2
_REPLY_SECONDS = 30.0
_LOOK_SECONDS = 2.0
ALL_WORKERS = {"n_workers": -1} if "n_workers" in signature(distributed.Scheduler.identity).parameters else {}
"""Argument of ``identity``: newer releases name five workers without it, older ones know no number and name all."""
_ALIVE = (Status.running, Status.paused, Status.closing_gracefully)

_at_work: Counter[str] = Counter()
"""Chunks that run in this process, by session."""
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The work of one client."""

    name: str
    timeout: float
    """Seconds to wait for a node whose worker was lost."""


async def report(root: str, dask_worker: Any = None) -> bytes:
    """Return what a worker sees at a root, and let it answer the requests of others from now on."""
    dask_worker.handlers[HANDLER] = _answer
    problem, seen = None, None
    try:
        seen = await asyncio.get_running_loop().run_in_executor(None, look_at, root, roots_from_environment())
    except MsRecoverError as error:
        problem = str(error)
    found = WorkerReport(
        address=dask_worker.address,
        name=str(dask_worker.name),
        host=socket.gethostname(),
        version=__version__,
        threads=dask_worker.state.nthreads,
        root=seen,
        problem=problem,
    )
    return pack(found)


def chunks_at_work(session: str) -> int:
    """Return how many chunks of a session run on this worker."""
    return _at_work[session]


def run_chunk(session: Session, number: int, calls: bytes) -> bytes:
    """Run functions one after the other; return their results or errors, and the bytes that each has counted."""
    worker = distributed.get_worker()
    with _lock:
        _at_work[session.name] += 1
    try:
        chunk = _Chunk(worker, session, number)
        return pack([chunk.run(index, *call) for index, call in enumerate(unpack(calls))])
    finally:
        with _lock:
            _at_work[session.name] -= 1


class _Chunk:
    """The calls of one task, while they run."""

    def __init__(self, worker: Any, session: Session, number: int) -> None:
        self._worker, self._session, self._number = worker, session, number
        self._key = worker.get_current_task()
        self._roots = roots_from_environment()
        self._count_lock = threading.Lock()
        self._sent = 0.0

    def run(self, index: int, function: Callable[..., object], arguments: Sequence[object]) -> tuple[str, object, int]:
        total = 0

        def count(more: int) -> None:
            nonlocal total
            with self._count_lock:
                total += more
                now = time.monotonic()
                if now < self._sent + _REPORT_SECONDS:
                    return
                self._sent, message = now, [self._number, index, total]
            self._worker.log_event(self._session.name, message)

        context = TaskContext(stop=self.stop, count=count, roots=self._roots, ask=self.ask)
        try:
            if self.stop():
                raise StoppedError
            with running(context):
                return "done", function(*arguments), total
        except Exception as error:
            return "failed", carried(error), total

    def stop(self) -> bool:
        """Whether nobody waits for the task any more, or the worker closes."""
        task = self._worker.state.tasks.get(self._key)
        return task is None or task.state == "cancelled" or self._worker.status not in _ALIVE

    def ask(self, node: Node, request: Request, stop: Callable[[], bool]) -> Reply:
        """Send a request to a worker of another node; one that was lost is waited for.

        Raises
        ------
        MsRecoverError
            That of the other worker, or StorageError when none of the node answers any more.
        StoppedError
            When `stop` returns True, or the task is to end.
        """

        def ended() -> bool:
            return stop() or self.stop()

        addresses = [worker.address for worker in node.workers]
        deadline = time.monotonic() + self._session.timeout
        wait, last = _POLL_SECONDS, "it does not answer"
        while True:
            for address in addresses:
                found = self._await(_send(self._worker, address, request), ended)
                if isinstance(found, Reply):
                    return found
                if isinstance(found, MsRecoverError):
                    raise found
                last = str(found) or type(found).__name__
            if time.monotonic() >= deadline:
                raise StorageError(
                    f"no worker of the node answers ({last}): see that dask worker runs there, then run this again"
                )
            time.sleep(wait)
            wait = min(2 * wait, 2.0)
            again = self._await(_find(self._worker, node), ended)
            addresses = [*again] if isinstance(again, list) and again else addresses

    def _await(self, work: Any, stop: Callable[[], bool]) -> Any:
        """Run a coroutine in the worker's loop; return its result, or its error where it is one of the network."""
        future = asyncio.run_coroutine_threadsafe(work, self._worker.loop.asyncio_loop)
        deadline = time.monotonic() + _REPLY_SECONDS
        try:
            while True:
                if stop():
                    raise StoppedError
                try:
                    return future.result(_POLL_SECONDS)
                except WaitTimeoutError as error:
                    if future.done() or time.monotonic() >= deadline:
                        return error
                except (OSError, asyncio.TimeoutError, CancelledError) as error:  # the first has the second since 3.11
                    return error
        finally:
            future.cancel()


async def _answer(request: bytes) -> dict[str, Any]:
    """Answer a request of another worker."""
    try:
        asked, roots = unpack(request), roots_from_environment()
        reply = await asyncio.get_running_loop().run_in_executor(None, answer, asked, roots)
    except Exception as error:
        return {"error": pack(carried(error))}
    head = Reply(info=reply.info, form=reply.form, entries=reply.entries)
    return {"head": pack(head), "data": to_serialize(reply.data)}


async def _send(worker: Any, address: str, request: Request) -> Reply | Exception:
    asked = asyncio.ensure_future(getattr(worker.rpc(address), HANDLER)(request=pack(request)))
    try:
        while not (await asyncio.wait({asked}, timeout=_LOOK_SECONDS))[0]:
            identity = await worker.scheduler.identity(**ALL_WORKERS)
            if address not in identity["workers"]:  # connecting to it would be tried for half a minute
                raise ConnectionError(f"{address} is gone")
        answered = asked.result()
    finally:
        asked.cancel()
    if not isinstance(answered, dict):
        await worker.rpc(address).run(function=pack(report), args=pack((request.root,)))
        raise ConnectionError(f"{address} has started anew")
    if "error" in answered:
        error: Exception = unpack(answered["error"])
        return error
    head: Reply = unpack(answered["head"])
    return Reply(data=bytes(answered["data"]), info=head.info, form=head.form, entries=head.entries)


async def _find(worker: Any, node: Node) -> list[str]:
    """Return the addresses of workers that see the tree of a node now."""
    names = {one.name for one in node.workers}
    hosts = {_host(one.address) for one in node.workers}
    identity = await worker.scheduler.identity(**ALL_WORKERS)
    found = []
    for address, one in identity["workers"].items():
        if str(one["name"]) not in names and _host(address) not in hosts:
            continue
        try:
            told = await asyncio.wait_for(worker.rpc(address).run(function=pack(report), args=pack((node.root,))), 5)
            seen: WorkerReport = unpack(told["result"])
        except Exception as error:
            _log.info("%s cannot be asked: %s", address, error)
            continue
        if seen.root is not None and seen.root.identity in node.identities:
            found.append(address)
    return found


def _host(address: str) -> str:
    return address.rpartition("://")[2].rpartition(":")[0]
