"""Worker processes of this machine: started, joined over a world of their own, ended."""

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
from ms_recover.splitting.protocol import MessageChannel
from ms_recover.splitting.worker import Job
from ms_recover.worlds.manager import WorldManager

_MAIN = "import sys; from ms_recover.splitting.worker import main; sys.exit(main())"
_LOOK_S = 0.005
_LEAVE_S = 2.0
_TRIES = 5


class Worker:
    """A worker process and the world it shares with this one.

    Parameters
    ----------
    manager : WorldManager
    job : Job
    """

    remote = False
    """Whether it shares no file system with this process."""

    def __init__(self, manager: WorldManager, job: Job) -> None:
        self._manager, self._job = manager, job
        self.line = MessageChannel(manager.communicator, job.world, 1)
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def world(self) -> str:
        """Name of the world."""
        return self._job.world

    @property
    def number(self) -> int | None:
        """The process id."""
        return None if self.process is None else self.process.pid

    @property
    def fate(self) -> str:
        """What became of the process, in words; empty while it runs."""
        code = None if self.process is None else self.process.poll()
        if code is None:
            return ""
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"

    async def start(self) -> None:
        """Start the process; returns when it is ready to hold parts.

        Raises
        ------
        DeviceLostError
            When that does not succeed in time; the process is ended then.
        """
        try:
            await asyncio.wait_for(self._start(), self._job.timeout)
        except (MsRecoverError, OSError, asyncio.TimeoutError) as error:
            words = str(error) or f"it was not ready within {self._job.timeout:g} s"
            fate = self.fate
            await self.end()
            raise DeviceLostError(f"a worker did not start: {fate or words}", cause="start") from error
        except BaseException:
            await self.end()
            raise

    async def _start(self) -> None:
        for tries_left in reversed(range(_TRIES)):
            port = _free_port(self._job.addr)
            meeting = asyncio.ensure_future(
                self._manager.initialize_world(self._job.world, 0, 2, self._job.addr, port, self._job.timeout)
            )
            try:
                self.process = _spawn(replace(self._job, port=port, parent=os.getpid()))
                while not meeting.done() and self.process.poll() is None:
                    await asyncio.wait([meeting], timeout=_LOOK_S * 4)
                if not meeting.done():
                    raise DeviceLostError(self.fate)
                await meeting
                break
            except UsageError:  # somebody else was faster at that port
                if self.process is not None:
                    self.process.kill()
                    self.process.wait()
                if not tries_left:
                    raise
            finally:
                meeting.cancel()
                with contextlib.suppress(MsRecoverError, asyncio.CancelledError):
                    await meeting
        await self._hear_ready()

    async def _hear_ready(self) -> None:
        word, _, _ = await self.line.hear()
        if word != "ready":
            raise DeviceLostError(f"it said {word!r} instead of ready")

    def kill(self) -> None:
        """End the process now, also when it is stopped."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()

    async def end(self, *, kindly: bool = False) -> None:
        """End the process and leave the world; kindly lets it end by itself first."""
        if not kindly:
            self.kill()
        with contextlib.suppress(UsageError, BrokenWorldError):  # there may be no world, or no longer
            await self._manager.remove_world(self._job.world)
        until = time.monotonic() + _LEAVE_S
        while self.process is not None and self.process.poll() is None:
            if time.monotonic() > until:
                self.process.kill()
            await asyncio.sleep(_LOOK_S)


class RemoteWorker(Worker):
    """A worker on another host, which somebody else starts; the job has the port at which it is expected.

    Its weights go to it over the world; code does not.
    """

    remote = True

    async def _start(self) -> None:
        job = self._job
        await self._manager.initialize_world(job.world, 0, 2, job.addr, job.port, job.timeout)
        await self._hear_ready()


def _spawn(job: Job) -> subprocess.Popen[bytes]:
    """Start a worker; what it has to do comes to it in an unnamed file."""
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


def _free_port(address: str) -> int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
