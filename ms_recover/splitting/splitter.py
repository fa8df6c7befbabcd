"""A model over several devices, each a process of its own."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ms_recover.errors import UsageError
from ms_recover.splitting import batches
from ms_recover.splitting.batches import Whole
from ms_recover.splitting.devices import Devices
from ms_recover.splitting.engine import Engine
from ms_recover.splitting.engine_thread import EngineThread
from ms_recover.splitting.events import Event, ForwardReport, Rows, Span
from ms_recover.splitting.given_model import given_model
from ms_recover.splitting.gradients import outside_graphs, without_gradients
from ms_recover.splitting.job import make_jobs
from ms_recover.splitting.model_parts import CallablePart
from ms_recover.splitting.options import Failures, Options, Split
from ms_recover.splitting.partition import assign
from ms_recover.splitting.saved_split import go_on_from
from ms_recover.splitting.slices import SliceStore
from ms_recover.splitting.state import SplitterState
from ms_recover.splitting.summary import summary
from ms_recover.splitting.timeline.page import write_timeline
from ms_recover.splitting.timeline.trace import write_trace
from ms_recover.splitting.training.method import pickled_method
from ms_recover.splitting.training.options import training_options
from ms_recover.splitting.training.step_loss import StepLoss
from ms_recover.splitting.training.trainer import Trainer
from ms_recover.tensors.memory import set_value

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
        In inference mode. For layers a ``SequentialCell``, a cell whose method ``stages()`` returns its cells in order
        (each takes the output of the one before as its only argument), a cell whose ``construct`` is a chain of such
        calls, or any cell with `stages`. Or a list of functions that each make a stage: the workers call those of their
        part, and no other process holds its weights. Or the name of a function that returns the model or such a list,
        as ``package.module:function``.
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
    stages : sequence of mindspore.nn.Cell or str, optional
        For layers: the cells of the model, or their names, in the order in which its ``construct`` calls them.
    cut_at : sequence of str or int, optional
        For layers: the stages with which the second part and each further one begins, by name (such as ``"head"`` or
        ``"encoder.3"``) or number, instead of parts of equal cost. Without `stages` and where ``construct`` cannot be
        followed, the stages are the model's cells in order of registration.
    check : bool
        Compare the output of the parts with that of the model: for the sample, if there is one, and for some rows of
        the first forward.
    device_target : str, optional
        MindSpore's name of the devices, such as ``"Ascend"``; by default that of this process.
    device_ids : sequence of int, optional
        The accelerator of each local device, by default 0, 1 and so on.
    loss_fn : callable, optional
        Makes `train_step` possible, with `optimizer`. Takes the model's output and the targets of the same rows, and
        returns their mean loss: a cell such as ``nn.CrossEntropyLoss()``, or a function. A cell with
        ``reduction="sum"`` is summed over the chunks.
    optimizer : callable, optional
        Takes the list of a part's trainable parameters and returns their optimizer, such as
        ``lambda weights: nn.Adam(weights, 1e-3)``. It is called in the worker, for each part.
    snapshot_steps : int
        Steps from one snapshot, of weights and optimizers in memory, to the next. After a loss at most so many steps
        are repeated, from copies of their batches.
    recompute : bool
        Keep only the inputs of chunks on their way, and compute the forward pass again for the way back.
    save_steps : int, optional
        Steps from one `save` to the next.
    clip_norm : float, optional
        The gradients of a step are clipped by the norm of all of them, over all parts, before the optimizers step; with
        the bits of ``mindspore.ops.clip_by_global_norm``, in the order of the stages.

    Attributes
    ----------
    num_devices : int
    parts : tuple of range
        The stages of each part.
    model_parts : tuple of callable
        The parts themselves, in order: ``part(x)`` computes one in the process of its device.

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

    def __init__(  # noqa: PLR0913 (the keywords of programs)
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
        stages: Sequence[Any] | None = None,
        cut_at: Sequence[str | int] | None = None,
        check: bool = True,
        device_target: str | None = None,
        device_ids: Sequence[int] | None = None,
        loss_fn: Callable[..., Any] | None = None,
        optimizer: Callable[[list[Any]], Any] | None = None,
        snapshot_steps: int = 10,
        recompute: bool = False,
        save_steps: int | None = None,
        clip_norm: float | None = None,
    ) -> None:
        # the signature is for those who call; from here on all keywords travel as one value
        keywords = {name: value for name, value in locals().items() if name not in ("self", "model")}
        self._options = options = Options(**keywords, failures=self._failures)
        self.num_devices = num_devices
        training = training_options(options)
        given = given_model(model, options)
        self._weights = given.weights  # the parameters of the model that was passed in, by their names in slices

        saved = go_on_from(options.directory, options.resume)
        stage_costs = given.costs()
        self.parts = given.parts(stage_costs, saved)
        given.compare_sample()
        method = pickled_method(options, given.cells_of(self.parts), saved.manifests if saved else ())
        jobs = make_jobs(options, given.for_workers(self.parts), method)

        self._store = SliceStore(options.directory, len(self.parts), saved.replicas if saved else replicas, saved)
        self._comparison = given.comparison(self._store)
        state = SplitterState(
            assign(stage_costs, self.parts, num_devices),
            [math.fsum(stage_costs[stage] for stage in part) for part in self.parts],
            self._failures.policy,
            self._failures.max_restarts,
        )
        self._devices = Devices(options, state, self._store, jobs)
        self._history = self._devices.history
        trainer = None if training is None else Trainer(self._devices, training, len(self.parts))
        self._engine = Engine(self._devices, trainer)
        self._thread = EngineThread(type(self).__name__, self._engine, self._store)
        try:
            if saved is None:
                given.save(self._store, self.parts)
            self._thread.run(self._engine.begin)
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
    def model_parts(self) -> tuple[CallablePart, ...]:
        """The parts in order, to be called one by one."""
        return tuple(CallablePart(number, part, self._run_part) for number, part in enumerate(self.parts))

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
            When an argument cannot be cut into chunks, the outputs of chunks cannot be joined, or the first output
            is not that of the model. Also by a gradient that would have to pass through here, such as that of
            ``ms.value_and_grad`` by the input or the weights.
        DeviceLostError
            When a device is lost and the answer is incomplete.
        PartError
            When a part raises on these inputs.
        """
        batch = batches.Batch(args, kwargs)
        cuts = self.chunks(batch.rows)
        output, complete = self._thread.run(lambda: self._engine.forward(batch, cuts))
        if complete:
            self._comparison.compare(batch, output, cuts)
        return without_gradients(output, batch.tensors, self._weights.values())

    @outside_graphs
    def train_step(self, x: Any, y: Any) -> StepLoss:
        """Do one training step: gradients over the chunks of a batch, added in chunk order, then the optimizers' step.

        A step is done in every part or in none. The result is that of one process that does the same with the same
        chunks (see `chunks`), to the bit: for each chunk the gradients of its loss times its share of the rows (of the
        loss itself where its reduction is "sum"), added in order, then one step of the optimizer.

        Parameters
        ----------
        x : tensor, numpy array or tuple
            The model's argument, or arguments. Axis 0 of all tensors is the batch.
        y : tensor, numpy array or tuple
            What `loss_fn` takes behind the model's output.

        Returns
        -------
        StepLoss
            A number, the mean loss over the rows, with ``rows`` and ``total``: how many counted of how many.

        Raises
        ------
        UsageError
            When the splitter was made without loss and optimizer, or the batch cannot be cut.
        DeviceLostError
            When a device is lost and the step is given up; no weight has changed.
        PartError
            When a part, the loss or the optimizer raises; no weight has changed.
        NotSavedError
            When the step is done and counts, and the save behind it fails; the error's `loss` is that of the step.
        """
        arguments = x if isinstance(x, tuple) else (x,)
        targets = y if isinstance(y, tuple) else (y,)
        batch = batches.Batch((arguments, targets), {})
        if not batch.rows:
            raise UsageError("the batch has no row to train with: leave empty batches out")
        self._comparison.stop()  # the parts are about to have other weights than the model
        return self._thread.run(lambda: self._engine.train_step(batch, self.chunks(batch.rows)))

    def chunks(self, rows: int) -> list[Rows]:
        """Return the chunks that a batch of so many rows is cut into: the first row of each, and the one after it."""
        if self._options.chunk_rows is not None:
            return batches.plan_chunks(rows, math.ceil(rows / self._options.chunk_rows), 1)
        parts = len(self.parts)
        return batches.plan_chunks(rows, self.num_devices if parts == 1 else _CHUNKS_PER_PART * parts)

    @property
    def directory(self) -> str:
        """The directory of the parts' weights."""
        return self._store.directory

    @property
    def step(self) -> int:
        """Number of trained steps, those before a resume included: go on with the batch behind them."""
        trainer = self._engine.trainer
        return self._store.step if trainer is None else trainer.step

    def save(self) -> str:
        """Save the weights, the state of the optimizers and the step number as slices; return their directory.

        They are those behind the last finished step, in the formats of ``recover-ckpt``. The slices of the save before
        stay. A splitter that does not train has saved its weights when it was made.

        Raises
        ------
        UsageError
            When the splitter was made without a directory, or is closed.
        NotSavedError
            When they cannot be written; the slices of the save before are whole then.
        DeviceLostError
            When a device is lost and nothing takes its place.
        """
        if self._options.directory is None:
            raise UsageError("the directory of this splitter is temporary: make one with directory=... to save")
        self._thread.run(self._engine.save)
        return self.directory

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
        return self._thread.run(self._engine.read_weights)

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
            set_value(parameter, found[name])

    @property
    def processes(self) -> list[int | None]:
        """For each device the id of its process; None while it has none on this host."""
        return self._devices.processes

    @property
    def last_report(self) -> ForwardReport | None:
        """The report of the last forward."""
        return self._history.last_report

    @property
    def events(self) -> tuple[Event, ...]:
        """The events since the splitter was made, oldest first."""
        return tuple(self._history.events)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The chunks that each device computed, with their times."""
        return self._history.happened[0]

    @property
    def spares(self) -> int:
        """Number of idle processes that can take over."""
        return len(self._devices.pool.spares)

    @property
    def now(self) -> float:
        """Seconds since the splitter was made: the clock of events and spans."""
        return self._history.now

    def report(self) -> None:
        """Print the work of each device, the totals and the last events."""
        sys.stdout.write(self.summary() + "\n")

    def summary(self) -> str:
        """Return the text that `report` prints."""
        return summary(self._devices.state.devices, self.processes, *self._history.happened)

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
        happened = self._history.happened
        write_timeline(path, *happened)
        write_trace(path, *happened)

    def close(self) -> None:
        """End all processes, and remove a temporary directory."""
        self._thread.close()

    def _run_part(self, call: Whole, parts: range) -> Any:
        output, _ = self._thread.run(lambda: self._engine.forward(call, [(0, call.rows)], parts))
        return without_gradients(output, call.tensors, self._weights.values())
