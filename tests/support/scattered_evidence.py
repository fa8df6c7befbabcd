"""Trees whose rank lists, strategy files and manifests lie on few ranks each, so that losing these loses them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from tests.support.law_files import make, path_of
from tests.support.law_network import Job, random_job
from tests.support.law_scenes import Fault, Scene

EVERYWHERE, FEW, NOWHERE = "everywhere", "few", "nowhere"
WHERE = (EVERYWHERE, FEW, FEW, FEW, FEW, FEW, NOWHERE)
DAMAGE = ("lost directory", "lost directory", "lost slice", "cut")
MOST_HOSTS = 5


@dataclass(frozen=True, kw_only=True)
class ScatteredTree:
    """A job whose evidence is right and lies on few ranks, and where its ranks live.

    Parameters
    ----------
    seed : int
        Of everything.
    job : Job
    scene : Scene
        Where every rank has all evidence.
    lists, strategies, manifests : frozenset of int
        The ranks that have a rank list, a strategy file, manifests.
    hosts : tuple of str
        The host of each rank.
    """

    seed: int
    job: Job
    scene: Scene
    lists: frozenset[int]
    strategies: frozenset[int]
    manifests: frozenset[int]
    hosts: tuple[str, ...]

    @property
    def options(self) -> PlanOptions:
        """The options of plan and audit."""
        return self.scene.options

    @classmethod
    def of(cls, seed: int) -> ScatteredTree:
        """Return the tree of a seed."""
        source = Random(f"scattered {seed}")
        job = random_job(source, f"scattered {seed}")
        faults = tuple(
            Fault(kind=source.choice(DAMAGE), rank=source.randrange(job.size), step=source.choice(job.steps))
            for _ in range(source.choice((0, 0, 0, 0, 1, 1, 2)))
        )
        order = list(range(job.size))
        if source.random() < 0.5:
            source.shuffle(order)
        count = source.randint(min(2, job.size), min(job.size, MOST_HOSTS))
        return cls(
            seed=seed,
            job=job,
            scene=Scene(job=job, faults=faults, manifests="saved", options=_options(source, job)),
            lists=_where(source, job),
            strategies=_where(source, job),
            manifests=_where(source, job) if source.random() < 0.6 else frozenset(),
            hosts=tuple(f"host{order[rank] % count}" for rank in range(job.size)),
        )

    def make(self, root: Path) -> None:
        """Write it."""
        make(self.scene, root)
        for rank in range(self.job.size):
            folder = root / f"ckpt_dir{rank}"
            if rank not in self.lists:
                (folder / "group_info.pb").unlink(missing_ok=True)
            if rank not in self.strategies:
                (folder / "strategy.ckpt").unlink(missing_ok=True)
            for step in self.job.steps if rank not in self.manifests else ():
                (root / f"{path_of(rank, step)}{MANIFEST_SUFFIX}").unlink(missing_ok=True)

    def differs(self, now: Step | None, audited: Step | None, planned: Step | None) -> bool:
        """Whether an audit's verdict on a loss is another one than that of a plan after it, `now` being that before it.

        The exceptions are those of docs/audit.md: which older step is left rests on structure where no manifests state
        contents, and a slice without the manifest that others have is no holder, also where these are lost with it.
        """
        everywhere = len(self.manifests) == self.job.size
        if not everywhere and now not in (audited, planned):
            return False
        stricter = audited is None or (planned is not None and audited < planned)
        return audited != planned and not (stricter and self.manifests and not everywhere)


def _options(source: Random, job: Job) -> PlanOptions:
    tolerate = ("bn.*",) if source.random() < 0.2 else ()
    return PlanOptions(world_size=job.size, quick=source.random() < 0.15, tolerate=tolerate)


def _where(source: Random, job: Job) -> frozenset[int]:
    """Return the ranks that have something: all, few, often one of a set of replicas or of a stage, or none."""
    kind, ranks = source.choice(WHERE), range(job.size)
    if kind == EVERYWHERE:
        return frozenset(ranks)
    if kind == NOWHERE:
        return frozenset()
    by = source.random()
    if by < 0.4:
        return frozenset(source.choice(group) for group in set(job.groups.values()))
    if by < 0.7:
        return frozenset(source.randrange(first, first + job.devices) for first in ranks[:: job.devices])
    return frozenset(source.sample(ranks, source.randint(1, max(1, job.size // 2))))
