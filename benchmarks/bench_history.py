"""Follow a run of many steps by its manifests: CPU seconds and memory of recover-ckpt history.

The run is one of 64 ranks, data 8 x tensor 8: matrices are cut over the tensor-parallel ranks, norms are whole on all
64, and Adam's moments are cut into two shards. Every rank has a slice with its manifest at every step, and one bit of a
norm is flipped on one rank from the middle on, which the answer must name. Beside it stands a program that does nothing
but read and parse the same manifests with json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))
from bench_scale import COMMAND, Measured, measure

from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest_json import encode
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.manifest import Digests, Manifest, TrainingRecord
from ms_recover.model.provenance import SAVED
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.planning.claims.layouts import cells_of

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support
from tests.support.cuts import cut_layout

MATRIX = (8, 8)
RANKS = MATRIX[0] * MATRIX[1]
KINDS = {
    "attention.qkv": ((), (0,)),
    "attention.out": ((0,), ()),
    "mlp.up": ((), (0,)),
    "mlp.down": ((0,), ()),
    "norm1": ((),),
    "norm2": ((),),
}
"""Parameters of a layer, and the axes of the device matrix that cut each of their dimensions."""
STATES = ("", "moment1.", "moment2.")
ODD_RANK, ODD = 11, "blocks.0.norm1"
TABLE = Path(__file__).parent / "history.md"
METHOD = """\
# The history of a long run

`python benchmarks/bench_history.py --write`. CPU seconds, user and system, of `recover-ckpt history --json` in a new
process. The run is one of 64 ranks, data 8 x tensor 8, of a transformer with Adam; every rank has a manifest at every
step. One bit of a norm is flipped on one rank from the middle on, and each answer named it. Beside it stands a program
that reads the same manifests, parses them with Python's json, and does nothing else. The two take turns, twice; the
lower figure of each counts.

| steps | ranks | parameters | manifests | history, CPU seconds | MiB | json alone, CPU seconds | ratio |
|---|---|---|---|---|---|---|---|"""
READ_ALONE = """
import json, os, sys
count = 0
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        if name.endswith(sys.argv[2]):
            with open(os.path.join(folder, name), "rb") as file:
                count += len(json.load(file)["parameters"]) > 0
print(count)
"""


def layouts_of(layers: int) -> list[Layout]:
    """Return the layouts of a model with its optimizer."""
    return [
        cut_layout(f"{state}blocks.{layer}.{name}", MATRIX, *maps, shards=2 if state else 0)
        for state in STATES
        for layer in range(layers)
        for name, maps in KINDS.items()
    ]


def group_of(rank: int, parts: list[list[int]]) -> tuple[int, ...]:
    """Return the ranks that hold the same slice."""
    return tuple(one for one in range(RANKS) if all(held[one] == held[rank] for held in parts))


def parts_of(layouts: list[Layout]) -> list[list[int]]:
    """Return the number of the part of each parameter that each rank holds."""
    cells = [cells_of(one, range(RANKS)) for one in layouts]
    return [[list(dict.fromkeys(held)).index(cell) for cell in held] for held in cells]


def manifests(layouts: list[Layout], parts: list[list[int]], steps: int) -> Iterator[Manifest]:
    """Yield the manifest of each rank at each step, with a flip from the middle on."""
    parameters = tuple(
        Parameter(one.parameter, "Float32", (4,) * len(one.tensor_map), 4 * 4 ** len(one.tensor_map)) for one in layouts
    )
    groups = [group_of(rank, parts) for rank in range(RANKS)]
    odd = [one.parameter for one in layouts].index(ODD)
    for number in range(1, steps + 1):
        source = Random(number)
        values = [[f"xxh3_128:{source.getrandbits(128):032x}" for _ in range(max(held) + 1)] for held in parts]
        for rank in range(RANKS):
            digests = [values[place][held[rank]] for place, held in enumerate(parts)]
            if rank == ODD_RANK and number > steps // 2:
                digests[odd] = f"xxh3_128:{source.getrandbits(128):032x}"
            yield Manifest(
                run_id="0123456789abcdef0123456789abcdef",
                rank=rank,
                world_size=RANKS,
                step=Step(1, number),
                cumulative_step=number,
                file=f"net-1_{number}.ckpt",
                size=1,
                digests=Digests(f"xxh3_128:{source.getrandbits(128):032x}", tuple(digests)),
                parameters=parameters,
                group=groups[rank],
                provenance=SAVED,
                training=TrainingRecord(1_790_000_000_000, epoch_steps=steps, batch_size=8, host=f"node{rank // 8}"),
            )


def make_run(root: Path, steps: int, layers: int) -> int:
    """Write the slices, which are one byte each, and all that lies beside them; return the number of parameters."""
    layouts = layouts_of(layers)
    parts = parts_of(layouts)
    strategy = encode_strategy(Strategy((0,), 2, tuple(layouts)))
    for rank in range(RANKS):
        folder = root / f"ckpt_dir{rank}"
        folder.mkdir(parents=True)
        write_group_info(folder / "group_info.pb", list(group_of(rank, parts)))
        (folder / "strategy.ckpt").write_bytes(strategy)
    for manifest in manifests(layouts, parts, steps):
        path = root / f"ckpt_dir{manifest.rank}" / manifest.file
        path.write_bytes(b"x")
        Path(f"{path}{MANIFEST_SUFFIX}").write_bytes(encode(manifest))
    return len(layouts)


def check(found: Measured, steps: int) -> None:
    """Raise an error unless the history names the flip and nothing else."""
    made = json.loads(found.output)
    named = [(one["parameter"], one["first"], one["outvoted"]) for one in made["disagreements"]]
    if (
        found.code != 5
        or len(made["steps"]) != steps
        or named != [(ODD, {"epoch": 1, "step": steps // 2 + 1}, [ODD_RANK])]
    ):
        raise RuntimeError(f"the history is wrong: exit code {found.code}, {named}")


def peak(command: Sequence[str]) -> int:
    """Return the most memory that a command takes, in MiB."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        return os.wait4(process.pid, 0)[2].ru_maxrss >> 10


def row(folder: Path, steps: int, layers: int, limit: float) -> str:
    """Return the row of a run."""
    root = folder / f"{steps}-{layers}"
    count = make_run(root, steps, layers)
    os.sync()
    read = [sys.executable, "-c", READ_ALONE, str(root), MANIFEST_SUFFIX]
    command = [*COMMAND, "history", str(root), "--json"]
    alone, followed = [], []
    for _ in range(2):  # A B A B
        alone.append(measure(read, limit).cpu)
        found = measure(command, limit)
        check(found, steps)
        followed.append(found.cpu)
    memory = peak(command)
    cpu, base = min(followed), min(alone)
    return (
        f"| {steps:,} | {RANKS} | {count} | {steps * RANKS:,} | {cpu:.2f} | {memory} | {base:.2f} | {cpu / base:.2f} |"
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="*", default=["100x1", "1000x1", "100x24"], help="steps x layers")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one command")
    parser.add_argument("--folder", help="where trees are made; by default that of temporary files")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    given = parser.parse_args()
    lines = METHOD.splitlines()
    print("\n".join(lines), flush=True)
    for run in given.runs:
        steps, layers = map(int, run.split("x"))
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            lines.append(row(Path(folder), steps, layers, given.limit))
        print(lines[-1], flush=True)
    if given.write:
        TABLE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
