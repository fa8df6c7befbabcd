"""Putting slices together against `cp` of the same bytes, and the memory it takes."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ms_recover import api
from ms_recover.model.options import PlanOptions

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree

NAME = "test-1_8.ckpt"


def make_tree(root: Path, mebibytes: int, parameters: int) -> Path:
    """Write four ranks of which two together hold what one had, each parameter whole on one of them."""
    rows = mebibytes * (1 << 20) // parameters // 4 // 1024 * 2
    source = np.random.default_rng(0)
    array = source.random((rows, 1024), np.float32)
    named = {}
    for index in range(parameters):
        name = f"layer{index}.weight"
        named[name] = CutTensor("Float32", array, cut_layout(name, (2, 2), (index % 2,), ()))
    return make_cut_tree(root, named, 4, manifests=True)


def put_together(tree: Path, verify: bool) -> float:
    """Lose rank 0, plan, and return the seconds that applying takes."""
    shutil.rmtree(tree / "ckpt_dir0", ignore_errors=True)
    plan = api.plan(api.scan(tree), PlanOptions(world_size=4, quick=True))
    os.sync()
    begin = time.perf_counter()
    outcome = api.apply(plan, jobs=4 * len(os.sched_getaffinity(0)), verify=verify)
    seconds = time.perf_counter() - begin
    assert outcome.exit_code == 0
    assert outcome.results[0].status == "composed"
    return seconds


def copy(tree: Path) -> float:
    """Return the seconds that cp and fsync of one slice take."""
    target = tree / "copy"
    target.unlink(missing_ok=True)
    os.sync()
    begin = time.perf_counter()
    subprocess.run(["cp", tree / "ckpt_dir1" / NAME, target], check=True)
    subprocess.run(["sync", target], check=True)
    return time.perf_counter() - begin


def memory(tree: Path) -> float:
    """Return how much the resident set grows at most while a slice is put together, in MiB; in a process of its own."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); import bench_compose as b\n"
        "from ms_recover import api; import shutil\n"
        "from ms_recover.model.options import PlanOptions\n"
        "tree = Path(sys.argv[1]); shutil.rmtree(tree / 'ckpt_dir0', ignore_errors=True)\n"
        "plan = api.plan(api.scan(tree), PlanOptions(world_size=4, quick=True))\n"
        "def peak():\n"
        "    text = Path('/proc/self/status').read_text()\n"
        "    return int(text.partition('VmHWM:')[2].split()[0])\n"
        "before = peak()\n"
        "assert api.apply(plan, jobs=2).exit_code == 0\n"
        "print(peak() - before)\n"
    )
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", code, tree, here], capture_output=True, text=True, check=True)
    return int(done.stdout) / 1024


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", default=None, help="where trees are made; default: the temporary directory")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048], help="MiB a slice")
    options = parser.parse_args()
    print("| slice | parameters | speed, cp = 1 | with read-back | memory above start |\n|---|---|---|---|---|")
    for size in options.sizes:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            tree = make_tree(Path(folder), size, 64)
            copy(tree)
            put_together(tree, False)
            ratios: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(options.rounds):
                first = copy(tree)
                for verify in (False, True):
                    seconds = put_together(tree, verify)
                    second = copy(tree)
                    ratios[verify].append((first + second) / 2 / seconds)
                    first = second
            texts = [f"**{statistics.median(r):.2f}** ({min(r):.2f} - {max(r):.2f})" for r in ratios.values()]
            print(f"| {size} MiB | 64 | {texts[0]} | {texts[1]} | {memory(tree):.1f} MiB |", flush=True)


if __name__ == "__main__":
    main()
