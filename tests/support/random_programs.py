"""Programs that train, crash and resume, drawn at random: what they are made of.

Pure; `tests.support.program_causes` knows what may keep one from going on exactly, `tests.support.program_parts` builds
them with MindSpore and `tests.support.program_runs` runs them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random


def shares(text: str) -> dict[str, float]:
    """Return the names of a list, each with the number behind it: how often, beside the others, or how probably."""
    return {name: float(share) for name, _, share in (one.rpartition(" ") for one in text.split(", "))}


TRAINERS = shares("model 8, loop 1")
MODES = shares("graph 1, pynative 1")
NETWORKS = shares(
    "mlp 9, norm 5, embedding 4, bank 4, buffer 1.4, quiet buffer 0.1, dropout 0.25, noise 0.1, number 0.15, "
    "tensor 0.15, held 0.4, gan 0.3"
)
"""``buffer`` has a persistent one, ``quiet buffer`` one that is not; ``number`` and ``tensor`` change a plain attribute
of the cell, ``held`` a parameter of an object that is no cell; ``gan`` has two optimizers."""
PLAIN_ATTRIBUTES = frozenset(("number", "tensor"))
"""Only the interpreter executes what these do."""
OPTIMIZERS = shares(
    "Momentum 4, Adam 4, SGD 3, AdamWeightDecay 3, Adagrad 1, AdaMax 1, FTRL 1, LazyAdam 1, Rprop 1, ASGD 1, "
    "Adadelta 1, ProximalAdagrad 1, RMSProp 0.2"
)
SCHEDULES = shares("constant 4, list 3, cosine 2, groups 2")
"""The list has a rate for each step of the training, and no more."""
STEPS = shares("plain 7, scaled 1, accumulated 2, dynamic 0.5")
"""``scaled`` by a constant, ``dynamic`` by a scaler that is an attribute of the train cell."""
LEVELS = shares("O0 12, O3 1, auto 1")
SOURCES = shares(
    "rows 7, arrays 4, generator 2, sampler 3, text 1.4, csv 0.8, tfrecord 0.8, mindrecord 0.8, epochs 0.2, "
    "stream 0.25, counted 0.25, drawn out 0.25"
)
"""``epochs`` counts how often it was begun; ``stream`` reads on in an open file, ``counted`` from an iterator of the
module, ``drawn out`` from a generator object."""
READERS = frozenset(("text", "csv", "tfrecord", "mindrecord"))
"""MindSpore's own code makes their samples."""
ENDLESS = frozenset(("epochs", "stream", "counted", "drawn out"))
"""Each epoch has other samples."""
SHUFFLES = shares("none 3, seeded 6, buffer 2, unseeded 0.3")
OPERATIONS = shares("repeat 0.1, skip 0.1, map 0.15, concat 0.08, flip 0.07, per batch 0.05")
"""Each with its probability."""
PLACES = (
    *("module", "other module", "class", "instance", "closure", "default", "partial", "function", "slots"),
    *("file", "generator object", "module iterator", "large dict", "large array", "bytes", "queue", "cache"),
    *("environment", "disk", "numpy", "python"),
)
"""Where Python code keeps what the next sample depends on."""
OUTLIVING = frozenset(
    (
        *("module", "other module", "class", "default", "function", "module iterator", "large dict", "large array"),
        *("cache", "environment", "disk", "counted", "numpy", "python"),
    )
)
"""Places that a new dataset in the same process finds as the one before left them."""
CALLBACKS = shares(
    "LossMonitor 0.1, TimeMonitor 0.08, History 0.08, EarlyStopping 0.07, ReduceLROnPlateau 0.05, "
    "LearningRateScheduler 0.04, Clip 0.08, AverageWithState 0.08, EveryWithState 0.08, AtBegin 0.08, AtEnd 0.08, "
    "NumpyNoise 0.06, PythonNoise 0.06, TensorNoise 0.01, StepRate 0.06, Quiet 0.06, Every 0.0035, Average 0.0035, "
    "ClassCount 0.0035, ModuleCount 0.0035, ClosureCount 0.0035, DiskCount 0.0035, GeneratorCount 0.0035, "
    "SchedulerObject 0.0035, BeginWriter 0.004, BeginRate 0.004, BackupAndRestore 0.005, Freezer 0.006"
)
"""Each with its probability."""
WITHOUT_STATE = frozenset(
    (
        *("Every", "Average", "ClassCount", "ModuleCount", "ClosureCount", "DiskCount", "GeneratorCount"),
        *("SchedulerObject", "Freezer"),
    )
)
"""Callbacks without ``state_dict()`` that may need one."""
RATE_CALLBACKS = frozenset(("ReduceLROnPlateau", "LearningRateScheduler", "SchedulerObject", "BeginRate", "StepRate"))
"""They take the learning rate for one parameter of the model's optimizer."""
FAILURES = shares("raise first 4, raise last 4, stop 3, source 3")
"""What ends a training and lets its process live."""
NETWORK_FAILURES = shares("operator 1, assert 1, interrupt 1")
"""The same out of the network's own code."""
KILLS = shares("kill 6, commit 3, state 1.5, slice 1.5")
"""``commit``, ``state`` and ``slice``: just before a manifest, a state or a slice has its final name."""
IN_SAVES = frozenset(("commit", "state", "slice"))
RETRIES = shares("process 6, model 1, same 3")
"""A new process; a new model in the same process; the same model, callbacks and dataset once more."""
CHANGES = shares(
    "none 24, newest flipped 1.5, newest gone 1, format 2, save_steps 2, async 1.5, more epochs 3, rate 0.6, "
    "decay 0.12, betas 0.12, loss 0.12, level 0.12, content 0.5, seed 0.4, batch halved 0.1, batch doubled 0.1, "
    "dataset longer 0.15, dataset shorter 0.1, optimizer 0.15, wider 0.15, frozen 0.3"
)
"""Between the crash and the last resume. With ``more epochs`` a list of rates has as many more."""
SETTINGS = frozenset(("rate", "decay", "betas", "loss", "level"))
NEIGHBOURS = shares("none 30, sweep before 1, sweep between 2, numbered 1, same before 1.2, head 1")
"""Another training in the folder: of a sweep, finished before this one begins, or begun between its crash and its
resume; under a prefix that this one's begins; finished before under the same prefix; or in each start of this program
before its own."""
PREFIXES = shares("net 6, lr_0.01 1, resnet 1, resnet_50 1, net-1 0.5")
_OTHER_PREFIXES = {"lr_0.01": "lr_0.5", "resnet": "resnet_50", "resnet_50": "resnet", "net": "net_2", "net-1": "net"}


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training that crashes and resumes."""

    number: int
    trainer: str
    """``Model``, or a loop with `SliceSaver` and `resume`."""
    mode: str
    jit: bool
    """Whether the network is compiled in PyNative mode."""
    network: str
    optimizer: str
    schedule: str
    step: str
    level: str
    source: str
    shuffle: str
    operations: tuple[str, ...]
    place: str
    """Where Python code of the dataset keeps what samples depend on, or ``none``."""
    place_in: str
    """Whether that code is the ``source`` or a ``map``."""
    fast_recovery: bool
    batch: int
    batches: int
    remainder: bool
    epochs: int
    callbacks: tuple[str, ...]
    """The one that saves among them, as "save"."""
    iterators: str
    """Of a loop: one iterator for ``all`` epochs, or one an ``epoch``."""
    proves: bool
    """Of a loop: whether it has its samples compared."""
    format: str
    asynchronous: bool
    save_steps: int | None
    keep: int
    prefix: str
    neighbour: str
    begins: str
    """The first call: ``train``; ``recover`` with ``fresh="start"``, as all later ones then; or ``later``, with an
    `initial_epoch`."""
    crashes: tuple[tuple[str, int], ...]
    """Kinds, and cumulative steps: what happens at the end of that step, or in the first save from it on."""
    retry: str
    change: str
    """Between the crash and the last resume."""

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch, before the change."""
        rows = self.batch * self.batches + (1 if self.remainder else 0) - ("skip" in self.operations)
        rows *= 2 if "concat" in self.operations else 1
        batches = -(-rows // self.batch) if self.remainder else rows // self.batch
        return batches * (2 if "repeat" in self.operations else 1)

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.epoch_steps

    @property
    def initial_epoch(self) -> int:
        """Epochs that the first call passes over."""
        return int(self.begins == "later")

    @property
    def trained(self) -> int:
        """Steps that an undisturbed training trains."""
        return self.steps - self.initial_epoch * self.epoch_steps

    @property
    def compiled(self) -> bool:
        """Whether MindSpore compiles the network."""
        return self.mode == "graph" or self.jit

    @property
    def renames(self) -> bool:
        """Whether the second of two optimizers has names of its own."""
        return self.number % 2 == 0

    @property
    def gives_loss(self) -> bool:
        """Whether a loop gives its loss function to the saver, which is compared then."""
        return self.number % 2 == 0

    @property
    def digest(self) -> str:
        """A short name of all that was drawn."""
        return hashlib.blake2b(str(self).encode(), digest_size=6).hexdigest()

    def __str__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return " ".join(f"{name}={value!r}" for name, value in shown.items())


def draw_program(number: int) -> Program:
    """Return the program of a number; the same each time."""
    random = Random(number)

    def pick(shares: Mapping[str, float]) -> str:
        return random.choices(list(shares), list(shares.values()))[0]

    def some(shares: Mapping[str, float]) -> list[str]:
        return [name for name, share in shares.items() if random.random() < share]

    callbacks = some(CALLBACKS)
    random.shuffle(callbacks)
    callbacks.insert(random.randrange(len(callbacks) + 1), "save")
    drawn = Program(
        number=number,
        trainer=pick(TRAINERS),
        mode=pick(MODES),
        jit=random.random() < 0.2,
        network=pick(NETWORKS),
        optimizer=pick(OPTIMIZERS),
        schedule=pick(SCHEDULES),
        step=pick(STEPS),
        level=pick(LEVELS),
        source=pick(SOURCES),
        shuffle=pick(SHUFFLES),
        operations=tuple(some(OPERATIONS)),
        place=random.choice(PLACES) if random.random() < 0.07 else "none",
        place_in=random.choice(("source", "map")),
        fast_recovery=random.random() < 0.5,
        batch=random.choice((2, 4)),
        batches=random.randint(3, 5),
        remainder=random.random() < 0.12,
        epochs=random.choice((2, 2, 3)),
        callbacks=tuple(callbacks),
        iterators=random.choice(("all", "epoch")),
        proves=random.random() < 0.7,
        format=random.choice(("ckpt", "safetensors")),
        asynchronous=random.random() < 0.4,
        save_steps=random.choice((None, 1, 2, 3)),
        keep=random.choices((20, 2, 3), (3, 1, 1))[0],
        prefix=pick(PREFIXES),
        neighbour=pick(NEIGHBOURS),
        begins=random.choices(("train", "recover", "later"), (5, 3, 0.3))[0],
        crashes=(),
        retry=pick(RETRIES),
        change=pick(CHANGES),
    )
    return _with_crashes(_possible(drawn), random)


def _possible(program: Program) -> Program:
    """Return the program without what cannot go together."""

    def instead(**values: object) -> None:
        nonlocal program
        program = replace(program, **values)  # type: ignore[arg-type]

    if program.trainer == "loop":
        instead(callbacks=("save",), step="plain", level="O0", begins="recover")
        if program.neighbour in ("same before", "head"):
            instead(neighbour="none")
    if program.mode == "graph" or program.network in PLAIN_ATTRIBUTES or program.step == "dynamic":
        instead(jit=False)
    if program.mode == "graph" and program.network in PLAIN_ATTRIBUTES:
        instead(network="mlp")
    if program.network == "gan":
        instead(step="plain", level="O0", schedule="constant", optimizer="Adam", change="none", trainer="model")
    if program.step in ("accumulated", "dynamic"):
        instead(level="O0")
    if program.optimizer in ("FTRL", "Rprop", "ASGD", "Adadelta", "ProximalAdagrad"):
        instead(schedule="constant")
    if not RATE_CALLBACKS.isdisjoint(program.callbacks):
        instead(schedule="constant", step="plain")
        if program.network == "gan":
            instead(network="mlp")
    if program.begins == "later":
        instead(epochs=3)
    if program.source in READERS:
        instead(operations=tuple(one for one in program.operations if one not in ("concat", "flip")), place_in="map")
    if program.source in ENDLESS:
        instead(place="none", operations=(), remainder=False)
    if program.source in (*ENDLESS, "generator") and program.shuffle == "seeded":
        instead(shuffle="buffer")  # a generator has no order of its own to shuffle
    if program.source in ("arrays", "sampler") and program.place != "none":
        instead(place_in="map")
    if program.neighbour == "numbered" and program.prefix in ("lr_0.01", "net-1"):
        instead(prefix="resnet")
    if program.neighbour == "same before" and program.begins == "recover":
        instead(begins="train")  # it would be right to resume the other one
    if program.neighbour.startswith("sweep"):
        instead(prefix="lr_0.01", retry="process")
    if program.neighbour == "head":  # both trainings have the same module-level state
        instead(place="none", source="rows" if program.source in ENDLESS else program.source)
    if program.remainder and program.compiled:
        instead(remainder=False)  # the network would be compiled anew for the last batch
    return _with_possible_change(program)


def _with_possible_change(program: Program) -> Program:
    change = program.change
    if change == "seed" and program.shuffle not in ("seeded", "buffer"):
        change = "none"
    if change == "betas" and program.optimizer not in ("Adam", "LazyAdam", "AdamWeightDecay", "AdaMax"):
        change = "none"
    if change == "decay" and program.optimizer not in ("SGD", "Momentum", "Adam", "AdamWeightDecay"):
        change = "none"
    if change == "level" and (program.step in ("accumulated", "dynamic") or program.trainer == "loop"):
        change = "none"
    if change == "rate" and not RATE_CALLBACKS.isdisjoint(program.callbacks):
        change = "none"
    if change in ("dataset shorter", "batch doubled") and program.batches < 4:
        program = replace(program, batches=4)
    if change != "none" and program.retry == "same":
        program = replace(program, retry="model")
    return replace(program, change=change)


def _with_crashes(program: Program, random: Random) -> Program:
    """Return the program with one crash or two; where it may begin anew, also before or in the first save."""
    first = (program.save_steps or program.epoch_steps) + 1
    if first >= program.trained:
        program = replace(program, save_steps=1)
        first = 2
    begins_anew = program.begins == "recover" and program.neighbour == "none" and random.random() < 0.12
    earliest = 1 if begins_anew else first
    count = min(random.choices((1, 2), (3, 1))[0], program.trained - earliest)
    times = sorted(random.sample(range(earliest, program.trained), count))
    shares: dict[str, float] = dict(FAILURES)
    if program.source not in ("rows", "sampler"):
        del shares["source"]
    if program.trainer == "loop":
        shares = {"raise last": 1, "stop": 1}
    elif program.mode == "pynative" and not program.jit:
        shares |= NETWORK_FAILURES
    if program.retry == "process":
        shares |= KILLS
    kinds = [random.choices(list(shares), list(shares.values()))[0] for _ in times]
    crashes = [
        (kind, _before_a_save(program, at, earliest) if kind in IN_SAVES else at)
        for kind, at in zip(kinds, times, strict=True)
    ]
    return replace(program, crashes=tuple(crashes))


def _before_a_save(program: Program, at: int, earliest: int) -> int:
    """Return a step, `at` or earlier, behind which a save falls due."""
    last_due = program.trained - program.trained % (program.save_steps or program.epoch_steps)
    return max(min(at, last_due), earliest)


def as_saved(program: Program) -> Program:
    """Return the program with what its change does to its saves."""
    if program.change == "format":
        return replace(program, format="ckpt" if program.format == "safetensors" else "safetensors")
    if program.change == "save_steps":
        return replace(program, save_steps=2 if program.save_steps is None else None)
    if program.change == "async":
        return replace(program, asynchronous=not program.asynchronous)
    return program


def epochs_of(program: Program) -> int:
    """Return the epochs in total, after the change."""
    return program.epochs + (program.change == "more epochs")


def neighbour_of(program: Program) -> Program:
    """Return the other training in the folder of a program."""
    prefix = _OTHER_PREFIXES[program.prefix]
    if program.neighbour in ("head", "same before"):
        prefix = "head" if program.neighbour == "head" else program.prefix
    network = "mlp" if program.network == "gan" else program.network
    other = replace(program, number=program.number + 1, change="none", callbacks=("save",), neighbour="none")
    return replace(other, prefix=prefix, network=network, begins="train", crashes=(), save_steps=None, keep=20)
