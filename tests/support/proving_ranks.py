"""Two data-parallel ranks with shards of their own: one sees other samples at the resume, then none; run by msrun.

``python -m tests.support.proving_ranks DIRECTORY`` writes what each rank saw to ``DIRECTORY/seen{rank}.json``.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from contextlib import suppress
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
from mindspore import ops
from mindspore.communication import init

from ms_recover.errors import MsRecoverError
from ms_recover.training import recover_train
from ms_recover.training.this_process import current_job
from tests.support.trainings import EPOCHS, Losses, StoppedError, checkpoint, files, make_model, rows


class Heard(logging.Handler):
    """Messages at INFO that name samples."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.texts = []

    def emit(self, record):
        if "samples" in record.getMessage():
            self.texts.append(record.getMessage())


def main(directory):
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    with suppress(SystemError):  # of the first operator with a shape, where MindSpore was built for an older numpy
        ops.reshape(ms.Tensor([1.0]), (1, 1))
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    job, root, seen = current_job(), Path(directory) / "tree", {}
    heard = Heard()
    logging.getLogger("ms_recover").addHandler(heard)
    logging.getLogger("ms_recover").setLevel(logging.INFO)

    def dataset(other=False):
        ds.config.set_seed(11)
        shard = {"num_shards": job.size, "shard_id": job.rank}
        return ds.GeneratorDataset(rows(64, 6 if other else 5), ["x", "y"], shuffle=True, **shard).batch(4)

    def resume(name, other):
        losses, began = Losses(), time.monotonic()
        failure = ""
        try:
            recover_train(make_model(), dataset(other), root, EPOCHS, callbacks=[losses, checkpoint(root, 4)])
        except MsRecoverError as error:
            failure = f"{type(error).__name__}: {error}"
        job.gather([0])
        said, heard.texts = heard.texts, []
        hexes = {step: loss.hex() for step, loss in losses.seen.items()}
        seen[name] = {"losses": hexes, "failure": failure, "seconds": time.monotonic() - began, "said": said}

    losses = Losses()
    make_model().train(EPOCHS, dataset(), callbacks=[losses])
    seen["whole"] = {"losses": {step: loss.hex() for step, loss in losses.seen.items()}}
    with suppress(StoppedError):
        make_model().train(EPOCHS, dataset(), callbacks=[checkpoint(root, 4), Losses(stop_at=13)])
    job.gather([0])
    before = files(root / f"ckpt_dir{job.rank}")
    resume("other", job.rank == 1)
    seen["other"]["same"] = files(root / f"ckpt_dir{job.rank}") == before
    resume("same", False)
    (Path(directory) / f"seen{job.rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
