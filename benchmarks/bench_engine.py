"""What an engine adds to the work: calls that do nothing, calls of 50 ms, and verifying many small slices.

Starts a scheduler of dask and workers as processes on this host. A baseline comes from the same run: the calls of 50 ms
one after the other in the threads of the workers, and verifying in this process.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from ms_recover import api
from ms_recover.engine import open_engine
from ms_recover.testing.trees import make_tree
from ms_recover.verbs.spread_tree import SpreadTree

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support
from tests.support.dask_cluster import DaskCluster
from tests.support.engine_tasks import on_all, work

TASK_SECONDS = 0.05


def timed(function, *arguments):
    """Return the seconds of a call."""
    begun = time.monotonic()
    function(*arguments)
    return time.monotonic() - begun


def calls(engine, number, seconds):
    """Run calls that take so long each."""
    engine.run(on_all(engine, work, [(seconds,)] * number))


def spread(whole: Path, cluster: DaskCluster, ranks: int) -> None:
    """Move the directories of ranks to the disks of the nodes."""
    share = ranks // len(cluster.names)
    for index, name in enumerate(cluster.names):
        (cluster.disk(name) / "ckpt").mkdir()
        for rank in range(index * share, (index + 1) * share):
            shutil.move(whole / f"ckpt_dir{rank}", cluster.disk(name) / "ckpt")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=10_240)
    parser.add_argument("--slices", type=int, default=10_240)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    threads = options.workers * options.threads
    with tempfile.TemporaryDirectory() as folder:
        whole = make_tree(Path(folder) / "whole", data_parallel=options.slices // 8, model_parallel=8)
        cluster = DaskCluster(Path(folder) / "cluster", options.workers, threads=options.threads)
        with cluster, open_engine(cluster.url) as engine:
            calls(engine, 64, 0)
            nothing = median(timed(calls, engine, options.calls, 0) for _ in range(options.runs))
            long = timed(calls, engine, options.calls, TASK_SECONDS)
            ideal = options.calls * TASK_SECONDS / threads
            here = []
            for _ in range(options.runs):
                inventory = api.scan(whole)
                here.append(timed(lambda found=inventory: api.verify(found, jobs=2)))
            spread(whole, cluster, options.slices)
            tree = SpreadTree(engine, "node://*/data/ckpt")
            there = []
            for _ in range(options.runs):
                inventory = tree.scan()
                there.append(timed(lambda found=inventory: api.verify(found, read=tree.read)))
    print(f"{options.workers} workers of {options.threads} threads")
    print("| what | seconds | baseline, seconds | overhead |\n|---|---|---|---|")
    each = 1000 * nothing / options.calls
    print(f"| {options.calls} calls that do nothing | {nothing:.2f} | 0 | {each:.3f} ms a call |")
    print(f"| {options.calls} calls of 50 ms | {long:.1f} | {ideal:.1f} | {100 * (long / ideal - 1):.1f} % |")
    slower = 1000 * (median(there) - median(here)) / options.slices
    print(f"| verify {options.slices} slices | {median(there):.2f} | {median(here):.2f} | {slower:.3f} ms a slice |")


if __name__ == "__main__":
    main()
