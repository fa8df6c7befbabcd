"""Trainings that share one directory: each with a prefix, a learning rate and first weights of its own."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
import numpy as np
from mindspore import nn
from mindspore.train import Callback, Model

from ms_recover.file_names import BESIDE_SLICE, SUPERSEDED_SUFFIX
from ms_recover.training import SliceCheckpoint, recover_train
from tests.support.small_training import CrashError, make_dataset

EPOCHS = 2
RATES = {"lr_0.01": 0.01, "lr_0.5": 0.5, "lr_0": 0.1, "lr_0_1": 0.02, "lr_0.01_2": 0.05}
"""Prefixes that look like the numbers of each other's starts."""


class Trace(Callback):
    """Losses by step of the training, to the last bit; behind the step `crash` the training fails."""

    def __init__(self, crash: int | None = None) -> None:
        super().__init__()
        self.seen: dict[int, bytes] = {}
        self._crash = crash

    def state_dict(self) -> dict[str, int]:
        return {}

    def load_state_dict(self, state: dict[str, int]) -> None:
        assert state == {}

    def on_train_step_end(self, run_context) -> None:
        params = run_context.original_args()
        self.seen[params.cur_step_num] = params.net_outputs.asnumpy().tobytes()
        if params.cur_step_num == self._crash:
            raise CrashError


class Member:
    """One experiment of a sweep."""

    def __init__(self, prefix: str, keep: int = 2) -> None:
        self.prefix, self.keep = prefix, keep

    def model(self) -> Model:
        rng = np.random.default_rng(len(self.prefix))
        weights = [ms.Tensor(rng.standard_normal(shape).astype(np.float32)) for shape in ((16, 3), (2, 16))]
        dense = nn.SequentialCell(nn.Dense(3, 16, weights[0], "zeros"), nn.Tanh(), nn.Dense(16, 2, weights[1], "zeros"))
        return Model(dense, nn.MSELoss(), nn.Momentum(dense.trainable_params(), RATES[self.prefix], 0.9))

    def saver(self, root: Path) -> SliceCheckpoint:
        return SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", self.prefix, 3, self.keep)

    def alone(self) -> tuple[dict[int, bytes], dict[str, bytes]]:
        """Train undisturbed; return losses and final values."""
        trace, model = Trace(), self.model()
        model.train(EPOCHS, make_dataset(), callbacks=[trace], dataset_sink_mode=False)
        return trace.seen, values_of(model)

    def go_on(
        self, root: Path, crash: int | None = None, dataset: ds.Dataset | None = None, **options
    ) -> tuple[dict[int, bytes], dict[str, bytes] | None]:
        """Begin or resume; return the losses, and the final values where it came to its end."""
        trace, model, data = Trace(crash), self.model(), make_dataset() if dataset is None else dataset
        options = {"fresh": "start", **options}
        try:
            recover_train(model, data, root, EPOCHS, [trace, self.saver(root)], **options)
        except CrashError:
            return trace.seen, None
        return trace.seen, values_of(model)


def values_of(model: Model) -> dict[str, bytes]:
    """Return every parameter of the train network, to the last bit."""
    return {one.name: one.asnumpy().tobytes() for one in model.train_network.get_parameters()}


Owners = dict[tuple[str, int], str]
"""Who saved a slice, by its name and its time: a name may be another experiment's when it is free again."""


def slices_of_others(root: Path, prefix: str, owners: Owners) -> dict[str, tuple[bytes, int]]:
    """Return the files of other experiments' slices, by who saved them: contents and modification times."""
    found = {}
    for path in sorted(root.glob("ckpt_dir0/*.ckpt*")):
        name = next((path.name.removesuffix(end) for end in BESIDE_SLICE if path.name.endswith(end)), path.name)
        if owners.get(_identity(path.with_name(name))) not in (None, prefix):
            found[path.name] = (path.read_bytes(), path.stat().st_mtime_ns)
    return found


def note_owners(root: Path, prefix: str, owners: Owners) -> None:
    """Note who saved what is new in the directory."""
    for path in root.glob("ckpt_dir0/*.ckpt"):
        owners.setdefault(_identity(path), prefix)


def _identity(path: Path) -> tuple[str, int]:
    return path.name.split(SUPERSEDED_SUFFIX)[0], path.stat().st_mtime_ns if path.exists() else 0
