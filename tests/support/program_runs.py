"""Run random programs: undisturbed, and crashed and resumed; started as a script, print a table of what came of them.

Processes are forked after MindSpore is imported and before it computes anything, so that each takes about a second.

    python -m tests.support.program_runs FOLDER --first 5000 --count 400 --jobs 2 --exact FILE

The folder has ``results.jsonl`` afterwards, a line for each program, and what a program that went wrong has written.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace
from pathlib import Path

from tests.support.program_causes import marks_of, verdict_of
from tests.support.program_legs import Leg, has_ended, read_leg, see
from tests.support.program_summary import exact_of, problems_of, summary_of
from tests.support.program_tree import add_neighbour, change_tree, names_in, own_manifests, touched_neighbour
from tests.support.random_programs import Program, draw_program, neighbour_of

LIMIT = 120
"""Seconds for one process."""

AGAIN = 20
"""Times that an undisturbed run is repeated before a program that differs without a word is called silent: one of which
every fifth run differs is then taken for repeatable in 1 of 100."""


def in_child(work: Callable[[], object]) -> int:
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


class Run:
    """One program, its folder and its calls."""

    def __init__(self, program: Program, top: Path) -> None:
        self.program, self.top = program, top
        self.plain = replace(program, change="none")
        self.root = top / "tree"
        self.root.mkdir(parents=True)
        how = "recover" if program.begins == "recover" else "resume"
        self.calls = [(self.plain, crash, how) for crash in program.crashes] + [(program, None, how)]
        if how == "resume":
            self.calls[0] = (self.plain, program.crashes[0], "train")

    def _path(self, name: str) -> Path:
        return self.top / f"{name}.jsonl"

    def leg(self, name: str) -> Leg:
        """Return what a leg wrote down."""
        return read_leg(self._path(name), self._path(name).with_suffix(".out"))

    def legs(self) -> list[Leg]:
        """Return the legs so far."""
        names = [f"leg{index}" for index in range(len(self.calls))]
        return [self.leg(name) for name in names if self._path(name).exists()]

    def alone(self, name: str = "alone") -> Leg:
        """Run the program undisturbed, with files in a folder of its own by that `name`."""
        from tests.support.program_data import write_files
        from tests.support.program_training import Training

        longer = replace(self.program, change="more epochs" if self.program.change == "more epochs" else "none")
        in_child(lambda: [write_files(one, self.top / "x") for one in self._all()])
        folder = self.top / name
        in_child(lambda: Training(longer, self.root, folder).run(longer, self._path(name), None, "alone", True))
        return self.leg(name)

    def repeats(self, alone: Leg) -> bool:
        """Whether the undisturbed run is the same each time."""
        more = (self.alone(f"alone{index}") for index in range(AGAIN))
        return all((one.events, one.final) == (alone.events, alone.final) for one in more)

    def _all(self) -> list[Program]:
        return [self.program, self.plain, *([neighbour_of(self.program)] if self.program.neighbour != "none" else [])]

    def neighbour(self) -> None:
        """Run the other training of the folder."""
        from tests.support.program_training import Training

        other, folder = neighbour_of(self.program), self.top / "neighbour"
        crash = ("raise last", max(1, other.steps - 1)) if self.program.number % 2 else None
        before = names_in(self.root)
        in_child(lambda: Training(other, self.root, folder).run(other, self._path("other"), crash, "train", True))
        add_neighbour(self.root, before)

    def crash_and_resume(self) -> None:
        """Run all calls, as long as they crash."""
        if self.program.neighbour in ("sweep before", "numbered", "same before"):
            self.neighbour()
        if self.program.retry != "process":
            in_child(self._call_all)
            return
        for index in range(len(self.calls)):
            self._prepare(index)
            in_child(lambda index=index: self._call(index, None))
            if has_ended(self.program, self.legs()):
                break

    def _prepare(self, index: int) -> None:
        """Do what happens before a call."""
        if index == len(self.calls) - 1:
            if self.program.neighbour == "sweep between":
                self.neighbour()
            change_tree(self.program, self.root)

    def _call_all(self) -> None:
        from tests.support.program_training import Training

        training = Training(self.plain, self.root, self.top / "legs")
        for index in range(len(self.calls)):
            self._prepare(index)
            self._call(index, training)
            if has_ended(self.program, self.legs()):
                break

    def _call(self, index: int, training: object) -> None:
        from tests.support.program_training import Training

        which, crash, how = self.calls[index]
        if not isinstance(training, Training):
            training = Training(which, self.root, self.top / "legs")
        training.run(which, self._path(f"leg{index}"), crash, how, self.program.retry != "same")


def run_program(program: Program, top: Path) -> dict[str, object]:
    """Run a program undisturbed, then crashed and resumed; return the verdict and what led to it."""
    run = Run(program, top)
    os.chdir(top)  # MindSpore writes rewritten networks and graphs that failed to where it runs
    alone = run.alone()
    if not alone.ended:
        return _found("not judged", f"does not train: {alone.error}")
    run.crash_and_resume()
    legs = run.legs()
    seen, differences = see(program, alone, legs, touched_neighbour(run.root, program))
    found = {
        "marks": marks_of(program),
        "seen": asdict(seen),
        "steps": [[leg.first, leg.committed] for leg in legs],
        "differs": [one for one in differences if one is not None],
    }
    if len(legs) <= len(program.crashes) and legs[-1].ended and seen.equal:
        return _found("not judged", "ended before it crashed", **found)
    if seen.refusal is not None and program.change == "newest flipped" and len(own_manifests(run.root, program)) <= 1:
        return _found("not judged", "the only slice is damaged", **found)
    verdict = verdict_of(program, seen)
    if verdict.kind == "silent" and not seen.equal:
        found["repeats"] = run.repeats(alone)
        verdict = verdict_of(program, replace(seen, repeats=found["repeats"]))
    return _found(verdict.kind, verdict.why, verdict.undeserved, **found)


def _found(kind: str, why: str, undeserved: tuple[str, ...] = (), **more: object) -> dict[str, object]:
    return {"verdict": kind, "why": why, "undeserved": undeserved, **more}


def import_all() -> None:
    """Import what a training imports, once for all processes."""
    import mindspore as ms

    ms.set_device("CPU")
    import ms_recover.training

    names = [one.name for one in pkgutil.iter_modules(ms_recover.training.__path__, "ms_recover.training.")]
    theirs = ["asttokens.astroid_compat", "asttokens.mark_tokens", "mindspore.graph._parse.compile_config"]
    for name in [*names, *theirs, "ms_recover.formats.manifest_json", "tests.support.program_training"]:
        importlib.import_module(name)


def run_all(top: Path, numbers: Iterable[int], results: Path) -> None:
    """Run programs by their numbers; append a line for each."""
    with results.open("a", buffering=1) as file:
        for number in numbers:
            program = draw_program(number)
            folder = Path(tempfile.mkdtemp(dir=top, prefix=f"{number}-"))
            found = {
                "number": number,
                "digest": program.digest,
                **run_program(program, folder),
                "program": str(program),
            }
            file.write(json.dumps(found) + "\n")
            os.chdir(top)
            if found["verdict"] != "silent" and not found["undeserved"]:
                shutil.rmtree(folder)


def main() -> int:
    """Run the programs that the command line names; return 0 when all is as it must be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("top", type=Path, help="folder for what the programs write; those that went wrong stay")
    parser.add_argument("--first", type=int, default=5000, help="number of the first program")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--numbers", type=int, nargs="*", help="these programs instead")
    parser.add_argument("--jobs", type=int, default=1, help="programs at the same time")
    parser.add_argument("--exact", type=Path, help="file of programs that were exact, none of which may be refused")
    parser.add_argument("--record", type=Path, help="file to write those to that are exact now")
    options = parser.parse_args()
    options.top = options.top.absolute()
    options.top.mkdir(parents=True, exist_ok=True)
    results = options.top / "results.jsonl"
    results.unlink(missing_ok=True)
    numbers = options.numbers or list(range(options.first, options.first + options.count))
    import_all()
    workers = []
    for job in range(options.jobs):
        process = os.fork()
        if not process:
            code = 1
            try:
                run_all(options.top, numbers[job :: options.jobs], results)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        workers.append(process)
    failed = [os.waitpid(worker, 0)[1] for worker in workers]
    found = sorted((json.loads(line) for line in results.read_text().splitlines()), key=lambda one: one["number"])
    if options.record:
        options.record.write_text(json.dumps(exact_of(found), indent=0) + "\n")
    before = json.loads(options.exact.read_text()) if options.exact else {}
    problems = problems_of(found, before)
    print("\n".join([*summary_of(found), *problems]))
    return 1 if problems or any(failed) else 0


if __name__ == "__main__":
    sys.exit(main())
