"""Two data-parallel ranks that are given different arguments, or do different things at once; run by msrun.

``unequal_ranks.py DIRECTORY SCENES`` writes what each rank saw to ``DIRECTORY/seen{rank}.json``; SCENES is ``named``
for those in which all ranks call us, ``alone`` for the one in which a rank never does, and ``folders`` for those in
which the folder of rank 1 is another one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from contextlib import suppress
from pathlib import Path

import mindspore as ms
from mindspore import ops
from mindspore.communication import init
from mindspore.train import Callback

from ms_recover.errors import MsRecoverError
from ms_recover.training import SliceSaver, recover_train, resume
from ms_recover.training.this_process import current_job
from tests.support.trainings import EPOCHS, Losses, StoppedError, checkpoint, files, make_dataset, make_model


class Odd(Callback):
    """Has a state that no file can hold, on rank 1 from the second save on."""

    def state_dict(self):
        return {"seen": object() if self.steps > 4 and current_job().rank else self.steps}

    def load_state_dict(self, state):
        self.steps = state["seen"]

    steps = 0

    def on_train_step_end(self, run_context):
        self.steps += 1


class Scenes:
    """What one rank sees."""

    def __init__(self, directory):
        self.job, self.root, self.out = current_job(), Path(directory) / "tree", Path(directory)
        self.seen = {}
        self.rank = self.job.rank

    def train(self, root, *callbacks, epochs=EPOCHS, data=None):
        make_model().train(epochs, make_dataset() if data is None else data, callbacks=list(callbacks))

    def see(self, name, work, root=None):
        root = self.root if root is None else root
        before, failure, done = files(root), "", None
        self.job.gather([0])
        began = time.monotonic()
        try:
            done = work()
        except MsRecoverError as error:
            failure = f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - began
        same = files(root) == before
        self.job.gather([0])
        self.seen[name] = {
            "failure": failure,
            "seconds": seconds,
            "same": same,
            "step": str(getattr(done, "step", None)),
        }

    def resume_model(self, callbacks=None, model=None, **options):
        model = make_model() if model is None else model
        listed = [checkpoint(self.root, 4)] if callbacks is None else callbacks
        return recover_train(model, make_dataset(), self.root, **{"epochs": EPOCHS, **options}, callbacks=listed)

    def resumes(self):
        first, other, root, rank = self.run_id, "of_nobody", self.root, self.rank
        ask = self.resume_model
        self.see("run", lambda: ask(run=(None, first)[rank]))
        self.see("another run", lambda: ask(run=(first, other)[rank]))
        with environment(MS_RECOVER_RUN=first if rank else ""):
            self.see("variable", ask)
        self.see("file", lambda: ask(ckpt_file=(root / "ckpt_dir0" / "test-1_4.ckpt", None)[rank]))
        self.see("files of two steps", lambda: ask(ckpt_file=root / f"ckpt_dir{rank}" / f"test-1_{(4, 8)[rank]}.ckpt"))
        self.see("step", lambda: ask(step=("1_4", "1_8")[rank]))
        self.see("epochs", lambda: ask(epochs=EPOCHS + rank))
        self.see("change", lambda: ask(allow_dataset_change=rank == 0))
        self.see("fresh", lambda: ask(fresh=("refuse", "start")[rank]))
        self.see("reshard", lambda: ask(reshard=rank == 0))
        sizes, given = {"sink_size": (4, 2)[rank]}, make_dataset(2)
        self.see("sink size", lambda: ask(sink_mode=True, **sizes))
        self.see("validation", lambda: ask(valid_dataset=(given, None)[rank], model=make_model(metrics={"mse"})))
        self.see("its frequency", lambda: ask(valid_frequency=1 + rank))
        self.see("saver", lambda: ask(callbacks=[checkpoint(root, 4)] if rank == 0 else []))
        self.see("saver's steps", lambda: ask(callbacks=[checkpoint(root, (4, 6)[rank])]))
        self.see("saver's way", lambda: ask(callbacks=[checkpoint(root, 4, async_save=rank == 1)]))

    def saves(self):
        root, rank = self.out / "fresh", self.rank
        root.mkdir(exist_ok=True)
        self.see("steps", lambda: self.train(root, checkpoint(root, (4, 6)[rank])), root)
        self.see("way", lambda: self.train(root, checkpoint(root, 4, async_save=rank == 1)), root)
        self.see("epochs to train", lambda: self.train(root, checkpoint(root, 4), epochs=EPOCHS + rank), root)
        self.see("epochs' steps", lambda: self.train(root, checkpoint(root, 4), data=make_dataset(8 + rank)), root)
        model = make_model()
        network = model.train_network
        saver = SliceSaver(network, f"{root}/ckpt_dir{{rank}}", "loop")
        saver.save(2)
        self.see("own loss", lambda: saver.save((3, 5)[rank]), root)
        work = (lambda: saver.save(7), lambda: resume(network, self.out / "fresh", fresh="start"))[rank]
        self.see("saves and resumes", work, root)
        self.refusals(saver, root)
        saver.release()

    def refusals(self, saver, root):
        """What one rank refuses by itself, before anything is exchanged."""
        rank, network = self.rank, make_model().train_network
        extra = ({"seen": 1}, {"seen": object()})[rank]
        self.see("extra of one", lambda: saver.save(8, extra=extra), root)
        self.see("step of one", lambda: saver.save((8, 1)[rank]), root)
        self.see(
            "first save of one", lambda: SliceSaver(network, f"{root}/new{{rank}}", "loop").save((1, -1)[rank]), root
        )
        self.see("choice of one", lambda: self.resume_model(rank_local=("peer", "nobody")[rank]))
        self.see("choice of one in a loop", lambda: resume(network, self.root, fresh=("start", "again")[rank]))
        self.see("epochs of one", lambda: self.resume_model(epochs=(EPOCHS, 0)[rank]))
        self.see("state of one", lambda: self.train(self.out / "odd", Odd(), checkpoint(self.out / "odd", 4)))

    def equal(self):
        """What is a rank's own, and stays allowed."""
        root, rank = self.root, self.rank
        named = root / f"ckpt_dir{rank}" / "test-1_8.ckpt"
        self.see("own files", lambda: resume(make_model().train_network, root, ckpt_file=named))

    def named(self):
        ours = checkpoint(self.root, 4)
        with suppress(StoppedError):
            self.train(self.root, ours, Losses(stop_at=13))
        self.run_id = ours.run_id
        self.job.gather([0])
        self.resumes()
        self.saves()
        self.equal()

    def alone(self):
        self.root.mkdir(exist_ok=True)
        began = time.monotonic()
        failure = ""
        try:
            self.train(self.root, *([checkpoint(self.root, 4)] if self.rank == 0 else []))
        except MsRecoverError as error:
            failure = f"{type(error).__name__}: {error}"
        except RuntimeError as error:
            failure = f"{type(error).__name__}"
        self.seen["alone"] = {"failure": failure, "seconds": time.monotonic() - began}

    def begin(self, root, stop_at):
        ours = checkpoint(root, 4)
        with suppress(StoppedError):
            self.train(root, ours, Losses(stop_at=stop_at))
        self.job.gather([0])
        return ours.run_id

    def folders(self):
        """Rank 1 has a folder of another training with the same shapes, which was started later and came further."""
        root, other = self.root, self.out / "other"
        ours, others = self.begin(root, 13), self.begin(other, 22)
        mine = root / f"ckpt_dir{self.rank}"

        def ask(**options):
            return resume(make_model().train_network, root, prefix="test", **options)

        def put(source):
            self.job.gather([0])
            if self.rank == 1:
                shutil.rmtree(mine)
                if source is not None:
                    shutil.copytree(source, mine)
            self.job.gather([0])

        put(other / "ckpt_dir1")
        self.see("foreign", ask)
        self.see("ours", lambda: ask(run=ours))
        put(other / "ckpt_dir1")
        self.see("theirs", lambda: ask(run=others))
        if self.rank == 0:
            shutil.rmtree(mine)
            shutil.copytree(other / "ckpt_dir0", mine)
        put(None)
        self.see("lost", ask)
        self.seen["runs"] = [ours, others]


class environment:  # noqa: N801 (as monkeypatch has it)
    """Variables of the process, for a while."""

    def __init__(self, **values):
        self._values = values

    def __enter__(self):
        os.environ.update(self._values)

    def __exit__(self, *error):
        for name in self._values:
            del os.environ[name]


def main(directory, scenes):
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
    with suppress(SystemError):  # of the first operator with a shape, where MindSpore was built for an older numpy
        ops.reshape(ms.Tensor([1.0]), (1, 1))
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    made = Scenes(directory)
    getattr(made, scenes)()
    (Path(directory) / f"seen{made.rank}.json").write_text(json.dumps(made.seen))
    end, other = time.monotonic() + 45, Path(directory) / f"seen{1 - made.rank}.json"
    while scenes == "alone" and not other.exists() and time.monotonic() < end:  # what ends first ends the launch
        time.sleep(0.2)
    os._exit(0)  # a rank that waits in vain would not end by itself


if __name__ == "__main__":
    main(*sys.argv[1:])
