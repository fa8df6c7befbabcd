"""Count the bytes that a copy to a backup reads, beside the time that it takes.

The counter is ``rchar`` of /proc/self/io: what read calls gave to this process, from the tree and from the backup in a
local folder, cached or not. The text beside the table says what is inside.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ms_recover import api
from ms_recover.testing.trees import make_tree, save_manifests

MIB = 1 << 20
TABLE = Path(__file__).with_name("backup.md")

METHOD = """\
# What a copy to a backup reads

`recover-ckpt copy` of one step of two ranks that hold the same slice of {mib} MiB, to a folder of this host, with
{jobs} threads on {cores} cores. The bytes are those of read calls (`rchar` of /proc/self/io), of the tree and of the
backup together, the scan left out. File system {file_system}, slices cached; times are of one run each.

- Without manifests: both slices are read to prove them, one is sent, and what was sent is read back.
- With the manifests of training: one slice is sent, digested on the way, and what was sent is read back.
- Again: the step is in the backup. With manifests nothing but headers, manifests and the index is read.
- `--verify` reads both slices and every object.

The code of a4a5694 with 1024 MiB, on the same machine after it: 6.00 GiB in 6.5 s and again 5.00 GiB in 0.8 s
without manifests, 6.00 GiB in 4.8 s and again 5.00 GiB in 1.0 s with them.

`python benchmarks/bench_backup.py --help` tells how to run it elsewhere.

| slices | copy | read | time |
|---|---|---|---|
"""


def bytes_read() -> int:
    """Return what this process has read by system calls."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("rchar"))


def measure(tree: Path, backup: Path, jobs: int, *, verify: bool = False) -> tuple[float, float]:
    """Copy, and return GiB read and seconds."""
    inventory = api.scan(tree)
    options = {"verify": True} if verify else {}
    before, begin = bytes_read(), time.perf_counter()
    api.copy(inventory, str(backup), jobs=jobs, **options)
    return (bytes_read() - before) / (1 << 30), time.perf_counter() - begin


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of each of the two slices")
    parser.add_argument("--jobs", type=int, default=max(os.cpu_count() or 1, 4), help="threads")
    parser.add_argument("--directory", help="where to work; default: temporary files'")
    parser.add_argument("--output", type=Path, default=TABLE, help="where the table goes; default: beside this file")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="bench_backup.", dir=options.directory) as name:
        root = Path(name)
        api.copy(api.scan(make_tree(root / "small")), str(root / "first"))  # imports are not counted
        names = {f"backbone.layers.{number}.weight": options.mib * MIB // 64 for number in range(16)}
        tree = make_tree(root / "tree", data_parallel=2, model_parallel=1, parameters=names)
        for kind in ("without manifests", "with manifests"):
            if kind == "with manifests":
                save_manifests(tree)
            backup = root / "backup"
            for what in ("first", "again", "again, `--verify`"):
                read, seconds = measure(tree, backup, options.jobs, verify="verify" in what)
                rows.append(f"| {kind} | {what} | {read:.2f} GiB | {seconds:.1f} s |")
                print(rows[-1], flush=True)
            shutil.rmtree(backup)
        kind = subprocess.run(
            ["stat", "-f", "-c", "%T", name], check=True, capture_output=True, text=True
        ).stdout.strip()
    head = METHOD.format(
        mib=options.mib,
        jobs=options.jobs,
        cores=os.cpu_count(),
        file_system=kind.strip().replace("ext2/ext3", "ext4"),
    )
    options.output.write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    sys.exit(main())
