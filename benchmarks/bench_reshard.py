"""Time a reshard against ``cp`` and sync of its output, and against MindSpore's transform_checkpoints.

dp2 x mp4 becomes dp2 x mp2, once with rows cut and once with columns cut. cp, reshard, cp, reshard with ``--quick``, cp
run one after the other, over and over, and then transform_checkpoints, cp; a figure is the median of the ratios to the
mean of the cp just before and the one just after. Then the peak memory at two sizes, and a plan of many ranks.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.formats.image import ckpt_image, default_pieces
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.provenance import SAVED
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support and the other benchmark
from benchmarks.bench_scale import LAYERS, NAMES, make_tree
from tests.support.cuts import cut_layout

MIB = 1 << 20
TABLE = Path(__file__).with_name("reshard.md")
COMMAND = (sys.executable, "-c", "import sys; from ms_recover.cli.main import main; sys.exit(main())", "reshard")
ROWS, COLUMNS = 2048, 2304
TRANSFORM = """
import sys, time
import mindspore as ms
begin = time.perf_counter()
ms.transform_checkpoints(*sys.argv[1:])
print(time.perf_counter() - begin)
"""


@dataclass(frozen=True)
class Run:
    """A process: its seconds of wall and CPU time, and its peak memory in bytes."""

    wall: float
    cpu: float
    peak: int
    output: str


def run(command: Sequence[str]) -> Run:
    """Run a command on a settled file system; exit when it fails."""
    os.sync()
    begin = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output, subprocess.Popen(command, stdout=output) as process:
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - begin
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if process.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}\n{text}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss << 10, text)


def layouts(kind: str, count: int, matrix: tuple[int, int]) -> list[Layout]:
    """Return the layouts of so many parameters, cut by rows or by columns."""
    maps = ((0,), ()) if kind == "rows" else ((), (0,))
    return [cut_layout(f"layer{number}.weight", matrix, *maps) for number in range(count)]


def build(root: Path, kind: str, mib: int, *, copies: int = 2, sparse: bool = False) -> tuple[Path, Path]:
    """Write a tree of mp4 and the strategy file of mp2; return both paths. Sparse slices are holes but for headers."""
    count = max(1, mib * MIB // (ROWS * COLUMNS * 4))
    cut = layouts(kind, count, (copies, 4))
    shape = (ROWS // 4, COLUMNS) if kind == "rows" else (ROWS, COLUMNS // 4)
    nbytes = shape[0] * shape[1] * 4
    listed = [Parameter(one.parameter, "Float32", shape, nbytes) for one in cut]
    image = ckpt_image(listed, [default_pieces(nbytes)] * count)
    tree, target = root / "tree", root / "target"
    target.mkdir(parents=True)
    (target / "strategy.ckpt").write_bytes(encode_strategy(Strategy((0,), 1, tuple(layouts(kind, count, (copies, 2))))))
    strategy = encode_strategy(Strategy((0,), 1, tuple(cut)))
    for rank in range(4 * copies):
        folder = tree / f"rank_{rank}"
        folder.mkdir(parents=True)
        (target / "source.ckpt").write_bytes(strategy)
        path = folder / "test-1_8.ckpt"
        noise = os.urandom(MIB) if rank < 4 else b""
        if rank >= 4:
            shutil.copyfile(tree / f"rank_{rank - 4}" / "test-1_8.ckpt", path)
        else:
            with path.open("wb") as file:
                for at, literal in image.literals:
                    file.seek(at)
                    file.write(literal)
                    for start in range(0, 0 if sparse else nbytes, MIB):
                        file.write(noise[: min(MIB, nbytes - start)])
                file.truncate(image.size)
        if not sparse:
            group = tuple(range(rank % 4, 4 * copies, 4))
            made = replace(make_manifest(str(path), rank, Step(1, 8), 4 * copies, group, "run"), provenance=SAVED)
            write_manifest(str(path), made)
    (target / "source.ckpt").rename(root / "source.ckpt")
    return tree, target / "strategy.ckpt"


@dataclass
class Case:
    """One way of cutting: for each thing that was timed its seconds, ratios to cp, and the most memory it took."""

    kind: str
    seconds: dict[str, list[float]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)

    def note(self, what: str, seconds: float, cp: float, peak: int) -> None:
        """Keep one time, and that of cp beside it."""
        self.seconds.setdefault(what, []).append(seconds)
        self.ratios.setdefault(what, []).append(seconds / cp)
        self.peaks[what] = max(self.peaks.get(what, 0), peak)
        print(self.kind, what, f"{seconds:.2f} s, cp {cp:.2f} s", flush=True)

    def rows(self) -> list[str]:
        """Return the lines of the table."""
        lines = []
        for what, ratios in self.ratios.items():
            shown = f"**{statistics.median(ratios):.2f}** ({min(ratios):.2f} - {max(ratios):.2f})"
            peak = f"{self.peaks[what] / MIB:,.0f} MiB"
            lines.append(f"| {self.kind} | {what} | {statistics.median(self.seconds[what]):.2f} | {shown} | {peak} |")
        return lines

    def faster(self) -> str:
        """Return how much faster a reshard is than transform_checkpoints, by the ratios to cp."""
        found = [statistics.median(self.ratios[what]) for what in (THEIRS, OURS)]
        return f"{self.kind} {found[0] / found[1]:.1f}"


OURS, QUICK = "reshard", "reshard --quick"
THEIRS, CALL = "transform_checkpoints, the whole command and sync", "transform_checkpoints, the call alone"


def measure(case: Case, root: Path, mib: int, rounds: int, *, transform: bool) -> None:
    """Fill in the times of a case; a first round is thrown away."""
    tree, strategy = build(root, case.kind, mib)
    words = [str(tree), "--strategy", str(root / "source.ckpt"), "--to", str(strategy), "--no-verify", "-o"]
    model = root / "model"
    run([*COMMAND, *words, str(model)])

    def cp() -> float:
        copies = root / "copies"
        found = run(["bash", "-c", 'cp -r "$0" "$1" && sync "$1"/*/*.ckpt', str(model), str(copies)])
        shutil.rmtree(copies)
        return found.wall

    cp()
    before = cp()
    for what, more in ((OURS, []), (QUICK, ["--quick"])) * rounds:
        found = run([*COMMAND, *words, str(root / "output"), *more])
        shutil.rmtree(root / "output")
        after = cp()
        case.note(what, found.wall, (before + after) / 2, found.peak)
        before = after
    if not transform:
        return
    for path in tree.rglob("*.json"):  # it takes every file for a slice
        path.unlink()
    made = root / "theirs"
    for _ in range(rounds):
        arguments = (str(tree), str(made), "t", str(root / "source.ckpt"), str(strategy))
        script = f'"$@" && sync {shlex.quote(str(made))}/*/*.ckpt'
        found = run(["bash", "-c", script, "bash", sys.executable, "-c", TRANSFORM, *arguments])
        shutil.rmtree(made)
        after = cp()
        case.note(THEIRS, found.wall, (before + after) / 2, found.peak)
        case.note(CALL, float(found.output.split()[-1]), (before + after) / 2, found.peak)
        before = after


def memory(root: Path, gib: int) -> str:
    """Return the line of the table of memory: columns of so many GiB of parameters, every byte written."""
    tree, strategy = build(root, "columns", gib << 10, copies=1, sparse=True)
    words = [str(tree), "--strategy", str(root / "source.ckpt"), "--to", str(strategy), "--no-verify"]
    found = run([*COMMAND, *words, "-o", str(root / "output")])
    shutil.rmtree(root)
    return f"| {gib} GiB | {found.peak / MIB:,.0f} MiB |"


def plan_many(root: Path, ranks: int) -> str:
    """Return the line of the table of plans: mp8 x 4 optimizer shards to mp4 x 2 shards on half the ranks."""
    count = make_tree(root / "tree", ranks)
    matrix = (ranks // 8, 4)
    made = []
    for state in ("", "moment1.", "moment2."):
        for layer in range(LAYERS):
            for place, short in enumerate(NAMES):
                maps = ((),) if "norm" in short else ((0,), ()) if place % 2 else ((), (0,))
                made.append(cut_layout(f"{state}blocks.{layer}.{short}", matrix, *maps, shards=2))
    strategy = root / "target.ckpt"
    strategy.write_bytes(encode_strategy(Strategy((0,), 1, tuple(made))))
    cells = []
    for more in (["--quick"], []):
        found = run([*COMMAND, str(root / "tree"), "--to", str(strategy), "--plan", *more])
        cells.append(f"{found.cpu:.1f} s, {found.peak / MIB:,.0f} MiB")
    return f"| {ranks} -> {ranks // 2} | {count} | {' | '.join(cells)} |"


METHOD = """\
# Slices for other ranks

`python benchmarks/bench_reshard.py --write`; {cores} cores, {rounds} rounds, {mib} MiB of parameters in Float32.

dp2 x mp4 becomes dp2 x mp2. cp is `cp -r` of the output and `sync` of its slices. A reshard is the whole command: it
starts Python, scans, reads the slices that it takes from to judge them (not with `--quick`, which trusts manifests and
compares what it takes with them), reads them once more, digests, writes, syncs and renames. Nothing is read back
(`--no-verify`). transform_checkpoints is timed twice in one run: as a whole command, `python -c` with its import and
`sync` of its slices behind it, and the call alone, without both. Sources are cached. Ratios are to the mean of the cp
before and after (lowest and highest in brackets). Load of the machine beside it, in running processes, at the start:
{load}.

| cut | what | seconds | of cp + sync | peak memory |
|---|---|---|---|---|
"""


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1152, help="MiB of parameters; default: 1152")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="*", default=[1, 8], help="GiB at which memory is measured")
    parser.add_argument("--ranks", type=int, default=1024, help="of the tree that is planned; 0 for none")
    parser.add_argument("--no-transform", action="store_true", help="leave transform_checkpoints out")
    parser.add_argument("--directory", help="where to work, on the file system to measure; default: temporary files'")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench_reshard.", dir=options.directory) as name:
        folder = Path(name)
        cases = [Case("rows"), Case("columns")] if options.rounds else []
        for case in cases:
            measure(case, folder / case.kind, options.mib, options.rounds, transform=not options.no_transform)
            shutil.rmtree(folder / case.kind)
        load = Path("/proc/loadavg").read_text().split()[0]
        head = METHOD.format(load=load, cores=os.cpu_count(), rounds=options.rounds, mib=options.mib)
        text = head + "\n".join(line for case in cases for line in case.rows())
        if cases and not options.no_transform:
            text += "\n\nTimes as fast as transform_checkpoints, whole command each, by the ratios to cp: "
            text += f"{', '.join(case.faster() for case in cases)}."
        if options.sizes:
            text += "\n\nmp4 to mp2, columns, one copy:\n\n| parameters | peak memory |\n|---|---|\n"
            text += "\n".join(memory(folder / f"memory{gib}", gib) for gib in options.sizes)
        if options.ranks:
            text += "\n\nPlans, CPU time and peak memory of the command (goal: 10 s):\n\n"
            text += "| ranks | parameters | by headers (`--quick`) | by contents |\n|---|---|---|---|\n"
            text += plan_many(folder / "many", options.ranks)
    print(text)
    if options.write:
        TABLE.write_text(text + "\n")


if __name__ == "__main__":
    main()
