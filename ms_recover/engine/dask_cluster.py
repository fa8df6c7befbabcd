"""The connection to the scheduler of a dask cluster; every request has a time limit."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import distributed
from distributed.security import Security

from ms_recover.engine.dask_worker import ALL_WORKERS, chunks_at_work, report
from ms_recover.engine.engine import DASK, DASK_TLS
from ms_recover.engine.packing import unpack
from ms_recover.engine.workers import WorkerReport
from ms_recover.errors import InputError, StorageError, UsageError
from ms_recover.version import __version__

_DISTRIBUTED = version("distributed")
ANSWER_SECONDS = 10.0
"""Most for an answer of the scheduler."""
END_SECONDS = 20.0
"""Most for workers to end what nobody waits for any more."""


class Cluster:
    """A scheduler that can be asked; its methods are called by threads other than the client's own.

    Attributes
    ----------
    client : distributed.Client
    url : str
        As the user wrote it.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.url, self.timeout = url, timeout
        self.client = _connect(url, timeout)
        try:
            self._check_versions()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave."""
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.client.close(timeout=5)

    @property
    def connected(self) -> bool:
        """Whether the connection stands."""
        return bool(self.client.status == "running")

    def gone(self) -> StorageError:
        """Return the error for a scheduler that does not answer any more."""
        return StorageError(
            f"{self.url}: the scheduler is gone, or was started anew: see that it and its workers run, then run this "
            "again"
        )

    def workers(self) -> dict[str, Any]:
        """Ask the scheduler for its workers, by address.

        Raises
        ------
        StorageError
            When it does not answer.
        """
        try:
            found = self.client.sync(
                self.client.scheduler.identity, **ALL_WORKERS, callback_timeout=min(self.timeout, ANSWER_SECONDS)
            )
        except Exception as error:
            raise StorageError(f"{self.url}: the scheduler does not answer: {error or type(error).__name__}") from error
        workers: dict[str, Any] = found["workers"]
        return workers

    def look(self, root: str, names: Mapping[str, str], timeout: float) -> tuple[WorkerReport, ...]:
        """Ask workers, names by address, all at once what they see at a root."""

        async def ask(address: str) -> Any:
            try:
                return await asyncio.wait_for(self._ask(address, root), timeout)
            except Exception as error:
                return error

        async def ask_all() -> list[Any]:
            return await asyncio.gather(*(ask(address) for address in names))

        told = self.client.sync(ask_all, callback_timeout=timeout + ANSWER_SECONDS)
        return tuple(
            _read_report(address, name, one, timeout) for (address, name), one in zip(names.items(), told, strict=True)
        )

    async def _ask(self, address: str, root: str) -> Any:
        """Return the report of one worker, or in words why it cannot take part."""
        asked = {"op": "versions", "packages": ["ms_recover"]}  # answered also where ms_recover is not installed
        told = await self.client.scheduler.broadcast(msg=asked, workers=[address], on_error="return")
        if isinstance(told[address], Exception):
            raise told[address]
        packages = told[address]["packages"]
        if packages["ms_recover"] is None:
            return f"has no ms_recover: pip install 'ms-recover[dask]=={__version__}' there"
        for name, version_here in (("ms_recover", __version__), ("distributed", _DISTRIBUTED)):
            if packages[name] != version_here:
                return f"has {name} {packages[name]}, and this host {version_here}: install the same version"
        found = await self.client.run(report, root, workers=[address], on_error="return")
        return found[address]

    def _check_versions(self) -> None:
        try:
            told = self.client.sync(self.client.scheduler.versions, packages=[], callback_timeout=self.timeout)
            theirs = str(told["packages"]["distributed"])
        except Exception as error:
            raise StorageError(f"{self.url}: the scheduler does not state its version: {error}") from error
        if theirs != _DISTRIBUTED:
            raise InputError(
                f"{self.url}: the scheduler runs distributed {theirs}, this host {_DISTRIBUTED}: install "
                "the same version"
            )

    def wait_for_the_end(self, session: str, workers: Collection[str]) -> None:
        """Wait until no worker runs a chunk of a session: by then its temporary files are gone."""
        deadline = time.monotonic() + END_SECONDS
        left = list(workers)
        while left and time.monotonic() < deadline and self.client.status == "running":

            async def busy(addresses: Iterable[str] = tuple(left)) -> dict[str, Any]:
                asked = self.client.run(chunks_at_work, session, workers=list(addresses), on_error="return")
                answers: dict[str, Any] = await asyncio.wait_for(asked, 5)
                return answers

            answers = self.client.sync(busy, callback_timeout=ANSWER_SECONDS)
            left = [address for address, count in answers.items() if isinstance(count, int) and count]
            if left:
                time.sleep(0.1)


def silence() -> None:
    """Keep dask from printing its log on standard error, as a command does: errors arrive as exceptions."""
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm", "tornado", "asyncio"):
        log = logging.getLogger(name)
        log.handlers[:] = [logging.NullHandler()]
        log.propagate = False


def _connect(url: str, timeout: float) -> Any:
    """Connect to a scheduler.

    Raises
    ------
    UsageError
        When the URL is invalid.
    StorageError
        When it cannot be reached.
    """
    place = url.partition("://")[2]
    security = Security()
    encrypted = url.startswith(DASK_TLS) or security.get_connection_args("client").get("ssl_context") is not None
    if place.startswith("/"):
        arguments: dict[str, Any] = {"scheduler_file": place}
    elif ":" in place and place.rpartition(":")[2].isdigit():
        arguments = {"address": f"{'tls' if encrypted else 'tcp'}://{place}"}
    else:
        raise UsageError(f"--engine {url}: write {DASK}HOST:PORT, or {DASK}/FILE for the file of a scheduler")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # differing versions are an error of its own
            return distributed.Client(
                **arguments, timeout=timeout, set_as_default=False, name="ms_recover", security=security
            )
    except Exception as error:
        raise StorageError(
            f"{url} cannot be reached ({error or type(error).__name__}): see that dask scheduler runs there, and that "
            "both sides use TLS or neither does"
        ) from error


def _read_report(address: str, name: str, told: Any, timeout: float) -> WorkerReport:
    """Return what a worker said, or why it could not."""
    if isinstance(told, bytes):
        read: WorkerReport = unpack(told)
        return read
    if isinstance(told, str):
        return WorkerReport(address=address, name=name, problem=told)
    if isinstance(told, asyncio.TimeoutError | TimeoutError):
        problem, reached = f"does not answer within {timeout:g} s", False
    elif isinstance(told, OSError):
        problem, reached = f"cannot be reached ({told or type(told).__name__})", False
    else:
        text = f"{type(told).__name__}: {told}"
        problem, reached = f"cannot run ms_recover {__version__} ({text}): install the same version there", True
    return WorkerReport(address=address, name=name, problem=problem, reached=reached)
