"""A worker: one process that holds parts of a model and computes what it is sent, until its splitter is gone."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ms_recover.errors import BrokenWorldError, MsRecoverError
from ms_recover.splitting.protocol import MessageChannel
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.security import Security

_GRACE_S = 1.0
_PR_SET_PDEATHSIG = 1
_LONGEST_WORDS = 2000
Heard = tuple[str, Mapping[str, Any], list[Any]]


@dataclass(frozen=True)
class Job:
    """What a worker needs to know to begin.

    Parameters
    ----------
    world, addr, port : str, str, int
        Where the splitter waits.
    token : bytes
        Known to the splitter and its workers of this host.
    heartbeat, timeout : float
        Seconds: silence after which the other end is lost; until the world has to be there.
    parts : tuple of bytes
        Each part of the model without its weights, see `ms_recover.splitting.pickling`.
    path : tuple of str
        Where Python finds modules.
    mode, target, threads : int, str, int or None
        MindSpore's: graph or PyNative mode, device target, threads.
    cores : tuple of tuple of int
        Cores that each device keeps to; empty when there are not enough.
    parent : int
        Process id of the splitter, where that is on this machine.
    """

    world: str
    addr: str
    port: int
    token: bytes = field(repr=False)
    heartbeat: float
    timeout: float
    parts: tuple[bytes, ...] = field(repr=False)
    path: tuple[str, ...]
    mode: int
    target: str
    threads: int | None
    cores: tuple[tuple[int, ...], ...] = ()
    parent: int = 0


def remote_world_name(port: int) -> str:
    """Return the name of the world that a worker of another host shares with the splitter that listens at a port."""
    return f"ms_recover.splitting.{port}"


class ControlThread(threading.Thread):
    """The thread that talks to the splitter while the main thread computes.

    Parameters
    ----------
    job : Job
    security : Security
    lasting : bool
        The process goes on when the splitter is gone.
    """

    def __init__(self, job: Job, security: Security, *, lasting: bool = False) -> None:
        super().__init__(name="ms_recover.splitting", daemon=True)
        self._job, self._security, self._lasting = job, security, lasting
        self.error: MsRecoverError | None = None
        """Why the world did not come to be, or broke."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: MessageChannel | None = None
        self.heard: queue.SimpleQueue[Heard | None] = queue.SimpleQueue()
        """What the splitter says; None when it is gone."""

    def run(self) -> None:
        """Talk until the splitter is gone, and see to it that this process ends then."""
        try:
            asyncio.run(self._talk())
        except MsRecoverError as error:
            self.error = error
            if not isinstance(error, BrokenWorldError):
                sys.stderr.write(f"worker {os.getpid()}: {error}\n")
        finally:
            self.heard.put(None)
            if not self._lasting:
                # A computation that takes longer than this has nobody to be done for.
                timer = threading.Timer(_GRACE_S, os.kill, (os.getpid(), signal.SIGKILL))
                timer.daemon = True
                timer.start()

    def say(self, word: str, tensors: list[Any] | None = None, **fields: Any) -> None:
        """Say something; returns at once."""
        if self._loop is not None and self._line is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended: so will this process
                asyncio.run_coroutine_threadsafe(self._say(word, tensors or [], fields), self._loop)

    async def _say(self, word: str, tensors: list[Any], fields: Mapping[str, Any]) -> None:
        assert self._line is not None
        with contextlib.suppress(BrokenWorldError):
            await self._line.say(word, tensors, **fields)

    async def _talk(self) -> None:
        job = self._job
        async with WorldManager(heartbeat=job.heartbeat, security=self._security) as manager:
            await manager.initialize_world(job.world, 1, 2, job.addr, job.port, job.timeout)
            self._loop, self._line = asyncio.get_running_loop(), MessageChannel(manager.communicator, job.world, 0)
            self.heard.put(("joined", {}, []))
            while True:
                self.heard.put(await self._line.hear())


class PartRunner:
    """The parts that this process holds, and what it does with them.

    Parameters
    ----------
    job : Job
    ear : Ear
    """

    def __init__(self, job: Job, ear: ControlThread) -> None:
        self._job, self._ear = job, ear
        self._held: dict[int, Any] = {}

    def serve(self) -> None:
        """Do what the splitter says until it is gone."""
        self._ear.say("ready")
        while (heard := self._ear.heard.get()) is not None:
            word, fields, tensors = heard
            began = time.perf_counter()
            try:
                if word == "hold":
                    self._held[fields["part"]] = self.make(fields, tensors)
                    self._ear.say("held", part=fields["part"], seconds=time.perf_counter() - began)
                elif word == "run":
                    skeleton, leaves = self._run(fields["part"], fields["skeleton"], tensors)
                    answer = {"part": fields["part"], "chunk": fields["chunk"], "skeleton": skeleton}
                    self._ear.say("ran", leaves, **answer, seconds=time.perf_counter() - began)
            except Exception as error:
                traceback.print_exc()
                words = f"{type(error).__name__}: {error}".strip()[:_LONGEST_WORDS]
                kind = "raised" if word == "run" else "unable"
                self._ear.say(kind, part=fields.get("part"), chunk=fields.get("chunk"), words=words)

    def make(self, fields: Mapping[str, Any], tensors: list[Any]) -> Any:
        """Make a part, with the weights of its slice."""
        from ms_recover.splitting import pickling, stages, weights

        del tensors
        take_device(self._job.target, fields["device"])  # a spare learns only now which one it is
        if self._job.cores:
            _keep_to(self._job.cores[fields["device"] % len(self._job.cores)])
        part = stages.ModelPart(pickling.load_stages(self._job.parts[fields["part"]]))
        weights.load(part, fields["path"])
        return part

    def _run(self, number: int, skeleton: Any, tensors: list[Any]) -> tuple[Any, list[Any]]:
        """Compute a part's output, and have it on the host."""
        from ms_recover.splitting import nested

        given = nested.unflatten(skeleton, [nested.to_tensor(tensor) for tensor in tensors])
        output = self._held[number](*given[0], **given[1]) if number == 0 else self._held[number](given)
        shape, leaves = nested.flatten(output)
        return shape, [nested.to_host(leaf) for leaf in leaves]


def take_device(target: str, number: int) -> None:
    """Have MindSpore use an accelerator."""
    if target != "CPU":
        import mindspore

        mindspore.set_device(target, number)


def _keep_to(cores: tuple[int, ...]) -> None:
    """Have all threads of this process, and those to come, run on these cores.

    MindSpore 2.10 computes a PyNative operator with as many threads as there are cores, whatever it is told.
    """
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended, or the cores were taken away
            os.sched_setaffinity(int(thread), cores)


def _prepare(job: Job) -> None:
    """Make MindSpore as it is where the splitter is."""
    import mindspore

    mindspore.set_context(mode=job.mode)
    if job.target != "CPU":
        return
    mindspore.set_device("CPU")
    if job.threads is not None:
        try:
            mindspore.device_context.cpu.op_tuning.threads_num(job.threads)
        except AttributeError:  # as it was called before
            mindspore.set_context(runtime_num_threads=job.threads)


def end_with_parent() -> None:
    """Have the kernel end this process with the one that started it, also when this one is stopped."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Read the job from standard input and do it."""
    end_with_parent()
    logging.getLogger("ms_recover.worlds").setLevel(logging.ERROR)  # that the splitter is gone is no news here
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301 (a private file of the process that started this one)
    if os.getppid() != job.parent:  # it ended before the kernel was asked to tell
        return 1
    sys.path[:] = job.path
    ear = ControlThread(job, Security(job.token))
    ear.start()
    _prepare(job)  # takes seconds; the world is joined meanwhile
    if ear.heard.get() is None:
        return 1
    PartRunner(job, ear).serve()
    return 0
