"""A small training with ``Model`` that is the same every time, and a record of its losses."""

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

from ms_recover.training import SliceCheckpoint

STEPS, EPOCHS = 8, 3


def rows(count, seed=5):
    rng = np.random.default_rng(seed)
    return [(rng.random(3, np.float32), rng.random(2, np.float32)) for _ in range(count)]


def make_dataset(steps=STEPS, seed=5):
    ds.config.set_seed(11)
    return ds.GeneratorDataset(rows(4 * steps, seed), ["x", "y"], shuffle=True).batch(4)


def make_network(seed=3):
    rng = np.random.default_rng(seed)
    weights = [ms.Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((16, 3), (2, 16))]
    return nn.SequentialCell(nn.Dense(3, 16, weights[0], "zeros"), nn.Tanh(), nn.Dense(16, 2, weights[1], "zeros"))


def make_model(seed=3, **options):
    network = make_network(seed)
    return Model(network, nn.MSELoss(), nn.Adam(network.trainable_params(), 0.01), **options)


class StoppedError(Exception):
    """What ends a training in the middle."""


class Losses(Callback):
    """Losses to the last bit by step of the whole training; may end it behind one."""

    def __init__(self, stop_at=None):
        super().__init__()
        self.seen = {}
        self._stop_at = stop_at

    def on_train_step_end(self, run_context):
        params = run_context.original_args()
        self.seen[params.cur_step_num] = params.net_outputs.asnumpy().tobytes()
        if params.cur_step_num == self._stop_at:
            raise StoppedError


def checkpoint(root, save_steps=3, keep=20, **options):
    return SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", "test", save_steps, keep, **options)


def values(model):
    """Return every parameter of the train network, to the last bit."""
    return {one.name: one.asnumpy().tobytes() for one in model.train_network.get_parameters()}


def files(root):
    """Return the contents of every file below a folder."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
