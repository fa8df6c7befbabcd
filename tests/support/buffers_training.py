"""Data-parallel ranks whose networks have buffers, one alike on all and one of each rank's own; run by msrun.

``python -m tests.support.buffers_training DIRECTORY`` writes what each rank saw to ``DIRECTORY/seen{rank}.json``.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.communication import init
from mindspore.train import Callback, Model

from ms_recover.errors import MsRecoverError
from ms_recover.formats.manifest import read_manifest
from ms_recover.training import SliceCheckpoint, recover_train
from ms_recover.training.this_process import current_job
from tests.support.trainings import Losses, files, make_network, rows

STEPS, EPOCHS, EVERY = 4, 2, 3


class Buffered(nn.Cell):
    """`turns` counts the steps, and is alike on all ranks; `mean` follows the samples of a rank, and is its own."""

    def __init__(self):
        super().__init__()
        self.net = make_network()
        self.register_buffer("turns", ms.Tensor(np.zeros(1, np.float32)))
        self.register_buffer("mean", ms.Tensor(np.zeros(3, np.float32)))

    def construct(self, x):
        ops.assign(self.turns, self.turns + 1)
        ops.assign(self.mean, 0.5 * self.mean + x.mean(axis=0))
        return self.net(x) + 0.01 * self.turns


def make_model():
    network = Buffered()
    return Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))


class OnRank1(Callback):
    """Writes weights as training begins, on rank 1 alone."""

    stateless = True

    def on_train_begin(self, run_context):
        if current_job().rank == 1:
            (weight,) = (
                one for one in run_context.original_args().network.get_parameters() if one.name == "net.0.bias"
            )
            ops.assign(weight, ms.Tensor(np.full(weight.shape, 0.5, np.float32)))


class Warnings(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


def main(directory):
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    with suppress(SystemError):  # of the first operator, where MindSpore was built for an older numpy
        ops.reshape(ms.Tensor([1.0]), (1, 1)) * 0.5
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    ds.config.set_seed(11)
    job, root, seen, heard = current_job(), Path(directory), {}, Warnings()
    logging.getLogger("ms_recover").addHandler(heard)

    def dataset():
        return ds.GeneratorDataset(rows(4 * STEPS, 5 + job.rank), ["x", "y"], shuffle=False).batch(4)

    def saving(name):
        return SliceCheckpoint(f"{root}/{name}/ckpt_dir{{rank}}", "test", EVERY, keep=20)

    def note(name, model, losses, **more):
        said, heard.said = heard.said, []
        buffers = {
            one: getattr(model.train_network.network._backbone, one).asnumpy().tolist() for one in ("turns", "mean")
        }
        found = {step: loss.hex() for step, loss in losses.seen.items()}
        seen[name] = {"losses": found, "buffers": buffers, "said": said, **more}

    def resume(name, lost, *callbacks):
        """Copy the slices but the last ones, lose what rank 1 is to lose, and resume."""
        folder = root / name / f"ckpt_dir{job.rank}"
        shutil.copytree(root / "whole" / f"ckpt_dir{job.rank}", folder)
        for pattern in ("*-2_4.*", *((lost,) if job.rank == 1 and lost else ())):
            for path in folder.glob(pattern):
                path.unlink()
        job.gather([0])
        before, model, losses, failure = files(folder), make_model(), Losses(), ""
        job.gather([0])
        began = time.monotonic()
        try:
            recover_train(model, dataset(), root / name, EPOCHS, [losses, *callbacks, saving(name)])
        except MsRecoverError as error:
            failure = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        note(name, model, losses, failure=failure, same=files(folder) == before, seconds=seconds)

    model, losses = make_model(), Losses()
    model.train(EPOCHS, dataset(), callbacks=[losses, saving("whole")])
    note("whole", model, losses)
    found = sorted((root / "whole" / f"ckpt_dir{job.rank}").glob("*.manifest.json"))
    seen["own"] = [read_manifest(path).training.own_buffers for path in found]
    resume("kept", None)
    resume("state", "*.state")
    resume("slice", "*")
    resume("refused", None, OnRank1())
    (root / f"seen{job.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
