"""The law of `audit`: the loss of some hosts is fatal exactly when a plan fails after their files are deleted.

``python -m tests.support.audit_law 0:1000`` tries it on the trees of some seeds, each with every loss of up to three
hosts.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from ms_recover import api
from ms_recover.errors import MsRecoverError
from ms_recover.model.options import AuditOptions
from ms_recover.model.topology import Topology
from ms_recover.verbs.audit import audit
from ms_recover.verbs.session import Session
from tests.support.law_files import make
from tests.support.law_scenes import Fault, Scene, random_scene

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
GONE = ("lost directory", "lost slice", "cut", "emptied")
DIFFERING = ("flip", "flip", "flipped before saving", "stale", "misplaced", "another run", "one counter")
MOST_HOSTS = 5
MOST_LOST = 3


@dataclass
class Tried:
    """What became of one tree.

    Parameters
    ----------
    differing : bool
        Its slices differ.
    losses, fatal, more : int
        How many losses were compared, after how many of them the plan fails, and after how many it reads slices, such
        as those of older steps, that no plan of the tree reads as it is.
    violations : tuple of str
        What contradicts the law.
    """

    differing: bool
    losses: int = 0
    fatal: int = 0
    more: int = 0
    violations: tuple[str, ...] = ()


def scene_of(seed: int) -> Scene:
    """Return the scene of a seed: of each third one slices differ at the newest step, of the others some are gone."""
    scene, source = random_scene(seed), Random(f"audit {seed}")
    ranks, steps = range(scene.job.size), scene.job.steps
    kinds = DIFFERING if seed % 3 == 0 else GONE
    faults = []
    for _ in range(source.choice((1, 1, 2, 3) if seed % 3 == 0 else (0, 0, 1, 1, 2))):
        rank = source.choice(ranks)
        step = steps[-1] if source.random() < 0.7 else source.choice(steps)
        other = source.choice([one for one in ranks if one != rank])
        faults.append(
            Fault(kind=source.choice(kinds), rank=rank, step=step, other=other, seed=source.randrange(1 << 30))
        )
    return replace(scene, faults=tuple(faults), options=replace(scene.options, world_size=scene.job.size))


def hosts_of(seed: int, ranks: int) -> tuple[str, ...]:
    """Return a host for each rank."""
    source = Random(f"hosts {seed}")
    order = list(range(ranks))
    if source.random() < 0.5:
        source.shuffle(order)
    count = source.randint(min(2, ranks), min(ranks, MOST_HOSTS))
    return tuple(f"host{order[rank] % count}" for rank in range(ranks))


def try_law(seed: int, most: int | None = None) -> Tried | None:
    """Compare the audit of a tree with plans after losses, all or `most` of them; None where no plan recovers it."""
    scene = scene_of(seed)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = Path(folder) / "tree"
        make(scene, root)
        recovers, known = _plan(root, scene)
        if not recovers:
            return None
        topology = Topology(("host",), (hosts_of(seed, scene.job.size),), "the law")
        found = audit(api.scan(root), scene.options, topology, AuditOptions(losses=MOST_LOST))
        tried = Tried(differing=seed % 3 == 0)
        losses = [*found.levels[0].singles, *found.pairs, *found.chosen]
        for loss in losses if most is None else Random(seed).sample(losses, min(most, len(losses))):
            with _without(root, loss.ranks):
                recovers, read = _plan(root, scene)
            tried.losses += 1
            tried.fatal += not recovers
            tried.more += bool(read - known)
            if recovers is loss.fatal:
                verdict = f"{'fatal' if loss.fatal else 'not fatal'} by audit ({loss.reason})"
                text = f"seed {seed}: the loss of ranks {list(loss.ranks)} is {verdict}"
                tried.violations += (f"{text}, and the plan {'recovers' if recovers else 'fails'}",)
    return tried


def _plan(root: Path, scene: Scene) -> tuple[bool, frozenset[str]]:
    """Return whether a plan recovers the tree, and the paths of the slices that it reads."""
    try:
        session = Session(api.scan(root), scene.options)
        return session.planned.plan.recoverable, frozenset(session.contents.digests)
    except MsRecoverError:
        return False, frozenset()


@contextmanager
def _without(root: Path, ranks: Collection[int]) -> Iterator[None]:
    """Take the directories of some ranks out of the tree, and bring them back."""
    aside = root.with_name("aside")
    aside.mkdir()
    there = [root / f"ckpt_dir{rank}" for rank in ranks if (root / f"ckpt_dir{rank}").is_dir()]
    for folder in there:
        folder.rename(aside / folder.name)
    try:
        yield
    finally:
        for folder in there:
            (aside / folder.name).rename(folder)
        aside.rmdir()


def main(words: list[str]) -> None:
    """Print how many trees of some seeds contradict the law, and how."""
    logging.disable()
    first, last = map(int, words[0].split(":"))
    found = {seed: tried for seed in range(first, last) if (tried := try_law(seed)) is not None}
    bad = [one for one in found.values() if one.violations]
    for one in bad:
        print(one.violations[0][:400])
    tried = list(found.values())
    print(f"{len(tried)} trees of {last - first} that a plan recovers, {sum(one.differing for one in tried)} differing")
    print(f"{sum(one.losses for one in tried)} losses, {sum(one.fatal for one in tried)} of them fatal")
    print(
        f"{sum(one.more for one in tried)} losses after which a plan reads what it does not read of the tree as it is"
    )
    print(f"{len(bad)} trees contradict the law, in {sum(len(one.violations) for one in bad)} losses")


if __name__ == "__main__":
    main(sys.argv[1:])
