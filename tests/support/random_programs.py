"""Programs that train, crash and resume, drawn at random: what they are made of, and what may keep them from going on
exactly.

Pure; `tests.support.program_parts` builds them with MindSpore and `tests.support.program_runs` runs them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

NETWORKS = ("mlp", "norm", "embedding", "bank", "dropout", "noise")
OPTIMIZERS = ("SGD", "Momentum", "Adam", "AdamWeightDecay", "RMSProp", "Adagrad", "AdaMax", "FTRL")
SCHEDULES = ("constant", "list", "cosine", "groups")
STEPS = ("plain", "scaled", "accumulated")
SOURCES = ("rows", "arrays", "generator", "sampler", "epochs")
SHUFFLES = ("none", "seeded", "buffer", "unseeded")
OPERATIONS = ("repeat", "skip", "map", "concat", "flip", "draw")
CALLBACKS = (
    *("LossMonitor", "TimeMonitor", "History", "EarlyStopping", "ReduceLROnPlateau", "LearningRateScheduler"),
    *("Clip", "Average", "AverageWithState", "Every", "EveryWithState", "AtBegin", "AtEnd"),
    *("NumpyNoise", "PythonNoise", "TensorNoise"),
)
RATE_CALLBACKS = frozenset(("ReduceLROnPlateau", "LearningRateScheduler"))
"""They take the learning rate for one parameter of the model's optimizer."""
CRASHES = ("raise first", "raise last", "kill", "stop", "source")
RETRIES = ("process", "model", "same")
"""A new process; a new model in the same process; the same model, callbacks and dataset once more."""
CHANGES = (
    *("batch halved", "batch doubled", "dataset longer", "dataset shorter", "seed", "optimizer", "wider", "frozen"),
    *("newest flipped", "newest gone", "format", "save_steps", "async", "more epochs", "abandoned"),
)

BY_PARAMETERS = r"slice lacks|does not fit|not used|parameter"
REASONS = {
    "batch halved": r"steps|batch|dataset",
    "batch doubled": r"steps|batch|dataset",
    "dataset longer": r"steps|dataset",
    "dataset shorter": r"steps|dataset",
    "seed": r"seed",
    "optimizer": BY_PARAMETERS,
    "wider": BY_PARAMETERS,
    "frozen": BY_PARAMETERS,
    "unseeded": r"seed|shuffl",
    "flip": r"fast_recovery|random",
    "draw": r"Python|random|generator",
    "epochs": r"own code keeps",
    "dropout": r"[Dd]ropout|random",
    "noise": r"random|StandardNormal|Normal|seed",
    "TensorNoise": r"random|seed|operator",
    "RMSProp": r"RMSProp",
    "Average": r"Average",
    "Every": r"Every",
}
"""What keeps a program from going on exactly, and what a message must say of it."""

REFUSED = frozenset(("batch halved", "batch doubled", "dataset longer", "dataset shorter", "optimizer", "wider"))
"""Changes with which nothing may be trained."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training that crashes and resumes."""

    number: int
    mode: str
    network: str
    optimizer: str
    schedule: str
    step: str
    source: str
    shuffle: str
    operations: tuple[str, ...]
    fast_recovery: bool
    batch: int
    batches: int
    remainder: bool
    epochs: int
    callbacks: tuple[str, ...]
    """The one that saves among them, as "save"."""
    format: str
    asynchronous: bool
    save_steps: int | None
    begins: str
    """How the first training is called: ``train``, or ``recover`` with ``fresh="start"``."""
    crashes: tuple[tuple[str, int], ...]
    """Kinds, and cumulative steps: what happens at the end of that step."""
    retry: str
    change: str
    """Between the crash and the last resume."""

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch, before the change."""
        rows = self.batch * self.batches + (1 if self.remainder else 0) - ("skip" in self.operations)
        rows *= 2 ** (("repeat" in self.operations) + ("concat" in self.operations))
        return -(-rows // self.batch) if self.remainder else rows // self.batch

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.epoch_steps

    def __str__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return " ".join(f"{name}={value!r}" for name, value in shown.items())


def draw_program(number: int) -> Program:
    """Return the program of a number; the same each time."""
    random = Random(number)
    pick = random.choice
    mode = pick(("graph", "pynative"))
    source = random.choices(SOURCES, (8, 4, 3, 3, 1))[0]
    shuffle = random.choices(SHUFFLES, (2, 4, 2, 1))[0]
    if source in ("generator", "epochs") and shuffle == "seeded":
        shuffle = "buffer"  # a generator has no order of its own to shuffle
    operations = tuple(sorted(random.sample(OPERATIONS[:4], random.choice((0, 0, 1, 2)))))
    operations += tuple(name for name, share in (("flip", 0.15), ("draw", 0.04)) if random.random() < share)
    callbacks = [name for name in CALLBACKS if random.random() < (0.03 if name in REASONS else 0.12)]
    random.shuffle(callbacks)
    callbacks.insert(random.randrange(len(callbacks) + 1), "save")
    drawn = Program(
        number=number,
        mode=mode,
        network=random.choices(NETWORKS, (8, 5, 5, 5, 1, 1))[0],
        optimizer=pick(OPTIMIZERS),
        schedule=pick(SCHEDULES),
        step=random.choices(STEPS, (4, 1, 2))[0],
        source=source,
        shuffle=shuffle,
        operations=operations,
        fast_recovery=random.random() < 0.6,
        batch=pick((2, 4)),
        batches=random.randint(3, 5),
        remainder=random.random() < 0.15,
        epochs=random.randint(2, 4),
        callbacks=tuple(callbacks),
        format=pick(("ckpt", "safetensors")),
        asynchronous=random.random() < 0.4,
        save_steps=random.choice((None, 1, 2, 3)),
        begins=random.choices(("train", "recover"), (3, 1))[0],
        crashes=(),
        retry=random.choices(RETRIES, (4, 1, 3))[0],
        change=random.choice(CHANGES) if random.random() < 0.45 else "none",
    )
    return _with_crashes(_possible(drawn), random)


def _possible(program: Program) -> Program:
    """Return the program without what cannot go together."""
    if program.change == "seed" and program.shuffle not in ("seeded", "buffer"):
        program = replace(program, change="none")
    if program.change in ("dataset shorter", "batch doubled") and program.batches < 4:
        program = replace(program, batches=4)
    if program.change != "none" and program.retry == "same":
        program = replace(program, retry="model")
    if program.optimizer == "FTRL":
        program = replace(program, schedule="constant")  # it takes no other
    if not RATE_CALLBACKS.isdisjoint(program.callbacks):
        program = replace(program, schedule="constant", step="plain")
    if program.remainder and program.mode == "graph":
        program = replace(program, remainder=False)  # the network would be compiled anew for the last batch
    return program


def _with_crashes(program: Program, random: Random) -> Program:
    """Return the program with one crash or two, behind the first save."""
    first = (program.save_steps or program.epoch_steps) + 1
    if first >= program.steps:
        program = replace(program, save_steps=1)
        first = 2
    times = sorted(random.sample(range(first, program.steps), min(random.choice((1, 1, 2)), program.steps - first)))
    kinds = [kind for kind in CRASHES if program.retry == "process" or kind != "kill"]
    if program.source not in ("rows", "sampler"):
        kinds.remove("source")
    return replace(program, crashes=tuple((random.choice(kinds), at) for at in times))


def reasons_of(program: Program) -> Mapping[str, re.Pattern[str]]:
    """Return what may keep the program from going on exactly, each with what a message must say of it.

    A program without any must go on to the bit.
    """
    present = {program.change, program.network, program.optimizer, program.shuffle, program.source, *program.callbacks}
    present.update(program.operations)
    if not program.fast_recovery:
        present.discard("flip")
    return {name: re.compile(pattern) for name, pattern in REASONS.items() if name in present}


def verdict_of(
    program: Program, *, equal: bool, refusal: str | None, warnings: tuple[str, ...], trained: bool
) -> tuple[str, bool]:
    """Return the verdict on a resumed program, and whether it is one that is allowed.

    Parameters
    ----------
    program
        The program.
    equal
        Whether every step behind the resume, and what is left at the end, is that of the undisturbed run.
    refusal
        The text of the error with which the resume was refused.
    warnings
        What was said at WARNING while resuming.
    trained
        Whether a step was trained although it was refused.
    """
    reasons = reasons_of(program)
    if refusal is not None:
        said = [name for name, pattern in reasons.items() if pattern.search(refusal)]
        return f"refused: {', '.join(said) or refusal}", bool(said) and not trained
    if equal:
        return "equal", REFUSED.isdisjoint(reasons)
    said = [name for name, pattern in reasons.items() if any(pattern.search(line) for line in warnings)]
    return (f"warned: {', '.join(said)}", REFUSED.isdisjoint(said)) if said else ("SILENT", False)
