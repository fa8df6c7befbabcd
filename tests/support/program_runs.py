"""Run random programs: undisturbed, and crashed and resumed; started as a script, print what came of each as JSON.

Processes are forked after MindSpore is imported and before it computes anything, so that each takes under a second.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ms_recover.errors import MsRecoverError
from ms_recover.file_names import MANIFEST_SUFFIX, SUPERSEDED_SUFFIX
from tests.support.random_programs import Program, draw_program, reasons_of, verdict_of

LIMIT = 120
"""Seconds for one process."""


@dataclass(frozen=True)
class Leg:
    """One call of training, as its process wrote it down."""

    events: tuple[tuple[str, int, str], ...] = ()
    """Losses and values by step, begins and ends of epochs, in order."""
    ended: bool = False
    """Whether the training went to its end."""
    final: str = ""
    error: tuple[str, str] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def trained(self) -> bool:
        """Whether a step was trained."""
        return any(kind == "loss" for kind, _, _ in self.events)


def epochs_of(program: Program) -> int:
    return program.epochs + (program.change == "more epochs")


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


class Training:
    """The parts of a program in one process, and the calls that train it."""

    def __init__(self, program: Program, root: Path, report: Report) -> None:
        import mindspore as ms
        import mindspore.dataset as ds

        ms.set_context(mode=ms.GRAPH_MODE if program.mode == "graph" else ms.PYNATIVE_MODE)
        ds.config.set_fast_recovery(program.fast_recovery)
        with suppress(SystemError):  # the first operator of a process meets numpy 2, which MindSpore does not know
            ms.Tensor([1.0]) * 0.5
        self._root, self._report = root, report
        self._built: tuple | None = None

    def _build(self, program: Program, saving: bool) -> tuple:
        from ms_recover.training import SliceCheckpoint
        from tests.support.program_parts import Record, make_callback, make_dataset, make_model

        form = program.format
        if program.change == "format":
            form = "ckpt" if form == "safetensors" else "safetensors"
        save_steps = program.save_steps
        if program.change == "save_steps":
            save_steps = 2 if save_steps is None else None
        model = make_model(program)
        data, rows = make_dataset(program)
        callbacks = [Record(self._report)]
        for name in program.callbacks:
            if name != "save":
                callbacks.append(make_callback(name))
            elif saving:
                callbacks.append(
                    SliceCheckpoint(
                        f"{self._root}/ckpt_dir{{rank}}",
                        "net",
                        save_steps,
                        20,
                        async_save=program.asynchronous != (program.change == "async"),
                        format=form,
                    )
                )
        return model, data, rows, callbacks

    def run(self, program: Program, crash: tuple[str, int] | None, how: str, anew: bool) -> None:
        """Train: undisturbed (``alone``), from the start (``train``), or as `recover_train` decides."""
        from ms_recover.training import recover_train
        from tests.support.program_parts import Crash, digest_of

        if anew or self._built is None:
            self._built = self._build(program, how != "alone")
        model, data, rows, callbacks = self._built
        rows.fails_after = None
        if crash is not None and crash[0] == "source":
            begun = max((step for _, step in program.crashes if step < crash[1]), default=0)
            rows.fails_after = rows.read + (crash[1] - begun) * program.batch // (1 + ("concat" in program.operations))
        if crash is not None and crash[0] != "source":
            callback = Crash(*crash)
            callbacks = [callback, *callbacks] if crash[0] == "raise first" else [*callbacks, callback]
        handler = Warnings(self._report)
        logger = logging.getLogger("ms_recover")
        logger.addHandler(handler)
        try:
            if how in ("alone", "train"):
                model.train(epochs_of(program), data, callbacks=callbacks, dataset_sink_mode=False)
            else:
                fresh = {"fresh": "start"} if how == "recover" else {}
                recover_train(model, data, self._root, epochs_of(program), callbacks, **fresh)
            self._report("final", digest_of(model.train_network))
        except Exception as error:
            self._report("error", type(error).__name__, str(error), isinstance(error, MsRecoverError))
            self._report("trace", traceback.format_exc())
        finally:
            logger.removeHandler(handler)


def read_report(path: Path) -> Leg:
    """Return what a leg wrote down."""
    events, warnings, final, error = [], [], "", None
    for line in path.read_text().splitlines() if path.exists() else ():
        kind, *words = json.loads(line)
        if kind == "warning":
            warnings.append(words[0])
        elif kind == "final":
            final = words[0]
        elif kind == "error":
            error = (words[0] if not words[2] else "refused", words[1])
        elif kind != "trace":
            events.append((kind, *words))
    return Leg(tuple(events), bool(final), final, error, tuple(warnings))


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process with a time limit; return its wait status."""
    process = os.fork()
    if process:
        return os.waitpid(process, 0)[1]
    code = 1
    try:
        signal.alarm(LIMIT)
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def newest_slices(root: Path) -> list[Path]:
    """Return the manifests of the tree, those of the run that was saved last in front, newest step first."""
    paths = [path for path in root.glob(f"ckpt_dir0/*{MANIFEST_SUFFIX}") if SUPERSEDED_SUFFIX not in path.name]
    found = [(path.stat().st_mtime_ns, path) for path in paths]
    return [path for _, path in sorted(found, reverse=True)]


def change_tree(program: Program, root: Path) -> None:
    """Damage the newest slice, where the program says so."""
    manifests = newest_slices(root)
    if not manifests or program.change not in ("newest flipped", "newest gone"):
        return
    path = Path(str(manifests[0]).removesuffix(MANIFEST_SUFFIX))
    if program.change == "newest gone":
        path.unlink()
        manifests[0].unlink()
        return
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o400)


def run_program(program: Program, top: Path) -> dict:
    """Run a program undisturbed, then crashed and resumed; return the verdict and what led to it."""
    root = top / "tree"
    root.mkdir(parents=True)
    plain = replace(program, change="none")
    legs: list[Path] = []

    def report(name: str) -> Report:
        legs.append(top / f"{name}.jsonl")
        return Report(legs[-1])

    in_child(lambda: _alone(program, root, Report(top / "alone.jsonl")))
    alone = read_report(top / "alone.jsonl")
    if not alone.ended:
        return {"verdict": f"does not train: {alone.error}", "allowed": False}
    if program.change == "abandoned":
        other = replace(plain, number=program.number + 1)
        in_child(lambda: Training(other, root, Report(top / "abandoned.jsonl")).run(other, None, "train", True))
    begins = "train" if program.change == "abandoned" else program.begins
    calls = [(plain, crash, "resume") for crash in program.crashes] + [(program, None, "resume")]
    calls[0] = (plain, program.crashes[0], begins)
    sound = []

    def call(index: int, training: Training | None = None) -> None:
        which, crash, how = calls[index]
        log = Report(top / f"leg{index}.jsonl")
        if training is None:
            training = Training(which, root, log)
        training._report = log
        training.run(which, crash, how, program.retry != "same")

    def all_calls() -> None:
        training = None
        for index in range(len(calls)):
            if index == len(calls) - 1:
                change_tree(program, root)
            training = training or Training(plain, root, Report(top / "leg0.jsonl"))
            if program.retry == "same" and training._built is not None:
                training._built[3][0]._write = Report(top / f"leg{index}.jsonl")
            call(index, training)
            if read_report(top / f"leg{index}.jsonl").ended and (calls[index][1] or ("",))[0] != "stop":
                break

    if program.retry == "process":
        for index in range(len(calls)):
            if index == len(calls) - 1:
                change_tree(program, root)
            sound.append(len(newest_slices(root)))
            in_child(lambda index=index: call(index))
            leg = read_report(top / f"leg{index}.jsonl")
            if leg.ended and (calls[index][1] or ("",))[0] != "stop":
                break
    else:
        in_child(all_calls)
    done = [read_report(path) for path in (top / f"leg{index}.jsonl" for index in range(len(calls))) if path.exists()]
    return judge(program, alone, done, newest_slices(root))


def _alone(program: Program, root: Path, report: Report) -> None:
    same = replace(program, change=program.change if program.change == "more epochs" else "none")
    Training(same, root, report).run(same, None, "alone", True)


def judge(program: Program, alone: Leg, legs: list[Leg], left: list[Path]) -> dict:
    """Compare the legs with the undisturbed training."""
    last = legs[-1]
    resumed = legs[1:]
    warnings = tuple(line for leg in resumed for line in leg.warnings)
    stopped = [kind == "stop" for kind, _ in program.crashes]
    legs = [without_stop(leg) if stop else leg for leg, stop in zip(legs, [*stopped, False], strict=False)]
    equal = all(first_difference(leg, alone) is None for leg in legs) and last.final == alone.final
    found = {"warnings": warnings, "error": last.error, "steps": [steps_of(leg) for leg in legs]}
    if last.error is not None and last.error[0] != "refused":
        return {"verdict": f"failed: {last.error}", "allowed": False, **found}
    refusal = None if last.error is None else last.error[1]
    if refusal is None and not last.final:
        return {"verdict": "the process died", "allowed": False, **found}
    if refusal is not None and not left:
        return {"verdict": "refused: no slice is left", "allowed": not last.trained, **found}
    if refusal is not None and len(left) == 1 and program.change == "newest flipped":
        return {"verdict": "refused: the only slice is damaged", "allowed": not last.trained, **found}
    if len(legs) <= len(program.crashes) and last.final and (equal or program.change == "more epochs"):
        return {"verdict": "ended before it crashed", "allowed": True, **found}
    if "unseeded" in reasons_of(program) and not equal and all(begins_epoch(leg) for leg in resumed):
        return {"verdict": "another order, from the beginning of an epoch", "allowed": True, **found}
    verdict, allowed = verdict_of(program, equal=equal, refusal=refusal, warnings=warnings, trained=last.trained)
    if not equal and refusal is None:
        found["differs"] = [first_difference(leg, alone) for leg in legs]
    return {"verdict": verdict, "allowed": allowed, **found}


def steps_of(leg: Leg) -> list[int]:
    """Return the first and the last step that a leg trained."""
    steps = [step for kind, step, _ in leg.events if kind == "loss"]
    return [steps[0], steps[-1]] if steps else []


def begins_epoch(leg: Leg) -> bool:
    """Whether a leg began at the beginning of an epoch."""
    return not leg.events or leg.events[0][0] == "begin"


def without_stop(leg: Leg) -> Leg:
    """Return a leg that was asked to stop without the end of its epoch, which comes early."""
    last = max((place for place, event in enumerate(leg.events) if event[0] == "loss"), default=-1)
    return replace(leg, events=leg.events[: last + 1], ended=False)


def first_difference(leg: Leg, alone: Leg) -> str | None:
    """Return the first event of a leg that is none of the undisturbed training."""
    if not leg.events:
        return None
    names = [event[:2] for event in alone.events]
    if leg.events[0][:2] not in names:
        return f"begins with {leg.events[0]}"
    begin = names.index(leg.events[0][:2])
    for mine, theirs in zip(leg.events, alone.events[begin:], strict=False):
        if mine != theirs:
            return f"{mine} instead of {theirs}"
    if leg.ended and begin + len(leg.events) != len(alone.events):
        return f"{len(leg.events)} events instead of {len(alone.events) - begin}"
    return None


def main(top: Path, numbers: list[int]) -> None:
    """Run programs by their numbers; print a line for each."""
    import mindspore as ms

    ms.set_device("CPU")
    import tests.support.program_parts  # noqa: F401 (once, before the forks)

    for number in numbers:
        program = draw_program(number)
        folder = Path(tempfile.mkdtemp(dir=top))
        found = run_program(program, folder)
        print(json.dumps({"number": number, "program": str(program), **found}), flush=True)
        if found["allowed"]:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(number) for number in sys.argv[2:]])
