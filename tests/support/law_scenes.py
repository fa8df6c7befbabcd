"""Random scenes of jobs of `tests.support.law_network`: evidence, right or not, faults, and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from tests.support.law_network import Job, random_job

RIGHT, MISSING, SOME, OTHER_JOB, OTHER_SIZE, MIXED = "right", "missing", "some", "other job", "other size", "mixed"
STRATEGIES = (RIGHT,) * 5 + (MISSING,) * 2 + (SOME,) * 2 + (OTHER_JOB,) * 3 + (OTHER_SIZE, MIXED)
LISTS = (RIGHT,) * 6 + (MISSING,) * 3 + (SOME,) * 2 + (OTHER_JOB, OTHER_SIZE, MIXED)
MANIFESTS = ("saved",) * 4 + ("none",) * 4 + ("sealed",) * 2 + ("saved on some", "sealed on some")
FAULTS = (
    ("lost directory",) * 6
    + ("lost slice",) * 3
    + ("flip",) * 4
    + ("cut", "stale", "misplaced", "another run", "emptied", "flipped before saving", "one counter")
)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One thing that struck a slice, or a rank's directory."""

    kind: str
    rank: int
    step: Step
    other: int = 0
    seed: int = 0
    names: tuple[str, ...] = ()
    """Parameters one of which a flip strikes; empty for any."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A tree before it is written: a job, what lies beside its slices, what struck it, and the operator's options.

    Parameters
    ----------
    job : Job
        The truth.
    strategies, lists, manifests : str
        What lies in the tree of each.
    foreign : dict of int to Strategy
        Strategy files of another job or size, by stage.
    foreign_groups : dict of int to tuple of int
        Rank lists of another job or size.
    without : frozenset of int
        Ranks that have none of what lies on some ranks only, or the wrong one where right and wrong are mixed.
    known_when_saved : bool
        Strategy files and rank lists were right when training saved.
    sealed_first : bool
        The tree was sealed before what lies there was replaced.
    faults : tuple of Fault
        In the order in which they struck.
    options : PlanOptions
        Of every verb.
    """

    job: Job
    faults: tuple[Fault, ...]
    strategies: str = RIGHT
    lists: str = RIGHT
    manifests: str = "none"
    foreign: Mapping[int, Strategy] = field(default_factory=dict)
    foreign_groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    without: frozenset[int] = frozenset()
    known_when_saved: bool = True
    sealed_first: bool = False
    options: PlanOptions = DEFAULT_PLAN
    seed: int = 0

    @property
    def strategies_right(self) -> bool:
        """Whether no strategy file in the tree is wrong."""
        return self.strategies in (RIGHT, MISSING, SOME)

    @property
    def lists_right(self) -> bool:
        """Whether no rank list in the tree is wrong."""
        return self.lists in (RIGHT, MISSING, SOME)

    def has(self, what: str, rank: int) -> str | None:
        """Return whether the ``strategies`` or ``lists`` beside a rank's slices are right or wrong; None without."""
        kind = self.strategies if what == "strategies" else self.lists
        if kind == MISSING or (kind == SOME and rank in self.without):
            return None
        wrong = kind in (OTHER_JOB, OTHER_SIZE) or (kind == MIXED and rank in self.without)
        return "wrong" if wrong else RIGHT


def random_scene(seed: int) -> Scene:
    """Return the scene of a seed."""
    source = Random(f"law {seed}")
    job = random_job(source, f"law {seed}")
    ranks = range(job.size)
    strategies, lists = source.choice(STRATEGIES), source.choice(LISTS)
    if source.random() < 0.6:  # most trees have one thing wrong
        strategies, lists = (strategies, RIGHT) if source.random() < 0.5 else (RIGHT, lists)
    without = frozenset(rank for rank in ranks if source.random() < 0.4)
    faults = tuple(_fault(source, job) for _ in range(source.choice((1, 1, 1, 2, 2, 3, 4, 5))))
    lost = frozenset([source.choice([one.rank for one in faults] + list(ranks))]) if source.random() < 0.12 else ()
    options = PlanOptions(
        quick=source.random() < 0.15,
        newest=source.random() < 0.05,
        lost=frozenset(lost),
        world_size=job.size if source.random() < 0.7 else None,
    )
    return Scene(
        seed=seed,
        job=job,
        strategies=strategies,
        lists=lists,
        manifests=source.choice(MANIFESTS),
        foreign=_foreign_strategies(source, job, strategies),
        foreign_groups=_foreign_groups(source, job, lists),
        without=without,
        known_when_saved=source.random() < 0.7,
        sealed_first=source.random() < 0.5,
        faults=faults,
        options=options,
    )


def _fault(source: Random, job: Job) -> Fault:
    rank = source.randrange(job.size)
    others = [one for one in range(job.size) if one != rank]
    step = job.steps[-1] if source.random() < 0.7 else source.choice(job.steps)
    return Fault(
        kind=source.choice(FAULTS), rank=rank, step=step, other=source.choice(others), seed=source.randrange(1 << 30)
    )


def _foreign_strategies(source: Random, job: Job, kind: str) -> dict[int, Strategy]:
    """Return the strategy files of a job that has the same names and is cut otherwise."""
    if kind == OTHER_SIZE:
        matrix = source.choice(((job.data * 2, job.model), (job.data, job.model * 2), (job.data * job.model * 2,)))
        change: Callable[[Layout], Layout] = lambda one: replace(  # noqa: E731
            one, device_matrix=matrix, tensor_map=((0,), ()), opt_shard_size=0, opt_shard_step=0
        )
    else:
        change = source.choice((uncut, cut_over_data, turned))
    alone = source.random() < 0.3 and kind != OTHER_SIZE
    found = {}
    for stage in range(job.stages):
        right = job.strategy(stage)
        chosen = source.choice(right.layouts).parameter
        layouts = tuple(change(one) if not alone or one.parameter == chosen else one for one in right.layouts)
        found[stage] = replace(right, layouts=layouts)
    return found


def uncut(layout: Layout) -> Layout:
    return replace(layout, tensor_map=((), ()), opt_shard_size=0, opt_shard_step=0)


def cut_over_data(layout: Layout) -> Layout:
    return replace(layout, tensor_map=((1,), ()), opt_shard_size=0, opt_shard_step=0)


def turned(layout: Layout) -> Layout:
    return replace(layout, device_matrix=layout.device_matrix[::-1], opt_shard_size=0, opt_shard_step=0)


def _foreign_groups(source: Random, job: Job, kind: str) -> dict[int, tuple[int, ...]]:
    size = job.size * 2 if kind == OTHER_SIZE else job.size
    count = source.choice([one for one in range(1, size + 1) if size % one == 0])
    if source.random() < 0.5:
        return {rank: tuple(range(rank // count * count, rank // count * count + count)) for rank in range(job.size)}
    return {rank: tuple(range(rank % count, size, count)) for rank in range(job.size)}
