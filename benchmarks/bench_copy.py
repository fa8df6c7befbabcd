"""Time a recovery against ``cp`` and fsync of the same files.

cp, recovery, cp, recovery with read-back run one after the other, over and over, so that whatever else the machine does
hits all alike; a figure is the median of the ratios to the mean of the cp just before and the cp just after. The text
beside the table says what is inside each.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ms_recover import api
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.testing.trees import make_tree, save_manifests

MIB = 1 << 20
CASES = ("1x1024", "64x16", "1x2304", "1x1024:bare", "64x16:bare")
TABLE = Path(__file__).with_name("copy.md")

METHOD = """\
# Recovery against `cp`

Median wall time as a multiple of `cp` + fsync of the same files (lowest and highest in brackets), over {rounds} rounds
of cp, recovery, cp, recovery with read-back; each ratio is to the mean of the cp just before and the one just after.

- cp: `cp -r` of the source ranks' directories, then one `sync` that names all copied slices.
- Recovery: `api.apply` with {jobs} threads on {cores} cores: {how}, digest, fsync, structure check,
  rename, directory fsync, manifest, rank list. Read-back: then read again from the device, and the digests compared.
- Every cp and every recovery starts on a settled file system and with free memory that was touched just before: a
  virtual machine gives free memory back to its host, and a cp that has to get it again takes several times as long.
- Sources cached, targets new, file system {file_system}. Where the sources have no manifest, every parameter is
  digested as well, for the manifest of the new slice.{shared}

`python benchmarks/bench_copy.py --help` tells how to run it elsewhere.

| files | sources with manifest | recovery (goal: 0.8) | with read-back (goal: 1.2) |
|---|---|---|---|
"""


@dataclass
class Case:
    """Some slices that are lost, and the times measured for them, in seconds."""

    count: int
    mib: int
    manifests: bool
    cp: list[float] = field(default_factory=list)
    recovery: list[float] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> Case:
        """Read ``64x16`` or ``64x16:bare``."""
        size, _, bare = text.partition(":")
        count, mib = size.split("x")
        return cls(int(count), int(mib), not bare)

    def row(self) -> str:
        """Return the line of the table."""
        cells = [f"{self.count} x {self.mib} MiB", "yes" if self.manifests else "no"]
        ratios = [2 * self.recovery[i] / (self.cp[i] + self.cp[i + 1]) for i in range(len(self.recovery))]
        cells += [f"**{statistics.median(r):.2f}** ({min(r):.2f} - {max(r):.2f})" for r in (ratios[0::2], ratios[1::2])]
        return f"| {' | '.join(cells)} |"


def build(case: Case, root: Path) -> tuple[Path, Plan]:
    """Make a tree, lose the first replica of every slice, and plan."""
    parameters = 64 if case.mib >= 1024 else 16
    count = case.mib * MIB // 4 // parameters
    names = {f"backbone.layers.{i}.weight": count for i in range(parameters)}
    tree = make_tree(root / "tree", data_parallel=2, model_parallel=case.count, parameters=names)
    if case.manifests:
        save_manifests(tree)
    for rank in range(case.count):
        shutil.rmtree(tree / f"ckpt_dir{rank}")
    plan = api.plan(api.scan(tree), PlanOptions(world_size=2 * case.count), jobs=os.cpu_count() or 1)
    if len(plan.actions) != case.count:
        sys.exit(f"the plan has {len(plan.actions)} actions instead of {case.count}")
    return tree, plan


def timed(action: Callable[[], None], clear: Callable[[], None], memory: int) -> float:
    """Return the seconds an action takes on a settled file system, and clear up after it.

    A virtual machine may have given free memory back to its host, and would be measured getting it again.
    """
    os.sync()
    mmap.mmap(-1, memory, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE).close()
    begin = time.perf_counter()
    action()
    seconds = time.perf_counter() - begin
    clear()
    return seconds


def measure(case: Case, root: Path, rounds: int, jobs: int) -> None:
    """Fill in the times of a case; a first round is thrown away."""
    tree, plan = build(case, root)
    memory = 2 * case.count * case.mib * MIB
    copies = root / "copies"
    folders = [str((tree / action.source).parent) for action in plan.actions]
    slices = [str(copies / action.source) for action in plan.actions]

    def cp() -> None:
        copies.mkdir()
        subprocess.run(["cp", "-r", *folders, str(copies)], check=True)
        subprocess.run(["sync", *slices], check=True)

    def recover(verify: bool) -> None:
        outcome = api.apply(plan, jobs=jobs, verify=verify)
        if outcome.exit_code or any(result.status != "copied" for result in outcome.results):
            sys.exit(f"the recovery failed: {outcome}")

    def clear_recovered() -> None:
        for rank in range(case.count):
            shutil.rmtree(tree / f"ckpt_dir{rank}")

    def timed_cp() -> float:
        return timed(cp, lambda: shutil.rmtree(copies), memory)

    timed_cp()
    timed(partial(recover, True), clear_recovered, memory)  # a first time for everything is not counted
    case.cp.append(timed_cp())
    for _ in range(rounds):
        for verify in (False, True):
            case.recovery.append(timed(partial(recover, verify), clear_recovered, memory))
            case.cp.append(timed_cp())
        last = (case.cp[-3], case.recovery[-2], case.cp[-2], case.recovery[-1])
        print(f"{case.count} x {case.mib} MiB:", *(f"{seconds:.3f} s" for seconds in last), flush=True)


def shares_blocks(folder: Path) -> bool:
    """Whether the file system of a folder can clone files."""
    (folder / "a").write_bytes(b"a")
    done = subprocess.run(["cp", "--reflink=always", folder / "a", folder / "b"], check=False, capture_output=True)
    return done.returncode == 0


def main() -> None:
    """Run the cases and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", metavar="NxMIB", help=f"N slices of MIB MiB each; {' '.join(CASES)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jobs", type=int, default=4 * (os.cpu_count() or 1), help="threads; default: 4 for each core")
    parser.add_argument("--directory", help="where to work, on the file system to measure; default: temporary files'")
    parser.add_argument("--output", type=Path, default=TABLE, help="where the table goes; default: beside this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the files are removed
    cases = [Case.read(text) for text in options.case or CASES]
    with tempfile.TemporaryDirectory(prefix="bench_copy.", dir=options.directory) as name:
        kind = subprocess.run(["stat", "-f", "-c", "%T", name], check=True, capture_output=True, text=True)
        shared = shares_blocks(Path(name))
        for number, case in enumerate(cases):
            root = Path(name) / str(number)
            root.mkdir()
            measure(case, root, options.rounds, options.jobs)
            shutil.rmtree(root)
    head = METHOD.format(
        rounds=options.rounds,
        jobs=options.jobs,
        cores=os.cpu_count(),
        how="blocks shared with the source" if shared else "blocks reserved, copied",
        shared="\n- Here cp shares blocks, too, and reads nothing; the goals are about copies." if shared else "",
        file_system=kind.stdout.strip().replace("ext2/ext3", "ext4"),
    )
    text = head + "\n".join(case.row() for case in cases) + "\n"
    options.output.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
