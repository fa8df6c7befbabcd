"""The loops of random programs, which train without ``Model``."""

from __future__ import annotations

import inspect
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import mindspore as ms

from ms_recover.training import SliceSaver, resume
from tests.support import program_saves
from tests.support.program_callbacks import digest_of
from tests.support.program_data import digest_of_arrays, make_dataset
from tests.support.program_network import make_loss, make_network, make_optimizer
from tests.support.random_programs import IN_SAVES, Program


class Loop:
    """The parts of a program that trains in a loop of its own."""

    def __init__(self, program: Program, root: Path, folder: Path, saving: bool) -> None:
        ms.set_seed(7)
        random.seed(7)
        self.program, self.root = program, root
        self.network = make_network(program)
        self.optimizer = make_optimizer(program, self.network)
        loss_of = make_loss(program)
        self.parts = [self.network, *([loss_of] if program.gives_loss else []), self.optimizer]

        def forward(x: ms.Tensor, y: ms.Tensor) -> ms.Tensor:
            return loss_of(self.network(x), y)

        self.gradients = ms.value_and_grad(forward, None, self.optimizer.parameters)
        self.data, self.rows = make_dataset(program, folder)
        self.saver = None
        if saving:
            self.saver = SliceSaver(
                self.parts,
                f"{root}/ckpt_dir{{rank}}",
                program.prefix,
                program.keep,
                async_save=program.asynchronous,
                format=program.format,
                dataset=self.data,
            )

    def train(self, epochs: int, crash: tuple[str, int] | None, write: Callable[..., None]) -> str:
        """Train as far as the crash, or to the end; return a digest of what is left."""
        steps = self.data.get_dataset_size()
        resumed, done = None, 0
        if self.saver is not None:
            known = inspect.signature(resume).parameters
            options = {"prefix": self.program.prefix} if "prefix" in known else {}
            resumed = resume(self.parts, str(self.root), fresh="start", dataset=self.data, **options)
            done = resumed.step.step if resumed.step else 0
        one_for_all = self.program.iterators == "all"
        batches = self._iterator(resumed, done, epochs) if one_for_all else None
        step = done
        for epoch in range(done // steps, epochs):
            if step % steps == 0:
                write("begin", epoch + 1, "")
            if batches is None or not one_for_all:
                batches = self._iterator(resumed if step == done else None, step % steps, 1)
            for x, y in batches:
                write("values", step + 1, digest_of(self.network, self.optimizer))
                write("batch", step + 1, digest_of_arrays([x.asnumpy(), y.asnumpy()]))
                loss, gradients = self.gradients(x, y)
                self.optimizer(gradients)
                step += 1
                write("loss", step, loss.asnumpy().tobytes().hex())
                if self.saver is not None and crash is not None and crash[1] == step:
                    if crash[0] == "kill":
                        os.kill(os.getpid(), signal.SIGKILL)
                    if crash[0] in IN_SAVES:
                        program_saves.kill_before(crash[0])
                if self.saver is not None and step % (self.program.save_steps or steps) == 0:
                    self._save(step, (x, y))
                if crash is not None and crash[1] == step and crash[0] not in IN_SAVES:
                    if crash[0] == "stop":
                        self.saver.flush()
                        return digest_of(self.network, self.optimizer)
                    raise ConnectionResetError("the node is gone")
            write("end", epoch + 1, "")
        if self.saver is not None:
            self.saver.flush()
        return digest_of(self.network, self.optimizer)

    def _save(self, step: int, batch: tuple[ms.Tensor, ms.Tensor]) -> None:
        if self.program.proves and "batch" in inspect.signature(SliceSaver.save).parameters:
            self.saver.save(step, batch=batch)
        else:
            self.saver.save(step)

    def _iterator(self, resumed, done: int, epochs: int):
        """Return an iterator over the next epochs, behind the steps that are done."""
        proves = self.program.proves and done > 0 and hasattr(resumed, "prove")
        self.data.set_init_step(done - 1 if proves else done)
        batches = self.data.create_tuple_iterator(num_epochs=epochs)
        return resumed.prove(batches) if proves else batches
