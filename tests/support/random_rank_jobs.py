"""Jobs of several ranks that crash, lose something and resume, drawn at random: what they are made of.

Pure; `tests.support.rank_job_causes` knows what may keep one from going on exactly, `tests.support.rank_job_training`
is one rank of one, and `tests.support.rank_job_runs` runs them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from random import Random

from tests.support.random_programs import shares

SHARING = 4
"""So many jobs in a row train the same, so that one undisturbed training serves them all."""

TRAINERS = shares("model 6, loop 2, manifests 1.5")
"""``manifests``: MindSpore's ModelCheckpoint with `SliceManifests` beside it."""
MODES = shares("graph 1, pynative 1")
NETWORKS = shares("mlp 6, norm 1.5, bank 3, dropout 0.3")
DATA = shares("shards 5, own 2, same 2")
"""Each rank reads its shard, rows of its own, or all rows."""
SHUFFLES = shares("seeded 4, by rank 3, none 2")
"""``by rank``: with the seed and the rank added."""
NOISES = shares("none 6, numpy 1, python 1")
"""What the samples of each rank have added, from a generator of its own process."""
ODD = shares("none 12, one shard 1, unequal epochs 1")
"""What is wrong from the start: all ranks read shard 0, or the last one has fewer epochs of more steps."""
CRASHES = shares("raise 3, raise one 2, kill 3, file 4, stop 1")
"""All ranks raise, one does, one is killed behind a step, or at a call to the file system; or training is asked to
stop."""
LOSSES = shares(
    "none 4, folder 5, newest 2, slice 2, state 2, manifest 2, two steps 1.5, other experiment 1.5, older copy 1.5, "
    "flipped 1.5, flipped state 1"
)
"""Of one rank: its folder; the newest slice with what lies beside it; that slice alone; its state; its manifest; two
steps; a folder of another experiment instead; one with the oldest step alone; and a byte."""
ARGUMENTS = shares(
    "none 24, run 1, variable 1, ckpt_file 1, rank_local 0.5, epochs 0.5, saver 1, save_steps 1, keep 0.5, "
    "asynchronous 1, format 1, prefix 1"
)
"""What one rank has otherwise: at the resume, or from the start."""
AT_RESUME = frozenset(("run", "variable", "ckpt_file", "rank_local", "epochs"))
Crash = tuple[str, int, int, int]
"""Kind, rank, step of the whole training, and which call to the file system behind that step."""
CHANGES = shares("none 24, shard 0 1.5, shards swapped 1, seed 1, more epochs 1.5, format 1, asynchronous 1")
"""Between the crash and the last start, on all ranks."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """What a job trains."""

    ranks: int
    trainer: str
    mode: str
    network: str
    data: str
    shuffle: str
    noise: str
    callback: bool
    """Whether each rank has a callback with a state of its own; a loop gives its own `extra` to each save."""
    batch: int
    batches: int
    epochs: int
    seed: int
    odd: str = "none"

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.batches * self.epochs

    def epochs_of(self, rank: int) -> tuple[int, int]:
        """Return the steps of an epoch of a rank, and how many epochs it has."""
        unequal = self.odd == "unequal epochs" and rank == self.ranks - 1
        return (self.epochs, self.batches) if unequal else (self.batches, self.epochs)

    @property
    def saves_states(self) -> bool:
        """Whether slices have a state beside them."""
        return self.trainer != "manifests"


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """A job that crashes, loses something and resumes."""

    number: int
    base: Base
    format: str
    asynchronous: bool
    save_steps: int | None
    keep: int
    begins: str
    """The first start: ``train``, or ``recover`` with ``fresh="start"`` as all later ones."""
    crashes: tuple[Crash, ...]
    lost: str
    lost_by: int
    argument: str
    argument_of: int
    change: str
    skew: tuple[float, ...]
    """Seconds that the clock of each rank is ahead."""

    @property
    def digest(self) -> str:
        """A short name of all that was drawn."""
        return hashlib.blake2b(str(self).encode(), digest_size=6).hexdigest()

    def __str__(self) -> str:
        parts = [(name, getattr(one, name)) for one in (self.base, self) for name in one.__dataclass_fields__]
        return " ".join(f"{name}={value!r}" for name, value in parts if name != "base")

    @property
    def is_plain(self) -> bool:
        """Whether the ranks train alike but for their samples, with the same arguments, and nothing is changed."""
        base = self.base
        own = base.network == "bank" or base.callback or base.noise != "none" or base.shuffle == "by rank"
        own = own or base.odd != "none"
        alike = not own and base.network != "dropout" and base.saves_states and base.data != "own"
        return alike and self.argument == "none" and self.change in ("none", "format", "asynchronous")


def draw_job(number: int, ranks: int | None = None) -> RankJob:
    """Return the job of a number, the same each time; of so many `ranks`, where that is said."""
    base = _draw_base(Random(number // SHARING), ranks)
    random = Random(10**6 + number)

    def pick(shares: Mapping[str, float]) -> str:
        return random.choices(list(shares), list(shares.values()))[0]

    job = RankJob(
        number=number,
        base=base,
        format=random.choice(("ckpt", "safetensors")),
        asynchronous=random.random() < 0.4,
        save_steps=random.choice((None, 1, 2, 2)),
        keep=random.choice((2, 3, 20)),
        begins=random.choice(("train", "recover")),
        crashes=(),
        lost=pick(LOSSES),
        lost_by=random.randrange(base.ranks),
        argument=pick(ARGUMENTS),
        argument_of=random.randrange(base.ranks),
        change=pick(CHANGES),
        skew=tuple(random.choice((0.0, 0.0, 0.0, -3600.0, 90.0)) for _ in range(base.ranks)),
    )
    return _with_crashes(_possible(job), random)


def _draw_base(random: Random, ranks: int | None) -> Base:
    def pick(shares: Mapping[str, float]) -> str:
        return random.choices(list(shares), list(shares.values()))[0]

    drawn = Base(
        ranks=random.choices((2, 4), (6, 1))[0],
        trainer=pick(TRAINERS),
        mode=pick(MODES),
        network=pick(NETWORKS),
        data=pick(DATA),
        shuffle=pick(SHUFFLES),
        noise=pick(NOISES),
        callback=random.random() < 0.35,
        batch=2,
        batches=random.choice((3, 4)),
        epochs=2,
        seed=random.randrange(1000),
    )
    drawn = replace(drawn, ranks=drawn.ranks if ranks is None else ranks)
    if drawn.trainer == "manifests":
        drawn = replace(drawn, noise="none", callback=False)
    odd = pick(ODD)
    if odd == "one shard":
        drawn = replace(drawn, data="shards")
    elif odd == "unequal epochs":
        drawn = replace(drawn, data="own", batches=3, epochs=4)
    return replace(drawn, odd=odd)


def _possible(job: RankJob) -> RankJob:
    """Return the job without what cannot go together."""
    base = job.base
    shards = base.data == "shards" and base.odd == "none"
    changes = {"shard 0": shards, "shards swapped": shards, "more epochs": base.odd != "unequal epochs"}
    changes["seed"] = base.shuffle != "none"
    changes["asynchronous"] = base.trainer != "manifests"
    if not changes.get(job.change, True):
        job = replace(job, change="none")
    if base.trainer == "manifests" and job.argument in ("saver", "save_steps", "keep", "prefix"):
        job = replace(job, argument="none")  # MindSpore's callback saves without the others
    if job.argument == "epochs" and (base.trainer == "loop" or base.odd == "unequal epochs"):
        job = replace(job, argument="none")
    if not base.saves_states and job.lost in ("state", "flipped state"):
        job = replace(job, lost="slice")
    return job


def _with_crashes(job: RankJob, random: Random) -> RankJob:
    first = (job.save_steps or job.base.batches) + 1
    last = job.base.steps - 1
    if first > last:
        job = replace(job, save_steps=1)
        first = 2
    count = min(random.choices((1, 2), (3, 1))[0], last - first + 1)
    crashes = []
    for step in sorted(random.sample(range(first, last + 1), count)):
        kind = random.choices(list(CRASHES), list(CRASHES.values()))[0]
        if kind == "stop" and job.base.trainer == "manifests":
            kind = "raise"
        crashes.append((kind, random.randrange(job.base.ranks), step, random.randint(1, 16)))
    return replace(job, crashes=tuple(crashes))
