"""A small training with MindSpore that crashes where it is told to, and the losses of its steps to the last bit."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

STEPS = 8
"""Of an epoch."""


class Rows:
    def __init__(self, count):
        rng = np.random.default_rng(5)
        self._x, self._y = rng.random((count, 3), np.float32), rng.random((count, 2), np.float32)

    def __len__(self):
        return len(self._x)

    def __getitem__(self, index):
        return self._x[index], self._y[index]


def make_dataset(batch=4, rows=4 * STEPS):
    """Return batches of samples, shuffled alike in every run."""
    ds.config.set_seed(11)
    return ds.GeneratorDataset(Rows(rows), ["x", "y"], shuffle=True).batch(batch, drop_remainder=True)


def make_model(rate=0.01):
    """Return a model with the same first weights in every run; its optimizer has a state."""
    rng = np.random.default_rng(3)
    weights = [ms.Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((16, 3), (2, 16))]
    dense = nn.SequentialCell(nn.Dense(3, 16, weights[0], "zeros"), nn.Tanh(), nn.Dense(16, 2, weights[1], "zeros"))
    return Model(dense, nn.MSELoss(), nn.Adam(dense.trainable_params(), rate))


class CrashError(Exception):
    """Of a training that was told to crash."""


class Losses(Callback):
    """Losses by (epoch, step), to the last bit; behind the step `crash` of the training, and its save, it crashes."""

    def __init__(self, crash=None):
        super().__init__()
        self.seen = {}
        self._crash = crash

    def on_train_step_begin(self, run_context):
        if self._crash is not None and run_context.original_args().cur_step_num == self._crash + 1:
            raise CrashError

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        step = (params.cur_step_num - 1) % params.batch_num + 1
        self.seen[params.cur_epoch_num, step] = params.net_outputs.asnumpy().tobytes()


def behind(losses, epoch, step):
    """Return the losses of the steps behind one."""
    return {place: loss for place, loss in losses.items() if place > (epoch, step)}
