"""What the verbs answer about random damaged trees, as users read it: one text for each tree and verb.

``python -m tests.support.recorded_answers law 12`` prints the answers about one tree.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

from ms_recover import api
from ms_recover.errors import MsRecoverError
from ms_recover.formats.codec import json_text
from ms_recover.formats.plan_json import plan_to_json
from ms_recover.formats.record import record
from ms_recover.model.axes import Axes
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import AuditOptions, PlanOptions
from ms_recover.model.reshard import ReshardOptions
from ms_recover.model.topology import Topology
from ms_recover.planning.tree.positions import find_positions
from tests.support.audits import RandomTree
from tests.support.experiment_trees import random_experiments
from tests.support.iteration_trees import unpack
from tests.support.law_files import make
from tests.support.law_scenes import random_scene
from tests.support.mindformers import DATA
from tests.support.run_trees import random_options, random_tree, strike

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
_NOW = 1_700_000_000
"""When the files of a tree were written, in seconds since 1970, where its maker does not say it."""


def _law(seed: int, root: Path, source: Random) -> PlanOptions:
    scene = random_scene(seed)
    make(scene, root)
    return scene.options


def _hosts(seed: int, root: Path, source: Random) -> PlanOptions:
    tree = RandomTree.of(seed)
    tree.make(root)
    return PlanOptions(world_size=tree.ranks, quick=source.random() < 0.3)


def _runs(seed: int, root: Path, source: Random) -> PlanOptions:
    tree = random_tree(source)
    strike(tree, tree.write(root.parent, source), source)
    return random_options(tree, source)


def _experiments(seed: int, root: Path, source: Random) -> PlanOptions:
    tree = random_experiments(source, stated=source.random() < 0.5)
    tree.write(root)
    return PlanOptions(run=source.choice((None, None, *tree.experiments)), quick=source.random() < 0.5)


def _iterations(seed: int, root: Path, source: Random) -> PlanOptions:
    names = sorted(one.name for one in DATA.iterdir() if (one / "tree.tar.xz").exists())
    unpack(source.choice(names), root)
    for path in sorted(one for one in root.rglob("*") if one.is_file()):
        fault = source.random()
        if fault < (0.1 if path.name.endswith(".safetensors") else 0.06):
            path.unlink()
        elif fault < 0.14:
            data = bytearray(path.read_bytes())
            data[source.randrange(len(data))] ^= 1
            path.chmod(0o600)
            path.write_bytes(data)
        elif fault < 0.15:
            path.chmod(0o600)
            path.write_bytes(b"")
    lost = frozenset(source.sample(range(8), source.choice((0, 0, 0, 1, 2))))
    return PlanOptions(lost=lost, quick=source.random() < 0.2)


KINDS: dict[str, Callable[[int, Path, Random], PlanOptions]] = {
    "law": _law,
    "hosts": _hosts,
    "runs": _runs,
    "experiments": _experiments,
    "iterations": _iterations,
}
_SEEDS = {
    "law": (0, 1, 2, 10, 12, 20, 21, 25, 29, 34, 36, 38, 42, 46, 47, 50, 52, 53, 54, 56, 57, 73, 90, 94),
    "hosts": (2, 8, 14, 17, 21, 24, 25, 28, 30, 45, 48, 53, 54, 59, 70, 71),
    "runs": (0, 3, 4, 24, 26, 28, 30, 32, 34, 49),
    "experiments": (0, 4, 6, 12, 14, 19, 28, 30),
    "iterations": (1, 4, 9, 20, 26, 30),
}
"""Trees chosen by the lines of the planner that run about them."""
TREES = tuple(f"{kind} {seed}" for kind, seeds in _SEEDS.items() for seed in seeds)


def answers(kind: str, seed: int) -> dict[str, str]:
    """Return the answer of each verb about the tree of a seed."""
    source = Random(f"{kind} {seed}")
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        options = KINDS[kind](seed, Path(folder) / "tree", source)
        (root,) = (one for one in Path(folder).iterdir() if one.is_dir())
        for number, path in enumerate(sorted(one for one in root.rglob("*") if one.is_file())):
            if path.stat().st_mtime > _NOW:
                os.utime(path, (_NOW + number // 20,) * 2)
        inventory = api.scan(root)
        options = _more(options, inventory, source)
        found = {}
        for verb, ask in _verbs(inventory, options, source).items():
            try:
                text = json_text(ask())
            except MsRecoverError as error:
                text = f"{type(error).__name__}: {error}"
            found[verb] = text.replace(str(root), "ROOT").replace(folder, "FOLDER")
        return found


def _more(options: PlanOptions, inventory: Inventory, source: Random) -> PlanOptions:
    """Return the options with some of those that few trees come with."""
    ranks = max(inventory.ranks, default=0) + 1
    words: list[dict[str, Any]] = [{}] * 5
    words.append({"tolerate": ("rate", "*norm*")})
    words.append(
        {"axes": Axes.parse(f"dp={max(ranks // 2, 1)},tp={min(ranks, 2)}"), "optimizer_shards": source.choice((0, -1))}
    )
    words.append({"groups": (frozenset({0, ranks // 2}),)})
    if inventory.steps:
        words.append({"step": source.choice(sorted(inventory.steps)), "clean": False})
    return replace(options, **source.choice(words))


def _verbs(inventory: Inventory, options: PlanOptions, source: Random) -> dict[str, Callable[[], object]]:
    rank, read = source.randrange(4), source.random() < 0.5
    cut = Axes.parse(source.choice(("dp=2,tp=2", "tp=2", "dp=3", "tp=4")))
    wanted = ReshardOptions(full=True) if source.random() < 0.4 else ReshardOptions(axes=cut)
    ranks = max(inventory.ranks, default=0) + 1
    hosts = tuple(f"host{one // 2 if read else one % 3}" for one in range(options.world_size or ranks))
    racks = tuple(f"rack{len(host) + int(host[4:]) // 2}" for host in hosts)
    topology = source.choice((None, Topology(("host", "rack"), (hosts, racks), "the test")))
    asked = AuditOptions(losses=source.choice((1, 2, 3)), bandwidth=source.choice((None, 1e9)))

    def plan() -> object:
        return plan_to_json(*api.explain(inventory, rank, options))

    def complete() -> object:
        if inventory.iterations:
            return [record(one) for one in api.complete_iteration(inventory, rank, options, dry_run=True)]
        return record(api.complete(inventory, rank, options, dry_run=True))

    def report() -> object:
        steps = api.describe(inventory, options, topology).steps
        return [[str(one.step), one.recoverable] for one in steps]

    return {
        "scan": lambda: record(replace(inventory, positions=find_positions(inventory.slices).every)),
        "plan": plan,
        "audit": lambda: record(api.audit(inventory, options, topology, asked)),
        "history": lambda: record(api.history(inventory, options, read=read)),
        "verify": lambda: record(api.verify(inventory, options)),
        "reshard": lambda: record(api.plan_reshard(inventory, "/nowhere", wanted, options)),
        "complete": complete,
        "report": report,
    }


if __name__ == "__main__":
    for verb, text in answers(sys.argv[1], int(sys.argv[2])).items():
        print(f"== {verb}\n{text}")
