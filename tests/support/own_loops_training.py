"""Two data-parallel ranks whose shards, `extra` and prefixes are their own, in loops and with ``Model``; run by msrun.

``python -m tests.support.own_loops_training DIRECTORY`` writes what each rank saw to ``DIRECTORY/seen{rank}.json``.
"""

from __future__ import annotations

import json
import logging
import sys
from contextlib import redirect_stderr, suppress
from io import StringIO
from pathlib import Path

import mindspore.dataset as ds
from mindspore.train import CheckpointConfig, ModelCheckpoint

from ms_recover.errors import MsRecoverError
from ms_recover.training import SliceCheckpoint, SliceManifests, SliceSaver, recover_train, resume
from ms_recover.training.this_process import current_job
from tests.support.own_states_training import Draws, Heard, begin, lose
from tests.support.trainings import EPOCHS, Losses, StoppedError, checkpoint, make_model, rows


class Scenes:
    """What one rank sees."""

    def __init__(self, top):
        self.job, self.top, self.seen = current_job(), top, {}
        self.rank = self.job.rank
        self.heard = Heard()
        logging.getLogger("ms_recover").addHandler(self.heard)

    def data(self, shard=None, seed=11):
        ds.config.set_seed(seed)
        parts = {"num_shards": self.job.size, "shard_id": self.rank if shard is None else shard}
        return ds.GeneratorDataset(rows(64, 5), ["x", "y"], shuffle=False, **parts).batch(4)

    def see(self, name, work):
        self.job.gather([0])
        self.heard.texts, failure, done, printed = [], "", None, StringIO()
        with redirect_stderr(printed):
            try:
                done = work()
            except MsRecoverError as error:
                failure = f"{type(error).__name__}: {error}"
        self.job.gather([0])
        self.seen[name] = {"failure": failure, "said": [*self.heard.texts], "done": done}
        self.seen[name]["line"] = [one for one in printed.getvalue().splitlines() if one.startswith("ms_recover: ")]

    def shards(self):
        """Both ranks read shard 0 from the start."""
        config = CheckpointConfig(4, 0, 20)
        for name, callbacks in {
            "begins, model": [checkpoint(self.top / "model", 4)],
            "begins, manifests": [
                ModelCheckpoint("net", f"{self.top}/manifests/ckpt_dir{self.rank}", config),
                SliceManifests(),
            ],
        }.items():
            self.see(
                name, lambda callbacks=callbacks: make_model().train(1, self.data(0), callbacks=callbacks) and None
            )
        self.see("begins, loop", lambda: self.loop(self.top / "loop", self.data(0)))

    def loop(self, root, data, steps=(4, 8)):
        """Save at steps, with an `extra` of the rank's own; a loop gives back what it has trained."""
        network = make_model().train_network
        with SliceSaver(network, f"{root}/ckpt_dir{{rank}}", "net", dataset=data) as saver:
            for step, batch in enumerate(data.create_tuple_iterator(num_epochs=1), 1):
                if step in steps:
                    saver.save(step, extra={"own": [self.rank, step]}, batch=tuple(batch))

    def resumed(self, root, data):
        found = resume(make_model().train_network, root, prefix="net", dataset=data)
        return [str(found.step), found.extra]

    def loops(self):
        root = self.top / "own"
        self.loop(root, self.data())
        self.see("loop, other shard", lambda: self.resumed(root, self.data(0)))
        self.job.gather([0])
        if self.rank == 1:
            lose(root / "ckpt_dir1", "net-1_8.ckpt.state")
        self.see("loop, state", lambda: self.resumed(root, self.data()))

    def prefixes(self):
        """Each rank has a prefix of its own."""
        drawn, losses = Draws(False), Losses()
        make_model().train(EPOCHS, self.data(seed=11 + self.rank), callbacks=[losses, drawn])
        self.seen["whole"] = self.record(losses, drawn)
        for name, lost in {
            "prefix": (),
            "prefix, state": ("*-2_4.ckpt.state",),
            "prefix, slice": ("*-2_4.ckpt",),
        }.items():
            root = self.top / name
            with suppress(StoppedError):
                callbacks = [Draws(False), self.saver(root), Losses(stop_at=13)]
                make_model().train(EPOCHS, self.data(seed=11 + self.rank), callbacks=callbacks)
            self.job.gather([0])
            if self.rank == 1:
                lose(root / "ckpt_dir1", *lost)
            drawn, losses = Draws(False), Losses()

            def work(root=root, drawn=drawn, losses=losses):
                callbacks = [losses, drawn, self.saver(root)]
                recover_train(make_model(), self.data(seed=11 + self.rank), root, EPOCHS, callbacks=callbacks)

            self.see(name, work)
            self.seen[name] |= self.record(losses, drawn)

    def saver(self, root):
        return SliceCheckpoint(f"{root}/ckpt_dir{{rank}}", ("net", "net_r")[self.rank], 4, 20)

    @staticmethod
    def record(losses, drawn):
        return {"losses": {step: loss.hex() for step, loss in losses.seen.items()}, "drawn": drawn.drawn}


def main(directory):
    begin()
    made = Scenes(Path(directory))
    made.shards()
    made.loops()
    made.prefixes()
    (made.top / f"seen{made.rank}.json").write_text(json.dumps(made.seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
