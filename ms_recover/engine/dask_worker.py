"""What runs on the workers of a dask cluster.

Values are pickles: who can connect to a scheduler or a worker of dask can run any code on it, so that nothing is lost
by reading them.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError as WaitTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from inspect import signature
from typing import Any

import distributed
from distributed.core import Status
from distributed.protocol import to_serialize

import ms_recover
from ms_recover.engine.context import TaskContext, carried, running
from ms_recover.engine.requests import Reply, Request, answer
from ms_recover.engine.roots import look_at, roots_from_environment
from ms_recover.engine.workers import Node, WorkerReport
from ms_recover.errors import MsRecoverError, StorageError
from ms_recover.stores.local import StoppedError

_log = logging.getLogger(__name__)
DISTRIBUTED = version("distributed")
HANDLER = "ms_recover_read"
"""Name of the request by which workers read from each other."""
_REPORT_SECONDS = 0.25
_POLL_SECONDS = 0.2
_REPLY_SECONDS = 30.0
_LOOK_SECONDS = 2.0
ALL_WORKERS = {"n_workers": -1} if "n_workers" in signature(distributed.Scheduler.identity).parameters else {}
"""Argument of ``identity``: newer releases name five workers without it, older ones know no number and name all."""
_ALIVE = (Status.running, Status.paused, Status.closing_gracefully)
_ENDED = ("memory", "error", "released", "forgotten")


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """The work of one client."""

    name: str
    """Part of the key of each of its tasks."""
    timeout: float
    """Seconds to wait for a node whose worker was lost."""


async def report(root: str, dask_worker: Any = None) -> tuple[str, str, bytes]:
    """Return the versions of ms_recover and distributed, and what a worker sees at a root, which only the same read.

    From now on it answers the requests of others.
    """
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
        version=ms_recover.__version__,
        threads=dask_worker.state.nthreads,
        root=seen,
        problem=problem,
    )
    return ms_recover.__version__, DISTRIBUTED, pickle.dumps(found)


def is_at_work(session: str, dask_worker: Any = None) -> bool:
    """Whether a task of a session runs on this worker, also one that nobody waits for any more."""
    return any(session in str(key) and task.state not in _ENDED for key, task in dict(dask_worker.state.tasks).items())


def run_task(session: Session, call: bytes) -> bytes:
    """Run a function; return its result or its error, and the bytes that it has counted."""
    function, arguments = pickle.loads(call)  # noqa: S301
    task = _RunningTask(session)
    context = TaskContext(
        stop=task.stop,
        count=task.count,
        threads=task.worker.state.nthreads,
        roots=roots_from_environment(),
        ask=task.ask,
    )
    try:
        with running(context):
            result = function(*arguments)
    except Exception as error:
        result = carried(error)
    return pickle.dumps((result, task.total))


class _RunningTask:
    """A task while it runs on this worker; its methods are called by the threads that it starts, too."""

    def __init__(self, session: Session) -> None:
        self.worker = distributed.get_worker()
        self.total = 0
        self._session, self._key = session, self.worker.get_current_task()
        self._lock, self._reported = threading.Lock(), 0.0

    def count(self, more: int) -> None:
        with self._lock:
            self.total += more
            now = time.monotonic()
            if now < self._reported + _REPORT_SECONDS:
                return
            self._reported, message = now, [self._key, self.total]
        self.worker.log_event(self._session.name, message)

    def stop(self) -> bool:
        """Whether nobody waits for the task any more, or the worker closes."""
        task = self.worker.state.tasks.get(self._key)
        return task is None or task.state == "cancelled" or self.worker.status not in _ALIVE

    def ask(self, node: Node, request: Request, stop: Callable[[], bool]) -> Reply:
        """Send a request to a worker of another node; one that was lost is waited for.

        Raises
        ------
        MsRecoverError
            That of the other worker, or StorageError when none of the node answers any more.
        StoppedError
            When `stop` returns True, or the task is to end.
        """
        asked = _ask(self.worker, node, request, self._session.timeout)
        future = asyncio.run_coroutine_threadsafe(asked, self.worker.loop.asyncio_loop)
        try:
            while not (stop() or self.stop()):
                with suppress(WaitTimeoutError):
                    return future.result(_POLL_SECONDS)
            raise StoppedError
        finally:
            future.cancel()


async def _ask(worker: Any, node: Node, request: Request, seconds: float) -> Reply:
    addresses = [one.address for one in node.workers]
    deadline = time.monotonic() + seconds
    pause = _POLL_SECONDS
    while True:
        for address in addresses:
            try:
                return await asyncio.wait_for(_send(worker, address, request), _REPLY_SECONDS)
            except MsRecoverError:  # of the other worker; some are errors of the system, too
                raise
            except (OSError, asyncio.TimeoutError) as error:  # the first has the second since 3.11
                last = str(error) or type(error).__name__
        if time.monotonic() >= deadline:
            raise StorageError(
                f"no worker of the node answers ({last}): see that dask worker runs there, then run this again"
            )
        await asyncio.sleep(pause)
        pause = min(2 * pause, 2.0)
        with suppress(OSError, asyncio.TimeoutError):
            addresses = await asyncio.wait_for(_find(worker, node), _REPLY_SECONDS) or addresses


async def _send(worker: Any, address: str, request: Request) -> Reply:
    asked = asyncio.ensure_future(getattr(worker.rpc(address), HANDLER)(request=pickle.dumps(request)))
    try:
        while not (await asyncio.wait({asked}, timeout=_LOOK_SECONDS))[0]:
            identity = await worker.scheduler.identity(**ALL_WORKERS)
            if address not in identity["workers"]:  # connecting to it would be tried for half a minute
                raise ConnectionError(f"{address} is gone")
        if asked.cancelled():
            raise ConnectionError(f"the connection to {address} was closed")
        answered = asked.result()
    finally:
        asked.cancel()
    if not isinstance(answered, dict):
        await _report_of(worker, address, request.root)
        raise ConnectionError(f"{address} has started anew")
    found = pickle.loads(answered["head"])  # noqa: S301
    if isinstance(found, Exception):
        raise found
    return Reply(data=bytes(answered["data"]), info=found.info, form=found.form, entries=found.entries)


async def _answer(request: bytes) -> dict[str, Any]:
    """Answer a request of another worker."""
    try:
        asked, roots = pickle.loads(request), roots_from_environment()  # noqa: S301
        reply = await asyncio.get_running_loop().run_in_executor(None, answer, asked, roots)
    except Exception as error:
        return {"head": pickle.dumps(carried(error))}
    head = Reply(info=reply.info, form=reply.form, entries=reply.entries)
    return {"head": pickle.dumps(head), "data": to_serialize(reply.data)}


async def _report_of(worker: Any, address: str, root: str) -> WorkerReport:
    said = await worker.rpc(address).run(function=pickle.dumps(report), args=pickle.dumps((root,)))
    found: WorkerReport = pickle.loads(said["result"][1])  # noqa: S301
    return found


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
            seen = (await asyncio.wait_for(_report_of(worker, address, node.root), 5)).root
        except Exception as error:
            _log.info("%s cannot be asked: %s", address, error)
            continue
        if seen is not None and seen.identity in node.identities:
            found.append(address)
    return found


def _host(address: str) -> str:
    return address.rpartition("://")[2].rpartition(":")[0]
