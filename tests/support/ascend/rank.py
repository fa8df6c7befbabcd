"""One simulated rank: ``python -m tests.support.ascend.rank FOLDER JOB...``, with RANK_ID and RANK_SIZE set.

A job is a function of this module and a layout, as ``save:mp4``; what it found is written to FOLDER/LAYOUT as JSON.
"""

import json
import os
import shutil
import sys
from pathlib import Path

import mindspore as ms
from mindspore.communication import get_rank, init
from mindspore.graph.api import _cell_graph_executor
from mindspore.train import Callback, Model

from ms_recover import SliceCheckpoint, recover_train, resume
from ms_recover.errors import MsRecoverError
from ms_recover.formats.group_info import read_group_info
from ms_recover.model.steps import Step
from ms_recover.stores.digest import digest_of
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.snapshot import saved_parameters, values_of
from tests.support.ascend.network import STEPS, known_values, make_model, rows, whole_value
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree

FILES = ("group_info.pb", "strategy.ckpt")


class Fill(Callback):
    """Give the compiled network known values behind the first sink, which no device has computed."""

    def __init__(self):
        super().__init__()
        self.digests = {}

    def on_train_step_end(self, run_context):
        network = run_context.original_args().train_network
        values = known_values(network)
        for parameter in network.get_parameters():
            assert parameter.shape == values[parameter.name].shape, parameter.name
            parameter.set_data(values[parameter.name], parameter.sliced)
        self.digests = digests_of(network)


def digests_of(network):
    return {one.name: digest_of(values_of(one.data)) for one in saved_parameters(network)}


def checkpoint(folder, **options):
    return SliceCheckpoint(directory=f"{folder}/ckpt_dir{{rank}}", prefix="test", **options)


def own(folder):
    return folder / f"ckpt_dir{get_rank()}"


def model_of(folder, layout):
    return make_model(layout, str(own(folder) / "strategy.ckpt"))


def save(folder, layout):
    """Train one epoch and save its slice."""
    model, fill = model_of(folder, layout), Fill()
    model.train(1, rows(), callbacks=[fill, checkpoint(folder)], dataset_sink_mode=True)
    return {"digests": fill.digests}


def lose(folder, layout):
    """Remove everything that this rank has."""
    shutil.rmtree(own(folder))
    return {}


def recover(folder, layout):
    """Load before the build, which is to be refused, then resume and train another epoch."""
    model, saver = model_of(folder, layout), checkpoint(folder)
    try:
        resume(model.train_network, folder)
        early = None
    except MsRecoverError as error:
        early = str(error)
    try:
        resumed = recover_train(model, rows(), folder, 2, callbacks=[saver])
    except MsRecoverError as error:
        return {"early": early, "error": f"{type(error).__name__}: {error}"}
    return {
        "early": early,
        "step": str(resumed.step),
        "digests": digests_of(model.train_network),
    }


def fit(folder, layout):
    """Build training and evaluation, fit, evaluate and compile another network; return the files after each."""
    model = model_of(folder, layout)
    saver, seen = checkpoint(folder), {}

    def look(when):
        seen[when] = {name: (own(folder) / name).read_bytes().hex() for name in FILES}

    model.build(rows(), epoch=2)
    look("training")
    model.build(rows(), rows(), epoch=2)
    look("both")
    model.fit(2, rows(), rows(), callbacks=[saver], dataset_sink_mode=True, valid_dataset_sink_mode=True)
    look("fit")
    model.eval(rows(), dataset_sink_mode=True)
    look("eval")
    other = model_of(folder, layout)
    other.build(rows())
    look("another training")
    checkpoint(folder)
    model_of(folder, "mp4-optimizer").build(rows())
    look("the next training")
    return seen


def wrapped(folder, layout):
    """Train an AutoParallel network without sink mode, save, and resume it in a model of its own."""
    from mindspore import nn
    from mindspore.parallel.auto_parallel import AutoParallel

    from tests.support.ascend.network import MP, Network

    def make():
        ms.reset_auto_parallel_context()
        network = Network(int(os.environ["RANK_SIZE"]) // MP)
        optimizer = nn.Adam(network.trainable_params(), 0.01)
        parallel = AutoParallel(network, parallel_mode="semi_auto")
        parallel.full_batch = True
        parallel.dataset_strategy("full_batch")
        parallel.save_param_strategy_file(str(own(folder) / "strategy.ckpt"))
        return Model(parallel, optimizer=optimizer)

    fill = Fill()
    make().train(1, rows(), callbacks=[fill, checkpoint(folder)], dataset_sink_mode=False)
    model = make()
    resumed = recover_train(model, rows(), folder, 2, callbacks=[checkpoint(folder)], sink_mode=False)
    return {"saved": fill.digests, "step": str(resumed.step), "digests": digests_of(model.train_network)}


def cache(folder, layout):
    """Train an epoch beside a rank list that a recovery wrote, as the first process of a relaunch."""
    model = model_of(folder, layout)
    model.train(1, rows(), callbacks=[checkpoint(folder)], dataset_sink_mode=True)
    return {"groups": [list(one.ranks) for one in read_group_info(own(folder) / "group_info.pb").groups]}


def reshard(folder, layout):
    """Resume from slices of four tensor-parallel ranks, one rank saving and the others not."""
    model = model_of(folder, layout)
    tensors = {}
    for one in model.train_network.get_parameters():
        last = one.name.rpartition(".")[2]
        axes = {"up": ((0,), ()), "down": ((), (0,))}.get(last)
        cut = cut_layout(one.name, (4,), *axes) if axes is not None and one.ndim == 2 else None
        tensors[one.name] = CutTensor(str(one.dtype), whole_value(one, tuple(one.shape)), cut)
    make_cut_tree(folder, tensors, 4, steps=[Step(1, STEPS)], manifests=True)
    before = (folder / "ckpt_dir0" / "strategy.ckpt").read_bytes()
    callbacks = [checkpoint(folder)] if get_rank() == 0 else []
    resumed = recover_train(model, rows(), folder, 2, callbacks=callbacks, reshard=True)
    aside = folder / "resharded_from" / f"4_ranks_{resumed.step}" / "ckpt_dir0" / "strategy.ckpt"
    return {
        "step": str(resumed.step),
        "from": resumed.resharded_from,
        "digests": digests_of(model.train_network),
        "expected": {name: digest_of(values_of(value)) for name, value in known_values(model.train_network).items()},
        "shapes": {one.name: list(one.shape) for one in saved_parameters(model.train_network)},
        "kept": aside.read_bytes() == before if callbacks else None,
        "now": (own(folder) / "strategy.ckpt").read_bytes() != before if callbacks else None,
    }


def stand_in_for_results():
    """Have graphs, which do not run and answer an int, answer zeros: an evaluation three, a training one."""
    run = _cell_graph_executor.run

    def zeros(cell, *inputs, **options):
        run(cell, *inputs, **options)
        zero = ms.Tensor(0.0, ms.float32)
        return zero if cell.training else (zero, zero, zero)

    _cell_graph_executor.run = zeros


def main(folder, *jobs):
    # the collectives between steps answer zeros: every rank says what this one says
    TrainingJob.gather = lambda self, numbers, doing="", *, named="": [tuple(numbers)] * self.size
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_device("Ascend")
    init()
    stand_in_for_results()
    for job in jobs:
        name, layout = job.split(":")
        root = Path(folder) / layout
        found = globals()[name](root, layout)
        (root / f"{name}{get_rank()}.json").write_text(json.dumps(found))
        print(f"{job}: done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
