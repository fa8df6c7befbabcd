"""Audit a tree of many ranks: each host, each pair of hosts, each rack.

The tree is that of bench_scale: headers and layouts of a transformer with Adam, 435 parameters a slice, 8 ranks a host,
16 hosts a rack. Of each optimizer shard there are many copies, two, or one. Beside each audit stands the plan of the
same tree with one host lost: what one answer costs, of which an audit gives one for every host and every pair.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from bench_scale import COMMAND, MODEL_PARALLEL, make_tree, measure

HOST, RACK = 8, 16


def write_topology(path: Path, ranks: int) -> Path:
    """Write hosts of 8 neighbouring ranks, in racks of 16 hosts."""
    hosts = {
        f"host{host}": {"ranks": f"{HOST * host}-{HOST * host + HOST - 1}", "rack": f"rack{host // RACK}"}
        for host in range(ranks // HOST)
    }
    path.write_text(json.dumps({"hosts": hosts}))
    return path


def show(folder: Path, ranks: int, limit: float) -> None:
    """Print a row for each number of optimizer shards."""
    copies = ranks // MODEL_PARALLEL
    for shards in (4, copies // 2, copies):
        root = folder / f"{ranks}-{shards}"
        count = make_tree(root, ranks, shards)
        topology = write_topology(folder / f"{ranks}.json", ranks)
        os.sync()
        words = ["audit", str(root), "--quick", "--topology", str(topology), "--json"]
        found = measure([*COMMAND, *words], limit)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
        planned = measure([*COMMAND, "plan", str(root), "--quick", "--lost", "0-7", "--json"], limit)
        made = json.loads(found.output)
        pairs = made["levels"][0]["losses"][1]
        print(
            f"| {ranks} | {made['levels'][0]['domains']} | {count} | {copies // shards} | {found.cpu:.2f} | {peak} "
            f"| {planned.cpu:.2f} | {made['headline']} | {pairs['fatal']:,} of {pairs['possible']:,} |",
            flush=True,
        )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1280, 10240])
    parser.add_argument("--limit", type=float, default=300, help="seconds for one command")
    parser.add_argument("--folder", help="where trees are made; by default that of temporary files")
    given = parser.parse_args()
    print(
        "| ranks | hosts | parameters | copies of a shard | audit, CPU seconds | MiB | plan of one loss, CPU seconds "
        "| answer | fatal pairs |\n|---|---|---|---|---|---|---|---|---|"
    )
    for ranks in given.ranks:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            show(Path(folder), ranks, given.limit)


if __name__ == "__main__":
    main()
