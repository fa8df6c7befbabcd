"""A model over several devices, each a process of its own."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from ms_recover.errors import UsageError
from ms_recover.splitting import batches, values
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.engine import Engine
from ms_recover.splitting.events import Event, ForwardReport, Rows, Span
from ms_recover.splitting.given_model import given_model
from ms_recover.splitting.gradients import outside_graphs, without_gradients
from ms_recover.splitting.history import History
from ms_recover.splitting.job import make_jobs
from ms_recover.splitting.options import Failures, Options, Split
from ms_recover.splitting.partition import assign, partition
from ms_recover.splitting.saved_split import SavedSplit, find_saved
from ms_recover.splitting.slice_directory import newest_saved
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.state import SplitterState
from ms_recover.splitting.summary import summary
from ms_recover.splitting.timeline.page import write_timeline
from ms_recover.splitting.timeline.trace import write_trace
from ms_recover.worlds.loop_thread import LoopThread

T = TypeVar("T")
_CHUNKS_PER_PART = 4


class ModelSplitter:
    """Runs a model's forward over several devices, each of them a process with its own MindSpore.

    With ``split="layers"`` the model is cut into parts, one per device, and the batch into chunks that flow through
    the parts, all parts at work at once. With ``split="batch"`` every device holds the whole model and takes its share
    of the batch. Either way `forward` returns the output of the model itself.

    The processes are started when the splitter is made, stay until it is closed, and end with this process however
    that ends. The weights are those that the model has when the splitter is made. When a device is lost with unfinished
    work, `forward` raises; `FaultTolerantModelSplitter` goes on.

    Parameters
    ----------
    model : mindspore.nn.Cell, list of callable or str
        In inference mode. For layers a ``SequentialCell``, or a cell whose method ``stages()`` returns its cells in
        order: each takes the output of the one before as its only argument. Or a list of functions that each make a
        stage: the workers call those of their part, and no other process holds its weights. Or the name of a function
        that returns the model or such a list, as ``package.module:function``.
    num_devices : int
        Devices beyond the number of stages hold further copies of the costliest parts.
    split : {"layers", "batch"}
    sample : tensor or tuple, optional
        An input to measure the cost of each stage with. By default the cost is the stage's number of weights.
    costs : sequence of float, optional
        The cost of each stage, in any unit. Stages that workers make cost the same by default.
    chunk_rows : int, optional
        Rows of a chunk. By default there are four chunks for each part, or one for each device, of at least 16 rows:
        MindSpore sums matrix products of fewer rows in another order, which changes the last bits.
    directory : path, optional
        The directory of the parts' weights, as slices that ``recover-ckpt`` understands; by default a temporary one.
    replicas : int
        Copies of each part's slice.
    resume : bool, optional
        Whether to go on from the slices in the directory: with their weights, their parts and their number of
        replicas, behind their step. Without slices there it begins with the model. False: slices there are replaced.
        By default those of a training are refused, and those of a splitter that trained no step are replaced.
    heartbeat : float
        Seconds of silence until a frozen device is lost.
    timeout, start_timeout : float
        Seconds that a device may take for one chunk, compilation included, and to start.
    remote : int
        Number of devices on other hosts, the last ones. An operator starts their workers there with
        ``python -m ms_recover.splitting --factory package.module:function --addr HOST --port N``; they make the model
        themselves and receive the weights. The token has to be in the environment on both sides, see
        `ms_recover.worlds.Security`.
    addr, port : str, int
        Address of this process for remote workers; the first joins at `port`, each further one at the next port.
    threads : int, optional
        Computing threads of each process; by default an equal share of the cores. If there are enough cores, each
        process has cores of its own.
    on_event : callable, optional
        Called with every `Event`, in another thread; must not call the splitter.

    Attributes
    ----------
    parts : tuple of range
        The stages of each part.

    Raises
    ------
    UsageError
        When an argument is invalid, or the model cannot be split or pickled.
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
        split: Split = "layers",
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
        resume: bool | None = None,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        options = Options(
            num_devices=num_devices,
            split=split,
            chunk_rows=chunk_rows,
            replicas=replicas,
            heartbeat=heartbeat,
            timeout=timeout,
            start_timeout=start_timeout,
            remote=remote,
            addr=addr,
            port=port,
            threads=threads,
        )
        self._options = options
        self._history = History(on_event)
        given = given_model(model, split)
        self._weights = given.weights
        stage_costs = given.costs(costs, sample)
        found = _saved(directory, resume)
        if found is not None:
            given.check_saved(found)
        self.parts = _parts(stage_costs, num_devices if split == "layers" else 1, found)
        jobs = make_jobs(options, list(map(given.pickled, self.parts)), self.parts, given.total, given.seed)
        self._store = SliceStore(directory, len(self.parts), found.replicas if found else replicas, found)
        state = SplitterState(
            assign(stage_costs, self.parts, num_devices),
            [math.fsum(stage_costs[stage] for stage in part) for part in self.parts],
            self._failures.policy,
            self._failures.max_restarts,
        )
        self._devices = Devices(
            state=state,
            store=self._store,
            jobs=jobs,
            history=self._history,
            chunk_limit=timeout,
            spares=self._failures.spares,
        )
        self._engine = Engine(self._devices)
        self._loop_thread = LoopThread("ModelSplitter")
        self._loop_thread.__enter__()
        # the arguments must not refer to the splitter, which would then never be garbage
        self._close = weakref.finalize(self, _close, self._loop_thread, self._engine, self._store, os.getpid())
        try:
            for number, part in enumerate(self.parts if found is None else ()):
                held = given.slice_values(part, number)
                if held is not None:
                    self._store.save(number, partial(values.write_values, held), held)
            self._wait_for(self._engine.begin())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ModelSplitter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @outside_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do the same as `forward`."""
        return self.forward(*args, **kwargs)

    @property
    def directory(self) -> str:
        """The directory of the parts' weights."""
        return self._store.directory

    @property
    def processes(self) -> list[int | None]:
        """For each device the id of its process; None while it has none on this host."""
        return self._devices.processes

    @property
    def last_report(self) -> ForwardReport | None:
        """The report of the last forward."""
        return self._history.reports[-1] if self._history.reports else None

    @property
    def events(self) -> tuple[Event, ...]:
        """The events since the splitter was made, oldest first."""
        return tuple(self._history.events)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The chunks that each device computed, with their times."""
        return tuple(self._history.spans)

    @property
    def spares(self) -> int:
        """Number of idle processes that can take over."""
        return len(self._devices.pool.spares)

    @property
    def now(self) -> float:
        """Seconds since the splitter was made: the clock of events and spans."""
        return self._history.now

    @outside_graphs
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Compute the model's output.

        Parameters
        ----------
        *args, **kwargs
            The model's arguments: tensors, numpy arrays, numbers, strings, and tuples, lists and dicts of them. Axis 0
            of all tensors is the batch; every chunk gets those in a `Shared` whole.

        Returns
        -------
        mindspore.Tensor, or tuple, list or dict of them
            With the rows in the order of the input.

        Raises
        ------
        UsageError
            When an argument cannot be cut into chunks, or the outputs of chunks cannot be joined. Also by a gradient
            that would have to pass through here, such as that of ``ms.value_and_grad`` by the input or the weights.
        DeviceLostError
            When a device is lost and the answer is incomplete.
        PartError
            When a part raises on these inputs.
        """
        batch = batches.Batch(args, kwargs)
        output = self._wait_for(self._engine.forward(batch, self._cuts(batch.rows)))
        return without_gradients(output, batch.tensors, self._weights.values())

    def state_dict(self) -> dict[str, Any]:
        """Return the weights as the devices have them, under the names that they have in the model.

        Returns
        -------
        dict of str to mindspore.Parameter
            Copies, for ``mindspore.load_param_into_net`` or ``Cell.load_state_dict``. Stages that workers make have the
            names of an ``nn.SequentialCell`` of all stages, such as ``3.weight``.

        Raises
        ------
        UsageError
            When the splitter is closed.
        UnrecoverableError
            When every slice of a part is damaged.
        """
        return self._wait_for(self._engine.read_weights())

    def sync(self) -> None:
        """Set the weights of the model that was passed in to those of `state_dict`, in the memory that they have.

        Raises
        ------
        UsageError
            When the model was made by a factory: this process has none. Or when the splitter is closed.
        UnrecoverableError
            When every slice of a part is damaged; no weight is set then.
        """
        if not self._weights:
            raise UsageError("there is no model to set: it was given as a factory or has no weights; see state_dict")
        found = self.state_dict()
        for name, parameter in self._weights.items():
            values.assign(parameter, found[name])

    def report(self) -> None:
        """Print the work of each device, the totals and the last events."""
        sys.stdout.write(self.summary() + "\n")

    def summary(self) -> str:
        """Return the text that `report` prints."""
        return summary(self._devices.state.devices, self.processes, *self._happened())

    def timeline(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows the chunks and faults of each device over time.

        Beside the page, with the ending ``.trace.json``, the same is written as trace events: open that file in
        https://ui.perfetto.dev or chrome://tracing.

        Parameters
        ----------
        path : path
            Such as ``timeline.html``, with ``timeline.trace.json`` beside it. Existing files are replaced.

        Raises
        ------
        UsageError
            When the path is invalid.
        StorageError
            When a file cannot be written.
        """
        happened = self._happened()
        write_timeline(path, *happened)
        write_trace(path, *happened)

    def close(self) -> None:
        """End all processes, and remove a temporary directory."""
        self._close()

    def _happened(self) -> tuple[tuple[Span, ...], tuple[Event, ...], tuple[ForwardReport, ...]]:
        return self.spans, self.events, tuple(self._history.reports)

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run work of the engine; Ctrl-C cancels it and is raised when it has ended."""
        if not self._close.alive:
            work.close()
            raise UsageError("this splitter is closed")
        _restore_interrupt_handler()
        return self._loop_thread.run(work)

    def _cuts(self, rows: int) -> list[Rows]:
        if self._options.chunk_rows is not None:
            return batches.plan_chunks(rows, math.ceil(rows / self._options.chunk_rows), 1)
        parts = len(self.parts)
        return batches.plan_chunks(rows, self._options.num_devices if parts == 1 else _CHUNKS_PER_PART * parts)


def _close(loop_thread: LoopThread, engine: Engine, store: SliceStore, process: int) -> None:
    if os.getpid() != process:
        return  # a forked child: the processes are its parent's
    if loop_thread.here:  # the garbage collector runs in the thread that has to end
        arguments = (loop_thread, engine, store, process)
        threading.Thread(target=_close, args=arguments, name="ms_recover.splitting.close").start()
        return
    try:
        _restore_interrupt_handler()
        loop_thread.run(engine.close())
    finally:
        loop_thread.__exit__()
        store.close()


def _restore_interrupt_handler() -> None:
    """Restore Python's handler of Ctrl-C: MindSpore installs one that ends the process."""
    if threading.current_thread() is threading.main_thread():
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            signal.signal(signal.SIGINT, handler)


def _saved(directory: str | os.PathLike[str] | None, resume: bool | None) -> SavedSplit | None:
    """Return the slices to go on from; refuse to replace those of a training unless that is asked for."""
    if directory is None:
        if resume:
            raise UsageError("resume needs the directory of the splitter to go on from")
        return None
    if resume:
        return find_saved(directory)
    trained = newest_saved(directory)
    if trained and resume is None:
        raise UsageError(
            f"{os.fspath(directory)} holds the slices of {trained} trained steps: resume=True goes on from them, "
            "resume=False replaces them, another directory keeps them"
        )
    return None


def _parts(costs: Sequence[float], most: int, found: SavedSplit | None) -> tuple[range, ...]:
    """Return the stages of each part: those that were saved, else at most so many, as even as possible."""
    if found is None:
        return partition(costs, min(most, len(costs)))
    return found.parts
