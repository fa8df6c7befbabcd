"""Worker processes: started, joined over a world of their own, ended."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ms_recover.errors import BrokenWorldError, DeviceLostError, MsRecoverError, UsageError
from ms_recover.splitting.job import Job
from ms_recover.splitting.protocol import MessageChannel
from ms_recover.worlds.manager import WorldManager

_MAIN = "import sys; from ms_recover.splitting.worker import main; sys.exit(main())"
_POLL_S = 0.005
_LEAVE_S = 2.0
"""Seconds that a process may take to end by itself."""
_TRIES = 5
"""Ports tried: another program may take one between its choice and its use."""


class Worker:
    """A worker process of this machine, and the world that it shares with this one."""

    remote = False
    """Whether it shares no file system with this process."""

    def __init__(self, manager: WorldManager, job: Job) -> None:
        self._manager = manager
        self.world = job.world
        self._job = job
        self.channel = MessageChannel(manager.communicator, job.world, 1)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def process_id(self) -> int | None:
        """The process id; None when the process is not of this machine."""
        return None if self.process is None else self.process.pid

    @property
    def exit_reason(self) -> str:
        """How the process ended; empty while it runs."""
        code = None if self.process is None else self.process.poll()
        if code is None:
            return ""
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    async def start(self) -> None:
        """Start the process and wait until it can load parts; one that is late is ended and raises DeviceLostError."""
        try:
            await asyncio.wait_for(self._start(), self._job.timeout)
        except (MsRecoverError, OSError, asyncio.TimeoutError) as error:
            reason = self.exit_reason or str(error) or f"it was not ready within {self._job.timeout:g} s"
            await self.end()
            raise DeviceLostError(f"a worker did not start: {reason}", cause="start") from error
        except BaseException:
            await self.end()
            raise

    async def _start(self) -> None:
        for tries_left in reversed(range(_TRIES)):
            with socket.create_server((self._job.addr, 0)) as probe:
                port = int(probe.getsockname()[1])
            joining = asyncio.ensure_future(
                self._manager.initialize_world(self._job.world, 0, 2, self._job.addr, port, self._job.timeout)
            )
            try:
                self.process = _spawn(replace(self._job, port=port, parent=os.getpid()))
                while not joining.done() and self.process.poll() is None:
                    await asyncio.wait([joining], timeout=_POLL_S * 4)
                if not joining.done():
                    raise DeviceLostError(self.exit_reason)
                await joining
                break
            except UsageError:  # another program took the port first
                if self.process is not None:
                    self.process.kill()
                    self.process.wait()
                if not tries_left:
                    raise
            finally:
                joining.cancel()
                with contextlib.suppress(MsRecoverError, asyncio.CancelledError):
                    await joining
        await self._wait_until_ready()

    async def _wait_until_ready(self) -> None:
        message = await self.channel.receive()
        if message.kind != "ready":
            raise DeviceLostError(f"its first message is {message.kind!r}, expected 'ready'")

    def kill(self) -> None:
        """End the process now, also when it is stopped."""
        if self.process is not None:
            self.process.kill()

    async def end(self, *, graceful: bool = False) -> None:
        """End the process and leave the world; gracefully, the process may end by itself first."""
        if not graceful:
            self.kill()
        with contextlib.suppress(UsageError, BrokenWorldError):  # there may be no world, or a broken one
            await self._manager.remove_world(self._job.world)
        until = time.monotonic() + _LEAVE_S
        while self.process is not None and self.process.poll() is None:
            if time.monotonic() > until:
                self.process.kill()
            await asyncio.sleep(_POLL_S)


class RemoteWorker(Worker):
    """A worker on another host that joins at the job's port; an operator starts and ends its process.

    It makes the model itself and gets the weights over the world.
    """

    remote = True

    async def _start(self) -> None:
        job = self._job
        await self._manager.initialize_world(job.world, 0, 2, job.addr, job.port, job.timeout)
        await self._wait_until_ready()


def _spawn(job: Job) -> subprocess.Popen[bytes]:
    """Start a worker process; an unnamed file passes its job."""
    threads = {} if job.threads is None else {"OMP_NUM_THREADS": str(job.threads)}
    home = str(Path(__file__).parents[2])
    path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryFile() as file:
        pickle.dump(job, file)
        file.seek(0)
        return subprocess.Popen(  # noqa: S603 (this very Python)
            [sys.executable, "-c", _MAIN],
            stdin=file,
            env={**os.environ, **threads, "PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the splitter, which ends its workers
        )
