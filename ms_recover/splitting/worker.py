"""A worker: one process that holds parts of a model and computes them for its splitter, until that is gone."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ctypes
import gc
import importlib
import logging
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

from ms_recover.errors import BrokenWorldError, MsRecoverError
from ms_recover.splitting.job import Job
from ms_recover.splitting.protocol import Message, MessageChannel, MessageKind
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.security import Security

_GRACE_S = 1.0
"""Seconds that a computation may still take when the splitter is gone."""
_PR_SET_PDEATHSIG = 1
_LONGEST_WORDS = 2000
_ENDLESS_S = 1e6
"""A splitter on this host that is silent is stopped (Ctrl-Z, a debugger): the kernel ends this process when it dies."""
_ERRORS: dict[MessageKind, MessageKind] = {"run": "raised", "hold": "unable"}
"""The answers to messages that raised; all others are orders, which failed."""


class ControlThread(threading.Thread):
    """The thread that exchanges messages with the splitter while the main thread computes.

    A lasting process outlives the splitter.
    """

    def __init__(self, job: Job, security: Security, *, lasting: bool = False) -> None:
        super().__init__(name="ms_recover.splitting", daemon=True)
        self._job = job
        self._security = security
        self._lasting = lasting
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: MessageChannel | None = None
        self._begun = threading.Event()
        self.error: MsRecoverError | None = None
        """Why the world was not made, or broke."""
        self.messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        """Messages of the splitter; None when it is gone."""

    def wait_until_joined(self) -> bool:
        """Wait for the splitter; return whether the world with it was made."""
        self._begun.wait()
        return self._channel is not None

    def run(self) -> None:
        """Receive messages until the splitter is gone; then end this process, unless it lasts."""
        try:
            asyncio.run(self._receive_all())
        except MsRecoverError as error:
            self.error = error
            if not isinstance(error, BrokenWorldError):
                sys.stderr.write(f"worker {os.getpid()}: {error}\n")
        finally:
            self._begun.set()
            self.messages.put(None)
            if not self._lasting:
                timer = threading.Timer(_GRACE_S, os.kill, (os.getpid(), signal.SIGKILL))
                timer.daemon = True
                timer.start()

    def send(self, kind: MessageKind, tensors: Sequence[Any] = (), **fields: Any) -> None:
        """Send a message; returns at once."""
        if self._loop is not None and self._channel is not None:
            sending = self._channel.send(kind, tensors, **fields)
            try:
                asyncio.run_coroutine_threadsafe(sending, self._loop).add_done_callback(_end_where_unsent)
            except RuntimeError:  # the loop has ended: so will this process
                sending.close()

    async def _receive_all(self) -> None:
        job = self._job
        limit = job.heartbeat if self._lasting else _ENDLESS_S
        async with WorldManager(heartbeat=limit, security=self._security) as manager:
            await manager.initialize_world(job.world, 1, 2, job.addr, job.port, job.timeout)
            self._loop = asyncio.get_running_loop()
            channel = MessageChannel(manager.communicator, job.world, 0)
            self._channel = channel
            self._begun.set()
            while True:
                self.messages.put(await channel.receive())


def _end_where_unsent(sending: concurrent.futures.Future[None]) -> None:
    """End this process when a message could not be sent although the splitter is there: it would wait for ever."""
    if sending.cancelled():
        return
    error = sending.exception()
    if error is not None and not isinstance(error, MsRecoverError):
        sys.stderr.write(f"worker {os.getpid()}: a message cannot be sent: {error!r:.{_LONGEST_WORDS}}\n")
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGKILL)


class PartRunner:
    """Holds parts and runs chunks through them."""

    def __init__(self, job: Job, control: ControlThread) -> None:
        self._job = job
        self._control = control
        self._parts: dict[int, Any] = {}
        self._trained: dict[int, Any] = {}

    def serve(self) -> None:
        """Carry out the splitter's messages until it is gone."""
        self._import_all()
        self._control.send("ready")
        while (message := self._next_message()) is not None:
            try:
                self._carry_out(message)
            except Exception as error:
                traceback.print_exc()
                words = f"{type(error).__name__}: {error}".strip()[:_LONGEST_WORDS]
                answer = _ERRORS.get(message.kind, "failed")
                fields: dict[str, Any] = {name: message.fields.get(name) for name in ("part", "chunk", "order")}
                self._control.send(answer, words=words, **fields)

    def _next_message(self) -> Message | None:
        """Wait for a message, and do meanwhile what nobody waits for."""
        if self._control.messages.empty():
            for part in self._trained.values():
                try:
                    part.add_found()
                except Exception:  # the step will be refused
                    traceback.print_exc()
        return self._control.messages.get()

    def _carry_out(self, message: Message) -> None:
        number = message.fields["part"]
        if message.kind == "hold":
            part = self.make_part(message)
            self._trained.pop(number, None)
            self.load(part, message)
            self._parts[number] = part
            self._control.send("held", part=number, step=message.fields.get("step"))
        elif message.kind == "run":
            self._run(message)
        elif message.kind == "train":
            self._train(message)
        elif message.kind == "write":
            self.write(message)
        else:
            if message.kind == "make":
                self._parts[number] = self.make_part(message)
            self._answer(message, names=list(self._values(message)))

    def _import_all(self) -> None:
        """Import the code that parts need: a spare has the time now."""
        names = ["splitting.nested", "splitting.stages", "splitting.values", "tensors.arrays"]
        names += ["splitting.pickling"] if self._job.parts else []
        names += ["splitting.training.trained_part"] if self._job.method else []
        for name in names:
            importlib.import_module(f"ms_recover.{name}")
        if self._job.parts and self._job.target == "CPU":  # other processes have to take their device first
            from ms_recover.splitting import pickling

            for data in (*self._job.parts, *filter(None, [self._job.method])):
                pickling.import_modules(data)
        gc.collect()
        gc.freeze()  # what is imported stays: later collections need not look through it

    def make_part(self, message: Message) -> Any:
        """Make a part; its weights are those of a new model, or not set."""
        from ms_recover.splitting import pickling, stages

        device = message.fields["device"]
        take_device(self._job.target, self._job.device_id(device))  # a spare learns only now which device it serves
        if self._job.cores:
            _pin_to(self._job.cores[device % len(self._job.cores)])
        return stages.ModelPart(pickling.load_stages(self._job.parts[message.fields["part"]]))

    def load(self, part: Any, message: Message) -> None:
        """Set the values of a part to those of its slice, or of a snapshot of training."""
        from ms_recover.splitting import values

        number, path = message.fields["part"], message.fields["path"]
        if "digest" in message.fields:
            self._trained_part(number, part).load(path, message.fields["digest"])
            return
        file = values.SliceFile(path)
        part.load(file.weights, file.fill, path)
        if self._job.method and file.others:
            self._trained_part(number, part).state.fill(file)

    def write(self, message: Message) -> None:
        """Write the slice of a part to a file of this host."""
        from ms_recover.splitting import values

        digests = values.write_values(self._values(message), message.fields["path"])
        self._answer(message, file=digests.file, parameters=list(digests.parameters))

    def _values(self, message: Message) -> dict[str, Any]:
        """Return the values of the slice of a part, by name: its weights and mark, then those of its optimizer."""
        number = message.fields["part"]
        held: dict[str, Any] = self._parts[number].slice_values(number, message.fields["total"])
        return held | (self._trained[number].state.others if number in self._trained else {})

    def _answer(self, message: Message, tensors: Sequence[Any] = (), **fields: Any) -> None:
        """Answer an order."""
        self._control.send("done", tensors, order=message.fields["order"], **fields)

    def _trained_part(self, number: int, part: Any) -> Any:
        """Return a part in training, made when it is first needed."""
        if number not in self._trained:
            from ms_recover.splitting.training import trained_part

            method = trained_part.load_method(self._job.method)
            self._trained[number] = trained_part.TrainedPart(part, method, graph=self._job.mode == 0)
        return self._trained[number]

    def _train(self, message: Message) -> None:
        """Carry out an operation of a training step."""
        from ms_recover.splitting.training import trained_part

        began = time.perf_counter()
        number = message.fields["part"]
        part = self._trained_part(number, self._parts[number])
        fields, tensors = trained_part.answer(part, message.fields, message.tensors)
        self._control.send(
            "done", tensors, order=message.fields["order"], seconds=time.perf_counter() - began, **fields
        )

    def _run(self, message: Message) -> None:
        """Compute a part's output, copied to the host."""
        from ms_recover.splitting import nested
        from ms_recover.tensors.arrays import to_host, to_tensor

        began = time.perf_counter()
        number = message.fields["part"]
        if number in self._trained:
            self._trained[number].infer(self._job.mode)
        given = nested.unflatten(message.fields["skeleton"], [to_tensor(tensor) for tensor in message.tensors])
        part = self._parts[number]
        output = part(*given[0], **given[1]) if number == 0 else part(given)
        skeleton, leaves = nested.flatten(output)
        self._control.send(
            "ran",
            [to_host(leaf) for leaf in leaves],
            part=number,
            chunk=message.fields["chunk"],
            skeleton=skeleton,
            seconds=time.perf_counter() - began,
        )


def take_device(target: str, number: int) -> None:
    """Make MindSpore use this accelerator."""
    if target != "CPU":
        import mindspore

        mindspore.set_device(target, number)


def _pin_to(cores: tuple[int, ...]) -> None:
    """Restrict all threads of this process, present and future, to these cores.

    MindSpore 2.10 computes a PyNative operator with as many threads as there are cores, regardless of its options.
    """
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # it has ended, or the cores were taken away
            os.sched_setaffinity(int(thread), cores)


def _configure_mindspore(job: Job) -> None:
    """Give MindSpore the settings that it has in the splitter's process."""
    import mindspore

    mindspore.set_context(mode=job.mode)
    if job.target != "CPU":
        return
    mindspore.set_device("CPU")
    if job.threads is not None:
        try:
            mindspore.device_context.cpu.op_tuning.threads_num(job.threads)
        except AttributeError:  # its name in older versions
            mindspore.set_context(runtime_num_threads=job.threads)
    if job.method and job.mode == mindspore.GRAPH_MODE and job.threads == 1:
        # training steps from graph to graph; MindSpore's queues between them would take turns with what computes
        mindspore.runtime.launch_blocking()


def _end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, also when this one is stopped."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> int:
    """Read the job from standard input and do it; return the exit code."""
    _end_with_parent()
    logging.getLogger("ms_recover.worlds").setLevel(logging.ERROR)  # the end of the splitter is expected here
    job: Job = pickle.load(sys.stdin.buffer)  # noqa: S301 (a private file of the process that started this one)
    if os.getppid() != job.parent:  # it ended before the kernel was asked to watch it
        return 1
    sys.path[:] = job.path
    control = ControlThread(job, Security(job.token))
    control.start()
    # Importing MindSpore before 2.10 stops all threads for longer than a heartbeat; a helper process sends those now.
    if not control.wait_until_joined():
        return 1
    _configure_mindspore(job)
    PartRunner(job, control).serve()
    return 0
