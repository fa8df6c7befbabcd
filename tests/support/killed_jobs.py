"""Jobs of two ranks that are killed at random and started again; started as a script, print what came of them as JSON.

Each process is forked after MindSpore is imported and before it computes anything, so that a start takes a second or
two.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

from ms_recover import api
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step
from tests.support.ports import free_port

RANKS, STEPS, EPOCHS, BATCH = 2, 6, 4, 4
HELD = 4
LIMIT = 90
"""Seconds for one start of a job."""
DONE = '"done"\n'
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, kw_only=True)
class Job:
    """How a job trains and saves."""

    mode: str
    format: str
    asynchronous: bool
    save_steps: int
    values: int = 3
    """The seed of its weights."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """Which ranks are struck how, behind a number of steps of this start; `wait` in seconds."""

    signal: int
    ranks: tuple[int, ...]
    steps: int
    wait: float


def worker(rank: int, root: Path, log: Path, job: Job, how: str, fails: tuple[int, ...], hold: Path | None) -> None:
    """Train one rank; where a step of `fails` ends on all ranks with an error, it tries again in the process."""
    import mindspore as ms
    import mindspore.dataset as ds
    from mindspore import nn
    from mindspore.communication import init
    from mindspore.train import Callback, Model

    from ms_recover.training import SliceCheckpoint, recover_train
    from tests.support.killed_parts import Network, Rows

    report = log.open("a", buffering=1)
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    ms.set_context(mode=ms.GRAPH_MODE if job.mode == "graph" else ms.PYNATIVE_MODE)
    init()
    with suppress(SystemError):  # the first operator of a process meets numpy 2, which MindSpore does not know
        ms.Tensor([1.0]) * 0.5
    remaining = list(fails)

    class Steps(Callback):
        def on_train_step_end(self, run_context):
            params = run_context.original_args()
            done = params.cur_step_num
            report.write(json.dumps([done, params.net_outputs.asnumpy().tobytes().hex()]) + "\n")
            time.sleep(0.01)
            while hold is not None and done >= HELD and hold.exists():
                time.sleep(0.01)
            if remaining and remaining[0] <= done:
                remaining.pop(0)
                raise ConnectionResetError("the link to the storage is gone")

    class Trained(nn.TrainOneStepCell):
        def __init__(self, network, optimizer):
            super().__init__(network, optimizer)
            self.gradients = ms.ops.GradOperation(get_by_list=True)
            self.reduce = nn.DistributedGradReducer(optimizer.parameters, True, RANKS)

        def construct(self, *inputs):
            loss = self.network(*inputs)
            grads = self.reduce(self.gradients(self.network, self.weights)(*inputs))
            return ms.ops.depend(loss, self.optimizer(grads))

    def parts():
        ms.set_seed(job.values)
        ds.config.set_seed(11)
        network = Network(64)
        if job.values != 3:
            network.last.bias.set_data(network.last.bias + job.values)
        cell = nn.WithLossCell(network, nn.MSELoss())
        model = Model(Trained(cell, nn.Adam(network.trainable_params(), 0.01)).set_train())
        rows = Rows(5, RANKS * BATCH * STEPS)
        data = ds.GeneratorDataset(rows, ["x", "y"], shuffle=True, num_shards=RANKS, shard_id=rank)
        save = SliceCheckpoint(
            f"{root}/ckpt_dir{{rank}}",
            "net",
            job.save_steps,
            3,
            group=[0, 1],
            async_save=job.asynchronous,
            format=job.format,
        )
        return model, data.batch(BATCH), [Steps(), save]

    built = parts()
    while True:
        model, data, callbacks = built
        try:
            if how == "train":
                model.train(EPOCHS, data, callbacks=callbacks, dataset_sink_mode=False)
            else:
                recover_train(model, data, root, EPOCHS, callbacks, fresh="start")
        except ConnectionResetError:
            how = "recover"
            if len(remaining) % 2:  # a new model, or the one that has run
                built = parts()
            continue
        break
    report.write(json.dumps("done") + "\n")
    others = [log.with_name(f"steps{other}.jsonl") for other in range(RANKS)]
    while not all(path.read_text().endswith(DONE) for path in others):  # one that is still exchanging needs this one
        time.sleep(0.01)


def fork(work: Callable[[], object], output: Path, environment: dict[str, str]) -> int:
    """Run `work` in a forked process; return its id."""
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        signal.alarm(LIMIT)
        os.environ.update(environment)
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for standard in (1, 2):
            os.dup2(descriptor, standard)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def scheduler() -> None:
    """Wait until the workers have ended."""
    from mindspore.communication import init

    init()


class Start:
    """One start of a job."""

    def __init__(
        self,
        top: Path,
        root: Path,
        job: Job,
        how: str = "recover",
        fails: tuple[int, ...] = (),
        hold: Path | None = None,
    ) -> None:
        top.mkdir(parents=True)
        port = free_port()
        common = {
            "MS_WORKER_NUM": str(RANKS),
            "RANK_SIZE": str(RANKS),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(port),
        }
        self.logs = [top / f"steps{rank}.jsonl" for rank in range(RANKS)]
        self.outputs = [top / f"output{rank}.txt" for rank in range(RANKS)]
        self.processes = [fork(scheduler, top / "scheduler.txt", {**common, "MS_ROLE": "MS_SCHED"})]
        for rank in range(RANKS):
            role = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank), "RANK_ID": str(rank)}
            self.processes.append(
                fork(
                    lambda rank=rank: worker(rank, root, self.logs[rank], job, how, fails, hold),
                    self.outputs[rank],
                    {**common, **role},
                )
            )
        self.status: dict[int, int] = {}

    def poll(self) -> bool:
        """Return whether all ranks have ended."""
        for process in self.processes[1:]:
            if process not in self.status and (found := os.waitpid(process, os.WNOHANG)) != (0, 0):
                self.status[process] = found[1]
        return len(self.status) == RANKS

    def trained(self, rank: int) -> int:
        """Return the number of steps that a rank has trained."""
        return self.logs[rank].read_text().count("\n") if self.logs[rank].exists() else 0

    def strike(self, kill: Kill) -> None:
        """Wait for the moment and strike; then all ranks are ended, as a launcher does."""
        while not self.poll() and any(self.trained(rank) < kill.steps for rank in kill.ranks):
            time.sleep(0.002)
        time.sleep(kill.wait)
        for rank in kill.ranks:
            if self.processes[1 + rank] not in self.status:
                os.kill(self.processes[1 + rank], kill.signal)
        until = time.monotonic() + 1
        while not self.poll() and time.monotonic() < until:
            time.sleep(0.01)
        self.end()

    def wait(self) -> bool:
        """Wait for the end; return whether all ranks are done."""
        until = time.monotonic() + LIMIT
        while not self.poll() and time.monotonic() < until:
            time.sleep(0.01)
        self.end()
        return all(path.exists() and path.read_text().endswith(DONE) for path in self.logs)

    def end(self) -> None:
        """End what still runs."""
        for process in self.processes:
            if process not in self.status:
                os.kill(process, signal.SIGKILL)
                self.status[process] = os.waitpid(process, 0)[1]

    def losses(self) -> list[list[tuple[int, str]]]:
        """Return the losses of each rank, in the order in which they were trained."""
        found = []
        for path in self.logs:
            lines = path.read_text().splitlines() if path.exists() else []
            records = [json.loads(line) for line in lines if line.endswith(("]", '"'))]
            found.append([tuple(record) for record in records if record != "done"])
        return found

    def said(self) -> str:
        """Return what the ranks wrote to their outputs."""
        return "\n".join(path.read_text(errors="replace") for path in self.outputs if path.exists())


def committed(root: Path) -> tuple[int, int]:
    """Return the newest step, counted from the first, that both ranks have committed, and that any has; 0 for none."""
    found = []
    for rank in range(RANKS):
        names = [path for path in root.glob(f"ckpt_dir{rank}/*{MANIFEST_SUFFIX}") if ".superseded" not in path.name]
        steps = [read_manifest(path).step for path in names]
        found.append({(step.epoch - 1) * STEPS + step.step for step in steps})
    return max(set.intersection(*found), default=0), max(set.union(*found), default=0)


def draw_job(draw: random.Random) -> Job:
    """Return a job."""
    return Job(
        mode=draw.choice(("graph", "pynative")),
        format=draw.choice(("ckpt", "safetensors")),
        asynchronous=draw.random() < 0.5,
        save_steps=draw.choice((1, 1, 2, 3)),
    )


def draw_kill(draw: random.Random) -> Kill:
    """Return a kill."""
    ranks = draw.choice(((0,), (1,), (0, 1)))
    return Kill(signal=draw.choice(SIGNALS), ranks=ranks, steps=draw.randint(1, 8), wait=draw.random() * 0.04)


class Whole:
    """Undisturbed trainings: the loss of each rank and step, by mode."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._losses: dict[str, list[dict[int, str]]] = {}

    def __getitem__(self, job: Job) -> list[dict[int, str]]:
        if job.mode not in self._losses:
            start = Start(self._top / f"whole-{job.mode}", self._top / f"tree-{job.mode}", job, "train")
            assert start.wait(), start.said()[-3000:]
            self._losses[job.mode] = [dict(losses) for losses in start.losses()]
        return self._losses[job.mode]


def check_start(start: Start, whole: list[dict[int, str]], before: tuple[int, int]) -> str | None:
    """Return what is wrong with a start of a job, which found these steps committed: by all ranks, and by any."""
    for rank, losses in enumerate(start.losses()):
        for step, loss in losses:
            if whole[rank][step] != loss:
                return f"rank {rank}: step {step} is not that of the undisturbed training"
        steps = [step for step, _ in losses]
        if steps and not before[0] < steps[0] <= before[1] + 1:
            return f"rank {rank} began with step {steps[0]}, although steps {before} were committed"
        if any(after > step + 1 for step, after in pairwise(steps)):
            return f"rank {rank}: steps were left out: {steps}"
    return None


def kill_jobs(top: Path, whole: Whole, kills: int, seed: int) -> dict:
    """Kill jobs until they are done, and begin another one, until there were as many kills."""
    draw = random.Random(seed)
    counts = {"kills": 0, "jobs": 0, "done": 0, "retries": 0, "signals": dict.fromkeys(map(int, SIGNALS), 0)}
    wrong = []
    while counts["kills"] < kills:
        job = draw_job(draw)
        folder = top / f"job{counts['jobs']}"
        counts["jobs"] += 1
        for number in range(100):
            before = committed(folder / "tree")
            fails = tuple(sorted(draw.sample(range(1, STEPS * EPOCHS), draw.choice((0, 0, 1, 2)))))
            start = Start(folder / f"start{number}", folder / "tree", job, fails=fails)
            struck = counts["kills"] < kills and number < 6
            if struck:
                kill = draw_kill(draw)
                start.strike(kill)
                counts["kills"] += 1
                counts["signals"][int(kill.signal)] += 1
                done = all('"done"' in path.read_text() for path in start.logs if path.exists())
            else:
                done = start.wait()
            counts["retries"] += start.said().count("the link to the storage is gone")
            problem = check_start(start, whole[job], before)
            if not struck and not done:
                problem = problem or f"it did not end: {start.said()[-3000:]}"
            if problem:
                wrong.append({"job": str(job), "start": number, "fails": fails, "problem": problem})
                break
            if not struck:
                counts["done"] += 1
                checks = api.verify(api.scan(folder / "tree")).checks
                unsound = [str(check) for check in checks if check.status != "sound"]
                newest = max(check.step for check in checks)
                if unsound or newest != Step(EPOCHS, STEPS):
                    wrong.append({"job": str(job), "problem": f"newest {newest}, {unsound}"})
                break
    return {**counts, "wrong": wrong}


def abandon(top: Path, whole: Whole, seed: int) -> dict:
    """Abandon a run, start from scratch in its folder, and kill that one earlier: which one is resumed?"""
    job = draw_job(random.Random(seed))
    root = top / "tree"
    first = Start(top / "abandoned", root, replace(job, values=5), "train")
    first.strike(Kill(signal=signal.SIGKILL, ranks=(0, 1), steps=15, wait=0))
    left = committed(root)
    second = Start(top / "again", root, job, "train")
    second.strike(Kill(signal=signal.SIGTERM, ranks=(0,), steps=8, wait=0))
    third = Start(top / "resumed", root, job)
    done = third.wait()
    begun = [losses[0][0] for losses in third.losses() if losses]
    return {
        "left": left,
        "done": done,
        "begun": begun,
        "problem": check_start(second, whole[job], (0, 0)) or check_start(third, whole[job], (1, 9)),
        "said": "" if done else third.said()[-3000:],
    }


def share_folder(top: Path, whole: Whole, seed: int) -> dict:
    """Start a job in the folder of one that runs: it ends with the reason, and the other one is not harmed."""
    job = replace(draw_job(random.Random(seed)), save_steps=1)
    root = top / "tree"
    hold = top / "hold"
    hold.touch()
    first = Start(top / "first", root, job, "train", hold=hold)
    while min(map(first.trained, range(RANKS))) < HELD and not first.poll():
        time.sleep(0.01)
    second = Start(top / "second", root, replace(job, values=5))
    second_done, still = second.wait(), not first.poll()
    hold.unlink()
    done = first.wait()
    return {
        "done": done,
        "second": second_done,
        "still": still,
        "trained": [len(losses) for losses in second.losses()],
        "said": second.said()[-4000:],
        "problem": check_start(first, whole[job], (0, 0)),
    }


def main(top: Path, what: str, kills: int, seed: int) -> None:
    """Print what came of the jobs."""
    import mindspore as ms

    ms.set_device("CPU")
    import tests.support.killed_parts  # noqa: F401 (once, before the forks)

    whole = Whole(top)
    works = {
        "kill": lambda folder: kill_jobs(folder, whole, kills, seed),
        "abandon": lambda folder: abandon(folder, whole, seed),
        "share": lambda folder: share_folder(folder, whole, seed),
    }
    found = {}
    for name in what.split(","):
        (top / name).mkdir()
        found[name] = works[name](top / name)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
