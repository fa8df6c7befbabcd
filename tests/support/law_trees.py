"""Try the law on many random trees: ``python -m tests.support.law_trees --seeds 0:2000``.

It prints how many trees end with 0 and right bytes, which is comparable between commits for the same seeds, and what
contradicts the law. ``--right FILE`` keeps the seeds of these trees, ``--before FILE`` names those of an earlier commit
that do not end so any more. ``--explain SEED`` shows one tree, its scene and its plan.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from ms_recover import api
from tests.support.law_checks import Verdict, examine, examine_scene
from tests.support.law_files import make
from tests.support.law_scenes import Scene, random_scene


def _try(seed: int) -> Verdict:
    try:
        return examine(seed)
    except Exception:  # every error of the program is a finding
        return Verdict(seed, ended="error", violations=[traceback.format_exc(limit=-3)])


def main(arguments: list[str]) -> int:
    """Examine the trees of some seeds, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="first:last")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, default=40, help="violations that are listed")
    parser.add_argument("--right", type=Path, help="file for the seeds that end with 0 and right bytes")
    parser.add_argument("--before", type=Path, help="such a file of another commit")
    parser.add_argument("--explain", type=int, metavar="SEED")
    given = parser.parse_args(arguments)
    logging.disable()
    if given.explain is not None:
        explain(random_scene(given.explain))
        return 0
    first, last = map(int, given.seeds.split(":"))
    began = time.monotonic()
    with ProcessPoolExecutor(given.jobs) as pool:
        found = list(pool.map(_try, range(first, last), chunksize=8))
    ended = Counter(one.ended for one in found)
    right = sum(one.right for one in found)
    obliged = sum(one.obliged for one in found)
    bad = [one for one in found if one.violations]
    shown = 0
    for one in bad:
        for text in one.violations[:3]:
            if shown < given.show:
                print(f"seed {one.seed}: {text[:600]}")
            shown += 1
    kinds = Counter(kind for one in bad for kind in {text[:1] for text in one.violations})
    print(f"{len(found)} trees in {time.monotonic() - began:.0f} s; {dict(ended)}")
    print(f"{right} end with 0 and right bytes ({right / len(found):.1%}); {obliged} must by the law")
    print(f"{len(bad)} contradict the law, by kind {dict(kinds)}")
    good = [one.seed for one in found if one.right]
    if given.before is not None:
        print(f"right before and not now: {sorted(set(json.loads(given.before.read_text())).difference(good))}")
    if given.right is not None:
        given.right.write_text(json.dumps(good))
    return 1 if bad else 0


def explain(scene: Scene) -> None:
    """Print a scene, what the law says of it, and the plan of its tree."""
    job = scene.job
    print(f"seed {scene.seed}: data {job.data}, model {job.model}, stages {job.stages}; {scene.options}")
    print(f"strategy files {scene.strategies}, rank lists {scene.lists}, manifests {scene.manifests}")
    print(f"known when saved {scene.known_when_saved}, sealed first {scene.sealed_first}, without {set(scene.without)}")
    for tensor in job.tensors:
        cut = tensor.layout and (tensor.layout.device_matrix, tensor.layout.tensor_map, tensor.layout.opt_shard_size)
        print(f"  {tensor.name} {tensor.shape} of stages {set(tensor.stages)}, named in {set(tensor.named)}: {cut}")
    print(f"  alike: {sorted(set(job.groups.values()))}")
    for stage, foreign in scene.foreign.items() if not scene.strategies_right else ():
        cuts = [(one.parameter, one.device_matrix, one.tensor_map) for one in foreign.layouts]
        print(f"  stage {stage} by the wrong file: {cuts}")
    if not scene.lists_right:
        print(f"  wrong lists: {dict(scene.foreign_groups)}")
    for fault in scene.faults:
        print(f"  {fault}")
    verdict = examine_scene(scene)
    print(f"{verdict.ended}, right {verdict.right}, obliged {verdict.obliged}", *verdict.violations, sep="\n  ! ")
    with tempfile.TemporaryDirectory() as folder:
        tree = make(scene, Path(folder) / "tree")
        plan = api.plan(api.scan(tree.root), scene.options)
    print(f"step {plan.step} of run {plan.run_id}; {plan.disagreements}")
    for rank in plan.ranks:
        print(f"  {rank.rank} {rank.state} {rank.verdict} {rank.reason}")
    for one in plan.rejected_steps:
        print(f"  not {one.step}: {one.reason}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
