"""Jobs that go on with other ranks, in real processes; as a script it prints what came of some as JSON.

Each process is forked after MindSpore is imported, see `tests.support.killed_jobs`.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.killed_jobs import fork, scheduler
from tests.support.ports import free_port
from tests.support.sample import SAMPLE

LIMIT = 120
BATCH, STEPS, WIDTH = 16, 4, 8


class World:
    """One start of a job on some ranks: what each answered, or the error that it ended with."""

    def __init__(self, top: Path, ranks: int, work: Callable[[int], Any]) -> None:
        top.mkdir(parents=True)
        port = free_port()
        common = {
            "MS_WORKER_NUM": str(ranks),
            "RANK_SIZE": str(ranks),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(port),
            "GLOG_v": "4",
        }
        answers = [top / f"answer{rank}.json" for rank in range(ranks)]
        outputs = [top / f"output{rank}.txt" for rank in range(ranks)]

        def run(rank: int) -> None:
            from mindspore.communication import init

            from ms_recover.errors import MsRecoverError

            logging.basicConfig(stream=sys.stderr, level=logging.INFO)
            init()
            try:
                found = work(rank)
            except MsRecoverError as error:
                found = {"error": f"{type(error).__name__}: {error}"}
            answers[rank].with_suffix(".tmp").write_text(json.dumps(found))
            answers[rank].with_suffix(".tmp").rename(answers[rank])
            while not all(path.exists() for path in answers):  # one that is still exchanging needs this one
                time.sleep(0.01)

        processes = [fork(scheduler, top / "scheduler.txt", {**common, "MS_ROLE": "MS_SCHED"})]
        for rank in range(ranks):
            role = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank), "RANK_ID": str(rank)}
            processes.append(fork(lambda rank=rank: run(rank), outputs[rank], {**common, **role}))
        until = time.monotonic() + LIMIT
        while time.monotonic() < until and not all(path.exists() for path in answers):
            time.sleep(0.01)
        time.sleep(0.05)
        for process in processes:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
        self.said = "\n".join(path.read_text(errors="replace") for path in outputs)
        self.answers = [json.loads(path.read_text()) if path.exists() else None for path in answers]
        assert None not in self.answers, self.said[-6000:]


class Rows:
    """Samples, the same in every process."""

    def __init__(self) -> None:
        import numpy as np

        rng = np.random.default_rng(5)
        self._x = rng.standard_normal((BATCH * STEPS, WIDTH)).astype(np.float32)
        self._y = rng.standard_normal((BATCH * STEPS, WIDTH)).astype(np.float32)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> Any:
        return self._x[index], self._y[index]


def network_of(layout: Any) -> Any:
    """Return two layers, the first split by its outputs, the second by its inputs, and their loss."""
    import numpy as np
    from mindspore import nn
    from parallel import ColumnLinear, RowLinear

    rng = np.random.default_rng(3)

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.first = ColumnLinear(WIDTH, 4 * WIDTH, layout, rng)
            self.last = RowLinear(4 * WIDTH, WIDTH, layout, rng)
            self.loss = nn.MSELoss()

        def construct(self, x: Any, y: Any) -> Any:
            return self.loss(self.last(self.first(x)), y)

    return Net()


def train(
    root: Path,
    rank: int,
    ranks: int,
    mp: int,
    epochs: int,
    *,
    how: str = "recover",
    micro: int = 1,
    batch: int = BATCH,
    shards: int = 0,
    crash: int | None = None,
    before: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Train one rank; answer its losses to the last bit, by step, its parameters behind the load, and the resume."""
    import mindspore as ms
    import mindspore.dataset as ds
    from layout import Layout
    from mindspore import nn
    from mindspore.train import Callback, Model
    from parallel import ExplicitTrainStep

    from ms_recover.training import SliceCheckpoint, recover_train

    ms.set_context(mode=ms.GRAPH_MODE)
    layout = Layout(rank, ranks, mp, optimizer_shards=shards)
    layout.create_groups()
    network = network_of(layout)
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    model = Model(ExplicitTrainStep(network, optimizer, layout, micro))
    ds.config.set_seed(11)
    rows = Rows()
    data = ds.GeneratorDataset(rows, ["x", "y"], shuffle=True, num_shards=layout.dp, shard_id=rank // mp)
    data = data.batch(batch // layout.dp, drop_remainder=True)
    losses: dict[str, str] = {}
    loaded: dict[str, str] = {}

    class Steps(Callback):
        def on_train_begin(self, run_context: Any) -> None:
            for one in model.train_network.get_parameters():
                loaded[one.name] = one.asnumpy().tobytes().hex()
            if before is not None:
                raise KeyboardInterrupt

        def on_train_step_end(self, run_context: Any) -> None:
            params = run_context.original_args()
            losses[str(params.cur_step_num)] = params.net_outputs.asnumpy().tobytes().hex()
            if params.cur_step_num == crash:
                raise KeyboardInterrupt

    saver = SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", "net", 2, layouts=layout.layouts())
    callbacks, resumed = [saver, Steps()], None
    try:
        if how == "train":
            model.train(epochs, data, callbacks=callbacks, dataset_sink_mode=False)
        else:
            resumed = recover_train(model, data, root, epochs, callbacks, **options)
    except KeyboardInterrupt:
        pass
    return {
        "losses": losses,
        "loaded": loaded,
        "step": str(resumed.step) if resumed is not None else None,
        "from": resumed.resharded_from if resumed is not None else None,
        "accumulate": resumed.accumulate if resumed is not None else None,
    }


def worlds(top: Path) -> Callable[..., World]:
    """Return a function that starts `train` on ranks x mp, in a folder of its own for what ranks say."""
    count = [0]

    def start(root: Path, ranks: int, mp: int, epochs: int, each: Any = None, **options: Any) -> World:
        count[0] += 1
        given = lambda rank: {**options, **(each(rank) if each is not None else {})}  # noqa: E731
        work = lambda rank: train(root, rank, ranks, mp, epochs, **given(rank))  # noqa: E731
        return World(top / f"start{count[0]}", ranks, work)

    return start


def main(top: Path, *names: str) -> None:
    """Run scenarios by name."""
    import mindspore as ms

    sys.path.insert(0, str(SAMPLE))
    ms.set_device("CPU")
    import layout  # noqa: F401 (once, before the forks)
    import parallel  # noqa: F401

    from tests.support import resharded_scenarios

    found = {}
    for name in names:
        (top / name).mkdir()
        found[name] = getattr(resharded_scenarios, name)(top / name, worlds(top / name / "starts"))
    print(json.dumps(found))


def copy_tree(source: Path, target: Path, *without: int) -> Path:
    """Copy a tree without some ranks."""
    shutil.copytree(source, target)
    for rank in without:
        shutil.rmtree(target / f"ckpt_dir{rank}")
    return target


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
