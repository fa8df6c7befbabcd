"""One process of a random program: its parts, and the calls that train them."""

from __future__ import annotations

import json
import logging
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import mindspore as ms
import mindspore.dataset as ds
from mindspore import nn

from ms_recover.errors import MsRecoverError
from ms_recover.training import SliceCheckpoint, recover_train
from tests.support.program_callbacks import Crash, Record, digest_of, make_callback
from tests.support.program_data import make_dataset
from tests.support.program_loop import Loop
from tests.support.program_network import FAILS, make_model
from tests.support.program_tree import committed_step, note_neighbour
from tests.support.random_programs import Program, as_saved, epochs_of, neighbour_of


class Report:
    """Writes lines that stay when the process is killed."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def __call__(self, *words: object) -> None:
        self._file.write(json.dumps(words) + "\n")


class Warnings(logging.Handler):
    """Reports what is said at WARNING."""

    def __init__(self, report: Report) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        self._report("warning", record.getMessage())


def _wait_for_late_errors() -> None:
    """Have MindSpore raise an operator's error here, which the next operators of a process raise again, some times."""
    for _ in range(8):
        try:
            ms.runtime.synchronize()
            nn.Dense(1, 1)
        except RuntimeError:
            continue
        return


@contextmanager
def printing_to(path: Path) -> Iterator[None]:
    """Have what the process prints, MindSpore's own lines too, in a file."""
    kept = [os.dup(1), os.dup(2)]
    file = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        yield
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.close(file)


class Training:
    """The parts of a program in one process.

    Parameters
    ----------
    program : Program
        The program, with its change where that is made.
    root : Path
        The tree of slices.
    folder : Path
        Where its dataset and its callbacks keep files.
    """

    def __init__(self, program: Program, root: Path, folder: Path) -> None:
        ms.set_context(mode=ms.GRAPH_MODE if program.mode == "graph" else ms.PYNATIVE_MODE)
        ds.config.set_fast_recovery(program.fast_recovery)
        with suppress(SystemError):  # the first operator of a process meets numpy 2, which MindSpore does not know
            ms.Tensor([1.0]) * 0.5
        folder.mkdir(parents=True, exist_ok=True)
        self._root, self._folder = root, folder
        self._built: tuple | None = None
        self._loop: Loop | None = None

    def run(self, program: Program, report: Path, crash: tuple[str, int] | None, how: str, anew: bool) -> None:
        """Train: undisturbed (``alone``), from the start (``train``), or as the library decides (``recover``, and
        ``resume`` where there must be slices); with parts made `anew`, or those of the call before."""
        write = Report(report)
        write("committed", committed_step(self._root, program))
        handler = Warnings(write)
        logger = logging.getLogger("ms_recover")
        logger.addHandler(handler)
        try:
            with printing_to(report.with_suffix(".out")):
                final = (self._loop_through if program.trainer == "loop" else self._train)(
                    program, write, crash, how, anew
                )
            write("final", final)
        except (Exception, KeyboardInterrupt) as error:
            write("error", type(error).__name__, str(error), isinstance(error, MsRecoverError))
            write("trace", traceback.format_exc())
        finally:
            logger.removeHandler(handler)
            FAILS.clear()
            _wait_for_late_errors()

    def _loop_through(
        self, program: Program, write: Report, crash: tuple[str, int] | None, how: str, anew: bool
    ) -> str:
        if anew or self._loop is None:
            self._loop = Loop(as_saved(program), self._root, self._folder, how != "alone")
        return self._loop.train(epochs_of(program), crash, write)

    def _train(self, program: Program, write: Report, crash: tuple[str, int] | None, how: str, anew: bool) -> str:
        if program.neighbour == "head":
            self._train_head(program, how)
        if anew or self._built is None:
            self._built = self._build(program, how != "alone")
        model, data, rows, record, crashes, callbacks = self._built
        record._write = write
        for one in crashes:
            one.set("", 0)
        rows.fails_after = None
        if crash is not None and crash[0] == "source":
            begun = max((step for _, step in program.crashes if step < crash[1]), default=0)
            rows.fails_after = rows.read + (crash[1] - begun) * program.batch // (1 + ("concat" in program.operations))
        elif crash is not None:
            step = crash[1] + program.initial_epoch * program.epoch_steps
            crashes[crash[0] != "raise first"].set(crash[0], step)
        epochs = epochs_of(program)
        if how in ("alone", "train"):
            first = program.initial_epoch
            model.train(epochs, data, callbacks=callbacks, dataset_sink_mode=False, initial_epoch=first)
        else:
            recover_train(model, data, self._root, epochs, callbacks, fresh="start" if how == "recover" else "refuse")
        return digest_of(model.train_network)

    def _build(self, program: Program, saving: bool) -> tuple:
        model = make_model(program)
        data, rows = make_dataset(program, self._folder)
        saved = as_saved(program)
        record = Record(None)
        crashes = [Crash(), Crash()]
        callbacks = [crashes[0], record]
        for name in program.callbacks:
            if name != "save":
                callbacks.append(make_callback(name, self._folder))
            elif saving:
                callbacks.append(
                    SliceCheckpoint(
                        f"{self._root}/ckpt_dir{{rank}}",
                        program.prefix,
                        saved.save_steps,
                        program.keep,
                        async_save=saved.asynchronous,
                        format=saved.format,
                    )
                )
        return model, data, rows, record, crashes, [*callbacks, crashes[1]]

    def _train_head(self, program: Program, how: str) -> None:
        """Train what comes before in the same script, unless it is done."""
        other = neighbour_of(program)
        folder = self._folder / "head"
        Training(other, self._root, folder).run(
            other, folder / "head.jsonl", None, "alone" if how == "alone" else "recover", True
        )
        if how != "alone":
            note_neighbour(self._root)
