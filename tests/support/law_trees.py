"""Try the law on many random trees: ``python -m tests.support.law_trees --seeds 0:2000``.

It prints how many trees end with 0 and right bytes, which is comparable between commits for the same seeds, and what
contradicts the law. ``--right FILE`` keeps the seeds of these trees, ``--before FILE`` names those of an earlier commit
that do not end so any more. ``--explain SEED`` shows one tree, its scene and its plan, and the simplest like it.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.support.law_checks import Verdict, examine
from tests.support.law_scenes import random_scene
from tests.support.law_simplest import describe, simplest


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
        print(describe(random_scene(given.explain)), describe(simplest(random_scene(given.explain))), sep="\n\n")
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
    print(f"wrong and excused: {dict(Counter(why for one in found for why in set(one.excuses)))}")
    print(f"{len(bad)} contradict the law, by kind {dict(kinds)}")
    good = [one.seed for one in found if one.right]
    if given.before is not None:
        print(f"right before and not now: {sorted(set(json.loads(given.before.read_text())).difference(good))}")
    if given.right is not None:
        given.right.write_text(json.dumps(good))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
