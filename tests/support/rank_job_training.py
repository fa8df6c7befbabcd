"""One rank of a random job, in a process of its own."""

from __future__ import annotations

import logging
import os
import random
import signal
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.communication import init
from mindspore.train import Callback, CheckpointConfig, Model, ModelCheckpoint

from ms_recover.errors import MsRecoverError
from ms_recover.training import SliceCheckpoint, SliceManifests, SliceSaver, recover_train, resume
from tests.support.faults import Faults
from tests.support.program_callbacks import Record, Stateless, digest_of, step_of
from tests.support.program_data import NAMES, Rows, digest_of_arrays
from tests.support.program_network import Network
from tests.support.program_training import Report, Warnings
from tests.support.random_rank_jobs import AT_RESUME, Crash, RankJob
from tests.support.rank_job_tree import newest_file, newest_run

PREFIX = "net"
WAIT = 60
"""Seconds that a rank which is done waits for the others, which may still need it."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of a job."""

    job: RankJob
    root: Path
    top: Path
    how: str
    """``alone``, which saves nothing, ``train``, or ``recover`` with ``fresh="start"``."""
    crash: Crash | None = None
    is_last: bool = False
    """Whether the change and the argument of one rank are in it."""
    other: bool = False
    """Whether it is another experiment, which begins with other weights."""

    def report(self, rank: int) -> Path:
        """Return the file with what a rank does."""
        return self.top / f"rank{rank}.jsonl"

    def over(self, rank: int) -> Path:
        """Return the file that says when a rank has ended, in seconds of the machine's monotonic clock."""
        return self.top / f"over{rank}"


class OwnSum(Callback):
    """Has a state that is made of the rank's own losses."""

    def __init__(self, write: Report | None) -> None:
        super().__init__()
        self.sum, self._write = 0.0, write

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        self.sum = self.sum * 0.5 + float(loss_of(params).asnumpy())
        if self._write is not None:
            self._write("own", step_of(params), self.sum.hex())

    def state_dict(self) -> dict:
        return {"sum": self.sum}

    def load_state_dict(self, state: dict) -> None:
        self.sum = float(state["sum"])


def loss_of(params) -> ms.Tensor:
    """Return the loss of a step."""
    return params.net_outputs[0] if isinstance(params.net_outputs, tuple) else params.net_outputs


class CrashOfRank(Stateless, Callback):
    """End this rank's training at a step."""

    def __init__(self, part: _Rank) -> None:
        super().__init__()
        self._part = part

    def on_train_step_end(self, run_context) -> None:
        self._part.strike(step_of(run_context.original_args()), run_context.request_stop)


def strike(crash: Crash, rank: int, stop: Callable[[], object], faults: Faults) -> None:
    """Do to a rank what the crash of the present step is."""
    kind, struck, _, call = crash
    if kind == "file" and rank == struck:
        faults.strike_at = faults.count + call
    elif kind == "stop":
        stop()
    elif kind == "raise" or (kind == "raise one" and rank == struck):
        raise ConnectionResetError("the node is gone")
    elif kind == "kill" and rank == struck:
        os.kill(os.getpid(), signal.SIGKILL)


def run_rank(launch: Launch, rank: int) -> None:
    """Train one rank; write down what it does, and how it ended."""
    write = Report(launch.report(rank))
    _set_clock(launch.job.skew[rank])
    handler = Warnings(write)
    logging.getLogger("ms_recover").addHandler(handler)
    ms.set_context(mode=ms.GRAPH_MODE if launch.job.base.mode == "graph" else ms.PYNATIVE_MODE)
    init()
    with suppress(SystemError):  # the first operator of a process meets numpy 2, which MindSpore does not know
        ms.Tensor([1.0]) * 0.5
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    faults, ended = Faults(str(launch.root), 0, "kill"), False
    try:
        with faults.installed() if launch.crash is not None and launch.crash[0] == "file" else nullcontext():
            write("final", _Rank(launch, rank, write, faults).train())
        ended = True
    except Exception as error:
        write("error", type(error).__name__, str(error), isinstance(error, MsRecoverError))
        write("trace", traceback.format_exc())
    launch.over(rank).write_text(str(time.monotonic()))
    until = time.monotonic() + WAIT
    while ended and time.monotonic() < until and not all(map(Path.exists, map(launch.over, range(_ranks(launch))))):
        time.sleep(0.01)


def _ranks(launch: Launch) -> int:
    return launch.job.base.ranks


def _set_clock(ahead: float) -> None:
    if ahead:
        seconds, nanoseconds = time.time, time.time_ns
        time.time = lambda: seconds() + ahead
        time.time_ns = lambda: nanoseconds() + int(ahead * 10**9)


class _Rank:
    """The parts of one rank."""

    def __init__(self, launch: Launch, rank: int, write: Report, faults: Faults) -> None:
        self._faults = faults
        self.launch, self.job, self.base, self.rank, self.write = launch, launch.job, launch.job.base, rank, write
        self.change = self.job.change if launch.is_last else "none"
        unlike = self.job.argument if rank == self.job.argument_of else "none"
        self.unlike = unlike if launch.is_last or unlike not in AT_RESUME else "none"
        own_seed = self.base.shuffle == "by rank" and self.change != "seed"
        seed = 11 + (rank if own_seed else 0) + (5 if self.change == "seed" and self.base.shuffle != "by rank" else 0)
        ms.set_seed(seed)
        ds.config.set_seed(seed)
        ds.config.set_fast_recovery(self.base.noise == "none")  # with it a resume cannot draw noise once more
        np.random.seed(70 + rank)
        random.seed(70 + rank)
        self.network = Network(self.base.network, 8)
        if launch.other:
            self.network.last.bias.set_data(self.network.last.bias + 1)
        self.batches, epochs = self.base.epochs_of(rank)
        self.epochs = epochs + (launch.other or self.unlike == "epochs")
        if self.change == "more epochs":
            self.epochs += 1

    def train(self) -> str:
        """Train to the end; return a digest of what is left."""
        if self.base.trainer == "loop":
            return self._loop()
        network = self.network
        model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))
        callbacks = [CrashOfRank(self), Record(self.write), *self._own(), *self._saving()]
        if self.launch.how != "recover":
            model.train(self.epochs, self._dataset(), callbacks=callbacks, dataset_sink_mode=False)
        else:
            prefix = {"prefix": PREFIX} if self.base.trainer == "manifests" else {}
            options = {"fresh": "start", **prefix, **self._options()}
            recover_train(model, self._dataset(), self.launch.root, self.epochs, callbacks, **options)
        return digest_of(model.train_network)

    def _own(self) -> list[Callback]:
        return [OwnSum(self.write)] if self.base.callback else []

    def _options(self) -> dict[str, object]:
        """Return what this rank alone gives to a resume."""
        if self.unlike == "variable":
            os.environ["MS_RECOVER_RUN"] = newest_run(self.launch.root, self.rank)
        if self.unlike == "run":
            return {"run": newest_run(self.launch.root, self.rank) or "none"}
        if self.unlike == "ckpt_file":
            return {"ckpt_file": newest_file(self.launch.root, self.rank)}
        return {"rank_local": "peer"} if self.unlike == "rank_local" else {}

    def _settings(self) -> tuple[str, str, int | None, int, bool, str]:
        """Return directory, prefix, steps between saves, slices to keep, whether they are asynchronous, and format."""
        job = self.job
        other_format = (self.change == "format") != (self.unlike == "format")
        return (
            f"{self.launch.root}/ckpt_dir{{rank}}",
            f"{PREFIX}_r" if self.unlike == "prefix" else PREFIX,
            (job.save_steps or 1) + 1 if self.unlike == "save_steps" else job.save_steps,
            job.keep + (self.unlike == "keep"),
            job.asynchronous != (self.unlike == "asynchronous" or self.change == "asynchronous"),
            job.format if not other_format else {"ckpt": "safetensors", "safetensors": "ckpt"}[job.format],
        )

    def _saving(self) -> list[Callback]:
        if self.launch.how == "alone" or self.unlike == "saver":
            return []
        directory, prefix, save_steps, keep, asynchronous, form = self._settings()
        if self.base.trainer == "model":
            return [SliceCheckpoint(directory, prefix, save_steps, keep, async_save=asynchronous, format=form)]
        directory = directory.format(rank=self.rank)
        config = CheckpointConfig(save_steps or self.batches, 0, keep, async_save=asynchronous, format=form)
        return [ModelCheckpoint(prefix, directory, config), SliceManifests()]

    def _dataset(self) -> ds.Dataset:
        base, ranks = self.base, self.base.ranks
        rows = Rows(base.seed + (1000 * self.rank if base.data == "own" else 0), base.batch * self.batches)
        options: dict[str, int] = {}
        if base.data == "shards":
            rows = Rows(base.seed, base.batch * base.batches * ranks)
            shard = {"shard 0": 0, "shards swapped": ranks - 1 - self.rank}.get(self.change, self.rank)
            shard = 0 if base.odd == "one shard" else shard
            options = {"num_shards": ranks, "shard_id": shard}
        data = ds.GeneratorDataset(rows, NAMES, shuffle=base.shuffle != "none", **options)
        if base.noise != "none":
            draw = np.random.normal if base.noise == "numpy" else random.random
            data = data.map(lambda x: x + np.float32(0.1 * draw()), ["x"], num_parallel_workers=1)
        return data.batch(base.batch)

    def _loop(self) -> str:
        network = self.network
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        loss_fn = nn.MSELoss()

        def forward(x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
            return loss_fn(network(x), y)

        gradients_of = ms.value_and_grad(forward, None, optimizer.parameters)
        reduce = nn.DistributedGradReducer(optimizer.parameters, True, self.base.ranks)
        data, parts, own, done, resumed = self._dataset(), [network, optimizer], 0.0, 0, None
        saver = self._saver(parts, data)
        if self.launch.how == "recover":
            options = {"prefix": PREFIX, **self._options()}
            resumed = resume(parts, str(self.launch.root), fresh="start", dataset=data, **options)
            done = resumed.step.step if resumed.step else 0
            own = float((resumed.extra or {}).get("own", 0.0))
        data.set_init_step(max(done - 1, 0))
        batches = data.create_tuple_iterator(num_epochs=self.epochs)
        batches = resumed.prove(batches) if resumed is not None else batches
        step, ended = done, threading.Event()
        for _ in range(done // self.batches, self.epochs):
            for x, y in batches:
                step += 1
                self.write("values", step, digest_of(network, optimizer))
                self.write("batch", step, digest_of_arrays([x.asnumpy(), y.asnumpy()]))
                loss, gradients = gradients_of(x, y)
                optimizer(reduce(gradients))
                own = own * 0.5 + float(loss.asnumpy())
                self.write("loss", step, loss.asnumpy().tobytes().hex())
                if self.base.callback:
                    self.write("own", step, own.hex())
                self.strike(step, ended.set)
                if ended.is_set():
                    break
                if saver is not None and step % (self._settings()[2] or self.base.batches) == 0:
                    saver.save(step, extra={"own": own} if self.base.callback else None, batch=(x, y))
            if ended.is_set():
                break
        if saver is not None:
            saver.flush()
        return digest_of(network, optimizer)

    def _saver(self, parts: list[nn.Cell], data: ds.Dataset) -> SliceSaver | None:
        if self.launch.how == "alone" or self.unlike == "saver":
            return None
        directory, prefix, _, keep, asynchronous, form = self._settings()
        return SliceSaver(parts, directory, prefix, keep, async_save=asynchronous, format=form, dataset=data)

    def strike(self, step: int, stop: Callable[[], object]) -> None:
        """Crash, where this is the step."""
        if self.launch.crash is not None and step == self.launch.crash[2]:
            strike(self.launch.crash, self.rank, stop, self._faults)
