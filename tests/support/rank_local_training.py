"""Data-parallel ranks with their own memory bank and batch statistics: train, lose slices, resume; run by msrun.

``python -m tests.support.rank_local_training DIRECTORY MODE FORMAT ASYNC`` writes what each rank saw to
``DIRECTORY/seen{rank}.json``.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.communication import init
from mindspore.train import Callback, Model

from ms_recover.errors import MsRecoverError
from ms_recover.training import SliceCheckpoint, recover_train
from ms_recover.training.this_process import current_job

STEPS, EPOCHS, EVERY = 4, 2, 3


class Rows:
    """Samples that differ between ranks."""

    def __init__(self, rank):
        rng = np.random.default_rng(5 + rank)
        self._x, self._y = rng.random((4 * STEPS, 3), np.float32), rng.random((4 * STEPS, 2), np.float32)

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        return self._x[index], self._y[index]


class Remembering(nn.Cell):
    """Adds what it remembers of the features to the prediction."""

    def __init__(self):
        super().__init__()
        rng = np.random.default_rng(3)
        weights = [ms.Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((8, 3), (2, 8))]
        self.first = nn.Dense(3, 8, weights[0], "zeros")
        self.norm = nn.BatchNorm1d(8)
        self.last = nn.Dense(8, 2, weights[1], "zeros")
        self.bank = ms.Parameter(ms.Tensor(np.zeros((8,), np.float32)), name="bank", requires_grad=False)

    def construct(self, x):
        features = self.norm(self.first(x))
        remembered = 0.5 * self.bank + 0.5 * ops.stop_gradient(features).mean(0)
        self.bank = remembered
        return self.last(features + remembered)


def make_model():
    network = Remembering()
    return Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))


class Losses(Callback):
    """Losses to the last bit, by cumulative step; a step at which the training fails."""

    def __init__(self, fail_at=None):
        super().__init__()
        self.seen, self.bank, self._fail_at = {}, None, fail_at

    def on_train_begin(self, run_context):
        network = run_context.original_args().train_network
        (self.bank,) = [one.asnumpy().tobytes().hex() for one in network.get_parameters() if one.name == "bank"]

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.seen[params.cur_step_num] = params.net_outputs.asnumpy().tobytes().hex()
        if params.cur_step_num == self._fail_at:
            raise RuntimeError("power failure")


class Warnings(logging.Handler):
    """Messages of a scenario."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


def main(directory, mode, form, asynchronous):
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE, device_target="CPU")
    with suppress(SystemError):  # of the first operator with a shape, where MindSpore was built for an older numpy
        ops.reshape(ms.Tensor([1.0]), (1, 1))
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    ds.config.set_seed(11)
    job, root, seen = current_job(), Path(directory), {}
    heard = Warnings()
    logging.getLogger("ms_recover").addHandler(heard)

    def dataset():
        return ds.GeneratorDataset(Rows(job.rank), ["x", "y"], shuffle=False).batch(4)

    def saving(name):
        return SliceCheckpoint(
            f"{root}/{name}/ckpt_dir{{rank}}", "test", EVERY, format=form, async_save=asynchronous == "async"
        )

    def values(model):
        return {one.name: one.asnumpy().tobytes().hex() for one in model.train_network.get_parameters()}

    def note(name, model, losses, **more):
        said, heard.texts = heard.texts, []
        seen[name] = {"losses": losses.seen, "bank": losses.bank, "values": values(model), "said": said, **more}

    def lose(name, *lost):
        """Copy the slices and remove some of rank 1, and the last of both, with which nothing is left to train."""
        folder = root / name / f"ckpt_dir{job.rank}"
        shutil.copytree(root / "whole" / f"ckpt_dir{job.rank}", folder)
        for pattern in ("*-2_4.*", *(lost if job.rank == 1 else ())):
            for path in folder.glob(pattern):
                path.unlink()
        job.gather([0])

    def resume(name, model=None, **options):
        model, losses, failure = model or make_model(), Losses(), ""
        step = None
        try:
            step = recover_train(
                model, dataset(), root / name, EPOCHS, callbacks=[losses, saving(name)], **options
            ).step
        except MsRecoverError as error:
            failure = f"{type(error).__name__}: {error}"
        note(name, model, losses, step=str(step), failure=failure)

    model, losses = make_model(), Losses()
    model.train(EPOCHS, dataset(), callbacks=[losses, saving("whole")])
    note("whole", model, losses)
    lose("own")
    resume("own")
    lose("older", "*-2_2.*")
    resume("older")
    for choice in ("refuse", "peer", "initial"):
        lose(choice, "*")
        resume(choice, rank_local=choice)

    model, losses = make_model(), Losses(fail_at=7)
    try:
        model.train(EPOCHS, dataset(), callbacks=[losses, saving("again")])
    except RuntimeError:
        logging.getLogger(__name__).info("the training failed at step 7, as planned")
    resume("again", model)
    (root / f"seen{job.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
