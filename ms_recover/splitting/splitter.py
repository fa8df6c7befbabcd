"""A model over several devices, each a process of its own."""

from __future__ import annotations

import ipaddress
import math
import os
import secrets
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import mindspore

from ms_recover.errors import UsageError
from ms_recover.splitting import nested, pickling, stages, weights
from ms_recover.splitting.engine import Engine
from ms_recover.splitting.events import Event, ForwardReport, Span
from ms_recover.splitting.history import History
from ms_recover.splitting.loop import LoopThread
from ms_recover.splitting.options import Failures, Options
from ms_recover.splitting.partition import assign, partition
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.state import SplitterState
from ms_recover.splitting.summary import DeviceRow, summary
from ms_recover.splitting.timeline import write_timeline
from ms_recover.splitting.worker import Job, remote_world_name
from ms_recover.worlds.manager import WorldManager
from ms_recover.worlds.security import Security

_CHUNKS_PER_PART = 4


class ModelSplitter:
    """Runs a model's forward over several devices, each of them a process with its own MindSpore.

    With ``split="layers"`` the model is cut into parts, one per device, and the batch into chunks that flow through
    the parts, all parts at work at once. With ``split="batch"`` every device holds the whole model and takes its share
    of the batch. Either way `forward` returns what the model itself would.

    The processes are started when the splitter is made, stay until it is closed, and end with this process however
    that ends. The weights are those that the model has when the splitter is made. When a device is lost with work that
    nobody else has, `forward` raises; `FaultTolerantModelSplitter` goes on.

    Parameters
    ----------
    model : mindspore.nn.Cell or str
        Not in training mode. For layers a ``SequentialCell``, or a cell whose method ``stages()`` returns the cells
        that it is made of: each gets the output of the one before as its only argument. Or the name of a function that
        returns the model, as ``package.module:function``.
    num_devices : int
        More devices than stages hold the costliest parts once more.
    split : {"layers", "batch"}
    sample : tensor or tuple, optional
        An input to measure the cost of each stage with. Without it the number of a stage's weights stands for it.
    costs : sequence of float, optional
        What each stage costs, when it is known.
    chunk_rows : int, optional
        Rows of a chunk. By default four chunks for each part, or one for each device, but none under 16 rows: MindSpore
        adds up matrix products of fewer rows in another order, which changes the last bits.
    directory : path, optional
        Where the parts' weights are kept, as slices that ``recover-ckpt`` understands; by default a temporary one.
    replicas : int
        Times that each part's slice is kept.
    heartbeat : float
        Seconds of silence after which a frozen device is lost.
    timeout, start_timeout : float
        Seconds that a device may take for one chunk, compilation included, and to start.
    remote : int
        So many of the devices, the last ones, are workers on other hosts, which somebody starts there with
        ``python -m ms_recover.splitting --factory package.module:function --addr HOST --port N``; they make the model
        themselves and get the weights from here. The token has to be in the environment on both sides, see
        `ms_recover.worlds.Security`.
    addr, port : str, int
        Where remote workers find this process; the first at `port`, each other one at the next.
    threads : int, optional
        Threads that compute in each process; by default the cores are shared out. Where there are enough of them each
        process keeps to its own.
    on_event : callable, optional
        Told every `Event`, in another thread; must not call the splitter.

    Attributes
    ----------
    parts : tuple of range
        The stages of each part.

    Raises
    ------
    UsageError
        When the arguments cannot be meant, or the model cannot be split or handed over.
    DeviceLostError
        When a device does not start.

    Examples
    --------
    >>> with ModelSplitter(model, 4) as splitter:  # doctest: +SKIP
    ...     output = splitter.forward(x)
    """

    _failures = Failures()

    def __init__(
        self,
        model: Any,
        num_devices: int,
        split: Literal["layers", "batch"] = "layers",
        *,
        sample: Any = None,
        costs: Sequence[float] | None = None,
        chunk_rows: int | None = None,
        directory: str | os.PathLike[str] | None = None,
        replicas: int = 2,
        heartbeat: float = 3.0,
        timeout: float = 600.0,
        start_timeout: float = 120.0,
        remote: int = 0,
        addr: str = "127.0.0.1",
        port: int = 29600,
        threads: int | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        options = Options(
            num_devices, split, chunk_rows, replicas, heartbeat, timeout, start_timeout, remote, addr, port, threads
        )
        self._options, self._record = options, History(on_event)
        cell = pickling.from_factory(model) if isinstance(model, str) else model
        cells = stages.stages_of(cell) if split == "layers" else stages.whole_model(cell)
        stage_costs = _costs(cells, costs, sample)
        self.parts = partition(stage_costs, min(num_devices, len(cells)))
        parts = [stages.ModelPart([cells[stage] for stage in part]) for part in self.parts]
        handed = tuple(pickling.dump_stages(part.stages) for part in parts)
        self._store = SliceStore(directory, len(parts), replicas)
        self._loop = LoopThread()
        self._close = weakref.finalize(self, _close, self._loop, self._store, os.getpid())
        try:
            for number, part in enumerate(parts):
                self._store.save(number, partial(weights.save, part, number), weights.names(part, number))
            state = SplitterState(
                assign(stage_costs, self.parts, num_devices),
                [math.fsum(stage_costs[stage] for stage in part) for part in self.parts],
                self._failures.policy,
                self._failures.max_restarts,
            )
            job = _job(options, handed)
            self._engine = Engine(
                state,
                self._store,
                job,
                WorldManager(heartbeat=heartbeat, security=Security(job.token)),
                WorldManager(heartbeat=heartbeat, security=_shared_security(options)),
                self._record,
                timeout,
                spares=self._failures.spares,
                guests=_guests(options, job),
                about=partial(_about, split, self.parts),  # not a method: who forgets a splitter shall be rid of it
            )
            self._loop.begin(self._engine)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ModelSplitter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do the same as `forward`."""
        return self.forward(*args, **kwargs)

    @property
    def directory(self) -> str:
        """Where the parts' weights are kept."""
        return self._store.directory

    @property
    def processes(self) -> list[int | None]:
        """For each device the id of its process, None while it has none."""
        return self._engine.processes

    @property
    def last_report(self) -> ForwardReport | None:
        """What came of the last forward."""
        return self._record.reports[-1] if self._record.reports else None

    @property
    def events(self) -> tuple[Event, ...]:
        """What happened since the splitter was made."""
        return tuple(self._record.events)

    @property
    def spans(self) -> tuple[Span, ...]:
        """Which device computed which chunk when."""
        return tuple(self._record.spans)

    @property
    def spares(self) -> int:
        """Processes that wait to take over."""
        return self._engine.spares

    @property
    def now(self) -> float:
        """Seconds since the splitter was made: the clock of events and spans."""
        return self._record.now

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the model's output.

        Parameters
        ----------
        *args, **kwargs
            As the model takes them: tensors, numpy arrays, numbers, strings, and tuples, lists and dicts of them. The
            first axis of all tensors is the batch; one in a `Shared` goes to every chunk as it is.

        Returns
        -------
        mindspore.Tensor, or tuple, list or dict of them
            With the rows in their order.

        Raises
        ------
        UsageError
            When an argument cannot be cut into chunks, or the outputs of chunks cannot be joined.
        DeviceLostError
            When a device is lost and with it a part of the answer.
        PartError
            When a part raises.
        """
        cuts = self._cuts(nested.rows_of(args, kwargs))
        return self._loop.run(self._engine.forward(args, kwargs, cuts))

    def report(self) -> None:
        """Print what each device has done, what was lost, and what happened last."""
        sys.stdout.write(self.summary() + "\n")

    def summary(self) -> str:
        """Return what `report` prints."""
        engine = self._engine
        rows = [
            DeviceRow(
                device=it.number,
                alive=it.alive,
                retired=it.retired,
                parts=tuple(sorted(it.parts)),
                process=process,
                restarts=max(it.generation - 1, 0),
            )
            for it, process in zip(engine.state.devices, engine.processes, strict=True)
        ]
        return summary(rows, self.spans, self.events, tuple(self._record.reports))

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows which device worked on which chunk when, faults marked.

        Raises
        ------
        StorageError
            When it cannot be written.
        """
        write_timeline(path, self.spans, self.events, tuple(self._record.reports))

    def close(self) -> None:
        """End all processes; a temporary directory goes as well."""
        self._close()

    def _cuts(self, rows: int) -> list[tuple[int, int]]:
        if self._options.chunk_rows is not None:
            return nested.plan_chunks(rows, math.ceil(rows / self._options.chunk_rows), 1)
        parts = len(self.parts)
        return nested.plan_chunks(rows, self._options.num_devices if parts == 1 else _CHUNKS_PER_PART * parts)


class FaultTolerantModelSplitter(ModelSplitter):
    """A `ModelSplitter` that goes on when devices are lost: killed, frozen, too slow, out of memory, or raising.

    Parameters
    ----------
    model, num_devices, split, **options
        As for `ModelSplitter`.
    on_failure : {"recover", "skip", "raise"}
        recover: a fresh process takes over with the weights of the part's slice, what was lost runs again, and the
        answer is whole. skip: the output holds the rows that could be computed, `last_report` says which are missing
        and why; a lost device stays away until `reset_device_states`. raise: `DeviceLostError`.
    max_restarts : int
        Fresh processes that a device gets, and at most three in a row that do not start or die over the same chunk;
        then it is retired, and its part moves to a survivor. `reset_device_states` forgives.
    spares : int
        Processes that wait, with MindSpore imported, to take over.

    Raises
    ------
    NoDeviceLeftError
        By `forward`, when nothing of the answer can be computed.
    """

    def __init__(
        self,
        model: Any,
        num_devices: int,
        split: Literal["layers", "batch"] = "layers",
        *,
        on_failure: Literal["recover", "skip", "raise"] = "recover",
        max_restarts: int = 100,
        spares: int = 0,
        **options: Any,
    ) -> None:
        if on_failure not in ("recover", "skip", "raise"):
            raise UsageError(f"on_failure {on_failure!r}: it is 'recover', 'skip' or 'raise'")
        self._failures = Failures(on_failure, max_restarts, spares)
        super().__init__(model, num_devices, split, **options)

    def __enter__(self) -> FaultTolerantModelSplitter:
        return self

    @property
    def device_states(self) -> list[bool]:
        """For each device whether it is at work."""
        return [device.alive for device in self._engine.state.devices]

    def reset_device_states(self) -> None:
        """Bring every device back, weights included; returns when they are at work, or cannot be."""
        self._loop.run(self._engine.reset())


def _about(split: str, parts: Sequence[range], part: int) -> dict[str, Any]:
    """Tell a worker that made the model itself which piece of it a part is."""
    return {"split": split, "stages": [parts[part].start, parts[part].stop], "mode": mindspore.get_context("mode")}


def _close(loop: LoopThread, store: SliceStore, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child: it is its parent's
    if loop.here:  # the garbage collector came upon the splitter in the thread that is to end
        threading.Thread(target=_close, args=(loop, store, process), name="ms_recover.splitting.close").start()
        return
    try:
        loop.close()
    finally:
        store.close()


def _job(options: Options, parts: tuple[bytes, ...]) -> Job:
    target = mindspore.get_context("device_target")
    cores = sorted(os.sched_getaffinity(0))
    threads, local = options.threads, options.num_devices - options.remote
    if threads is None and target == "CPU":
        threads = max(1, len(cores) // max(1, local))
    shares: tuple[tuple[int, ...], ...] = ()
    if threads is not None and target == "CPU" and threads * local <= len(cores):
        shares = tuple(tuple(cores[at : at + threads]) for at in range(0, threads * local, threads))
    return Job(
        world="",
        addr="127.0.0.1",
        port=0,
        token=secrets.token_bytes(32),
        heartbeat=options.heartbeat,
        timeout=options.start_timeout,
        parts=parts,
        path=tuple(os.path.abspath(place) for place in sys.path),
        mode=mindspore.get_context("mode"),
        target=target,
        threads=threads,
        cores=shares,
    )


def _shared_security(options: Options) -> Security:
    """Return how remote workers and this process know each other."""
    if not options.remote:
        return Security()
    security = Security.from_environment()
    try:
        address = ipaddress.ip_address(options.addr)
    except ValueError:
        return security  # a name is judged when its address is known
    security.allow(str(address))
    return security


def _guests(options: Options, job: Job) -> dict[int, Job]:
    """Return the jobs of remote workers, by device."""
    first = options.num_devices - options.remote
    return {
        first + index: replace(
            job, world=remote_world_name(options.port + index), addr=options.addr, port=options.port + index
        )
        for index in range(options.remote)
    }


def _costs(cells: Sequence[Any], costs: Sequence[float] | None, sample: Any) -> Sequence[float]:
    if costs is not None and len(costs) != len(cells):
        raise UsageError(f"{len(costs)} costs for {len(cells)} stages")
    if costs is not None:
        return costs
    if sample is None or len(cells) == 1:
        return stages.estimated_costs(cells)
    return stages.measured_costs(cells, sample if isinstance(sample, tuple) else (sample,), {})
