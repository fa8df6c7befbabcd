"""Three data-parallel ranks that save every step, one of which flips a bit of a weight; run by msrun.

``python -m tests.support.flipped_training DIRECTORY STEP RANK`` flips it behind that step, before it is saved.
"""

from __future__ import annotations

import sys
from contextlib import suppress

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn, ops
from mindspore.communication import get_rank, init
from mindspore.train import Callback, Model

from ms_recover.training import SliceCheckpoint

STEPS = 20


class Rows:
    """Samples that differ between ranks."""

    def __init__(self, rank):
        rng = np.random.default_rng(5 + rank)
        self._x, self._y = rng.random((4 * STEPS, 3), np.float32), rng.random((4 * STEPS, 2), np.float32)

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        return self._x[index], self._y[index]


class Flip(Callback):
    """Flips a bit of the first weight behind a step."""

    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        if params.cur_step_num == self._step:
            (weight,) = [one for one in params.train_network.get_parameters() if one.name == "0.weight"]
            values = weight.asnumpy().copy()
            values.view(np.int32)[0, 0] ^= 1 << 12
            weight.set_data(ms.Tensor(values))


def main(directory, step, rank):
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    with suppress(SystemError):  # of the first operator with a shape, where MindSpore was built for an older numpy
        ops.reshape(ms.Tensor([1.0]), (1, 1))
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    ms.set_seed(3)
    network = nn.SequentialCell(nn.Dense(3, 8), nn.ReLU(), nn.Dense(8, 2))
    model = Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01))
    data = ds.GeneratorDataset(Rows(get_rank()), ["x", "y"], shuffle=False).batch(4)
    flips = [Flip(int(step))] if get_rank() == int(rank) else []
    saving = SliceCheckpoint(f"{directory}/ckpt_dir{{rank}}", "test", 1, keep=STEPS)
    model.train(1, data, callbacks=[*flips, saving], dataset_sink_mode=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
