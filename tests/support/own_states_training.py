"""Two data-parallel ranks with seeds, shards and draws of their own, resumed after losses of rank 1; run by msrun.

``python -m tests.support.own_states_training DIRECTORY`` writes what each rank saw to ``DIRECTORY/seen{rank}.json``.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from contextlib import redirect_stderr, suppress
from io import StringIO
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import ops
from mindspore.communication import init
from mindspore.train import Callback

from ms_recover import api
from ms_recover.errors import MsRecoverError
from ms_recover.training import recover_train
from ms_recover.training.this_process import current_job
from tests.support.trainings import EPOCHS, Losses, StoppedError, checkpoint, make_model, rows

CUT = 13
NEWEST, BEFORE = "test-2_4.ckpt", "test-1_8.ckpt"


class Draws(Callback):
    """Counts steps, its state; where ranks have states of their own, it draws from numpy's generator at each."""

    def __init__(self, own):
        super().__init__()
        self.drawn = {}
        self._own = own
        self._count = 0

    def on_train_step_end(self, run_context):
        self._count += 1
        step = run_context.original_args().cur_step_num
        self.drawn[step] = [self._count, float(np.random.random()).hex() if self._own else ""]

    def state_dict(self):
        return {"count": self._count}

    def load_state_dict(self, state):
        self._count = state["count"]


class Heard(logging.Handler):
    """Warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def lose(folder, *names):
    """Remove files of a rank; a name stands for the slice, its manifest and its state where it ends with ``*``."""
    for name in names:
        for path in folder.glob(name):
            path.unlink()


def flip(folder):
    """Change a byte of a slice."""
    path = folder / NEWEST
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.chmod(0o600)
    path.write_bytes(bytes(data))


def bring_back(folder):
    """Have the newest slice brought back, as an operator does before the job is started again."""
    lose(folder, NEWEST + "*")
    report = api.apply(api.plan(api.scan(folder.parent)))
    assert report.exit_code == 0, report


LOSSES = {
    "folder": shutil.rmtree,
    "newest": lambda folder: lose(folder, NEWEST + "*"),
    "slice": lambda folder: lose(folder, NEWEST),
    "slice and manifest": lambda folder: lose(folder, NEWEST, NEWEST + ".manifest.json"),
    "flipped": flip,
    "state": lambda folder: lose(folder, NEWEST + ".state"),
    "brought back": bring_back,
    "nothing": lambda folder: None,
}

CASES = {
    # name: how ranks differ (states, what datasets draw, seeds), what rank 1 loses, arguments, shard of rank 1
    "alike, folder": (False, "folder", {}, 1),
    "alike, state": (False, "state", {}, 1),
    **{f"own, {what}": (True, what, {}, 1) for what in LOSSES},
    "noise, folder": ("noise", "folder", {}, 1),
    "noise, nothing": ("noise", "nothing", {}, 1),
    "own, newest, peer": (True, "newest", {"rank_local": "peer"}, 1),
    "alike, other shard": (False, "nothing", {}, 0),
    "alike, other shard allowed": (False, "nothing", {"allow_dataset_change": True}, 0),
    "alike, folder and other shard": (False, "folder", {}, 0),
}


def begin():
    """Join the ranks."""
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    with suppress(SystemError):  # of the first operator with a shape, where MindSpore was built for an older numpy
        ops.reshape(ms.Tensor([1.0]), (1, 1))
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)


def main(directory, *chosen):
    begin()
    job, top, seen = current_job(), Path(directory), {}
    heard = Heard()
    logging.getLogger("ms_recover").addHandler(heard)

    def dataset(shard, own):
        ds.config.set_seed(11 + job.rank)  # each rank shuffles in an order of its own
        ds.config.set_fast_recovery(own != "noise")
        parts = {"num_shards": job.size, "shard_id": shard}
        data = ds.GeneratorDataset(rows(64, 5), ["x", "y"], shuffle=False, **parts).shuffle(16)
        if own == "noise":
            data = data.map(lambda x: x + np.float32(np.random.normal()), ["x"], num_parallel_workers=1)
        return data.batch(4)

    def draws(own):
        np.random.seed(100 + job.rank)
        return Draws(own is True)

    def hexes(losses):
        return {step: loss.hex() for step, loss in losses.seen.items()}

    for own in (False, True, "noise"):
        losses, drawn = Losses(), draws(own)
        make_model().train(EPOCHS, dataset(job.rank, own), callbacks=[losses, drawn])
        seen[f"whole {own}"] = {"losses": hexes(losses), "drawn": drawn.drawn}
        drawn = draws(own)
        root = top / f"tree {own}"
        with suppress(StoppedError):
            callbacks = [drawn, checkpoint(root, 4), Losses(stop_at=CUT)]
            make_model().train(EPOCHS, dataset(job.rank, own), callbacks=callbacks)
        job.gather([0])

    heard.texts = []
    for name, (own, what, options, shard) in CASES.items():
        if chosen and name not in chosen:
            continue
        root = top / name
        if job.rank == 0:
            shutil.copytree(top / f"tree {own}", root)
            LOSSES[what](root / "ckpt_dir1")
        job.gather([0])
        np.random.seed(900 + job.rank)
        losses, drawn, began, failure, printed = Losses(), Draws(own is True), time.monotonic(), "", StringIO()
        with redirect_stderr(printed):
            try:
                data = dataset(job.rank if job.rank == 0 else shard, own)
                callbacks = [losses, drawn, checkpoint(root, 4)]
                recover_train(make_model(), data, root, EPOCHS, callbacks=callbacks, **options)
            except MsRecoverError as error:
                failure = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        job.gather([0])
        said, heard.texts = heard.texts, []
        line = [text for text in printed.getvalue().splitlines() if text.startswith("ms_recover: ")]
        seen[name] = {"losses": hexes(losses), "drawn": drawn.drawn, "failure": failure, "seconds": seconds}
        seen[name] |= {"said": said, "line": line}
    (top / f"seen{job.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
