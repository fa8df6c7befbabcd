"""The connection to the scheduler of a dask cluster; every request has a time limit."""

from __future__ import annotations

import asyncio
import logging
import pickle
import time
import warnings
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import distributed
from distributed.security import Security

from ms_recover.engine.dask_worker import ALL_WORKERS, DISTRIBUTED, is_at_work, report
from ms_recover.engine.workers import WorkerReport
from ms_recover.errors import InputError, StorageError, UsageError, install_extra
from ms_recover.version import __version__

ANSWER_SECONDS = 10.0
"""Most for an answer of the scheduler."""
_END_SECONDS = 20.0
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
        self._schedulers: set[str] = set()
        self.client = _connect(url, timeout)
        try:
            self._check_version()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Leave."""
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.client.close(timeout=5)

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
        self._schedulers.add(str(found["id"]))
        workers: dict[str, Any] = found["workers"]
        return workers

    @property
    def started_anew(self) -> bool:
        """Whether another scheduler has answered at the same address."""
        return len(self._schedulers) > 1

    def look(self, root: str, names: Mapping[str, str], timeout: float) -> list[WorkerReport]:
        """Ask workers, names by address, all at once what they see at a root."""

        async def ask(address: str, name: str) -> WorkerReport:
            fields: dict[str, Any] = {"address": address, "name": name}
            try:
                return await asyncio.wait_for(self._ask(fields, root), timeout)
            except (asyncio.TimeoutError, TimeoutError):
                return WorkerReport(**fields, problem=f"does not answer within {timeout:g} s", reached=False)
            except Exception as error:
                why = error or type(error).__name__
                return WorkerReport(**fields, problem=f"cannot be reached ({why})", reached=False)

        async def ask_all() -> list[WorkerReport]:
            return await asyncio.gather(*(ask(address, name) for address, name in names.items()))

        reports: list[WorkerReport] = self.client.sync(ask_all, callback_timeout=timeout + ANSWER_SECONDS)
        return reports

    async def _ask(self, fields: Mapping[str, Any], root: str) -> WorkerReport:
        """Return the report of one worker, or why it cannot take part."""
        address = fields["address"]
        said = (await self.client.run(report, root, workers=[address], on_error="return"))[address]
        if isinstance(said, OSError | asyncio.TimeoutError):
            raise said
        if isinstance(said, tuple) and said[:2] == (__version__, DISTRIBUTED):
            found: WorkerReport = pickle.loads(said[2])  # noqa: S301
            return found
        asked = {"op": "versions", "packages": ["ms_recover"]}  # answered also where ms_recover is not installed
        versions = await self.client.scheduler.broadcast(msg=asked, workers=[address], on_error="return")
        if isinstance(versions[address], Exception):
            raise versions[address]
        packages = versions[address]["packages"]
        if packages["ms_recover"] is None:
            problem = f"has no ms_recover: install version {__version__} there: {install_extra('dask')}"
        elif packages["ms_recover"] != __version__:
            problem = _differs("ms_recover", packages["ms_recover"])
        elif packages["distributed"] != DISTRIBUTED:
            problem = _differs("distributed", packages["distributed"])
        else:
            text = f"{type(said).__name__}: {said}" if isinstance(said, Exception) else "another build of it"
            problem = f"cannot run ms_recover {__version__} ({text}): install the same version there"
        return WorkerReport(**fields, problem=problem)

    def _check_version(self) -> None:
        try:
            said = self.client.sync(self.client.scheduler.versions, packages=[], callback_timeout=self.timeout)
            theirs = str(said["packages"]["distributed"])
        except Exception as error:
            raise StorageError(f"{self.url}: the scheduler does not state its version: {error}") from error
        if theirs != DISTRIBUTED:
            raise InputError(
                f"{self.url}: the scheduler runs distributed {theirs}, this host {DISTRIBUTED}: install "
                "the same version"
            )

    def wait_for_the_end(self, session: str, workers: Collection[str]) -> None:
        """Wait until no worker runs a task of a session: by then its temporary files are gone."""
        deadline = time.monotonic() + _END_SECONDS
        left = list(workers)
        while left and time.monotonic() < deadline and self.client.status == "running":
            asked = self.client.run(is_at_work, session, workers=left, on_error="return", asynchronous=True)
            answers: dict[str, Any] = self.client.sync(asyncio.wait_for, asked, 5, callback_timeout=ANSWER_SECONDS)
            left = [address for address, busy in answers.items() if busy is True]
            if left:
                time.sleep(0.1)


def _differs(package: str, theirs: str) -> str:
    here = __version__ if package == "ms_recover" else DISTRIBUTED
    return f"has {package} {theirs}, and this host {here}: install the same version"


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
    scheme, _, place = url.partition("://")
    security = Security()
    encrypted = scheme == "tls" or security.get_connection_args("client").get("ssl_context") is not None
    if place.startswith("/"):
        arguments: dict[str, Any] = {"scheduler_file": place}
    elif ":" in place and place.rpartition(":")[2].isdigit():
        arguments = {"address": f"{'tls' if encrypted else 'tcp'}://{place}"}
    else:
        raise UsageError(f"--engine {url}: write dask://HOST:PORT, or dask:///FILE for the file of a scheduler")
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
