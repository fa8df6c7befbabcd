"""Plan trees of many ranks and files, and show that the time per rank does not grow with their number.

Trees are made before the clock starts. The first table plans by headers and layouts; the second has one line for each
other goal: contents without manifests, sealing, leftovers of other programs, the start of the command.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from ms_recover.formats.group_info import encode_group_info
from ms_recover.formats.image import ckpt_image
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.groups import GroupInfo
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Strategy
from ms_recover.testing.trees import slice_bytes

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support
from tests.support.cuts import cut_layout, fill
from tests.support.iterations import Job, write_job

LAYERS = 24
NAMES = ("attention.qkv", "attention.out", "mlp.up", "mlp.down", "norm1.gamma", "norm2.gamma")
MODEL_PARALLEL = 8
SHARDS = 4


def make_tree(root: Path, ranks: int, shards: int = SHARDS) -> int:
    """Write headers and layouts of a transformer with Adam; the contents are zeros, one row a parameter.

    Weights are cut over 8 ranks, the optimizer into `shards` over the data-parallel ones, so that slices repeat; norms
    are cut over all data-parallel ranks. Returns the number of parameters of a slice.
    """
    matrix = (ranks // MODEL_PARALLEL, MODEL_PARALLEL)
    layouts, parameters = [], []
    for state in ("", "moment1.", "moment2."):
        for layer in range(LAYERS):
            for place, short in enumerate(NAMES):
                name = f"{state}blocks.{layer}.{short}"
                norm = "norm" in short
                maps = ((),) if norm else ((0,), ()) if place % 2 else ((), (0,))
                layouts.append(cut_layout(name, matrix, *maps, shards=shards))
                parameters.append(Parameter(name, "Float32", (4,) if norm else (1, 4), 16))
    parameters += [Parameter(name, "Float32", (), 4) for name in ("beta1_power", "beta2_power", "learning_rate")]
    data = fill(
        ckpt_image(parameters, [[one.nbytes] for one in parameters]), {p.name: bytes(p.nbytes) for p in parameters}
    )
    strategy = encode_strategy(Strategy((0,), 2, tuple(layouts)))
    step = MODEL_PARALLEL * shards
    for rank in range(ranks):
        folder = root / f"ckpt_dir{rank}"
        folder.mkdir(parents=True)
        group = GroupInfo(tuple(range(rank % step, ranks, step)))
        (folder / "group_info.pb").write_bytes(encode_group_info(group))
        (folder / "strategy.ckpt").write_bytes(strategy)
        (folder / "test-1_8.ckpt").write_bytes(data)
    return len(parameters)


@dataclass(frozen=True)
class Measured:
    """One command in a process of its own.

    Parameters
    ----------
    wall, cpu : float
        Seconds; `cpu` is user and system time of all its threads.
    code : int or None
        Exit code, None where it was stopped because it took too long.
    output : str
        Its standard output.
    """

    wall: float
    cpu: float
    code: int | None
    output: str


COMMAND = (sys.executable, "-c", "import sys; from ms_recover.cli.main import main; sys.exit(main())")


def measure(command: Sequence[str], limit: float) -> Measured:
    """Run a command in a new process, at most `limit` seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired:
        code, output = None, ""
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Measured(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, code, output)


def make_replicas(root: Path, groups: int, replicas: int, size: int) -> Path:
    """Write groups of slices of equal contents and their rank lists, without manifests or strategy files.

    Parameters
    ----------
    root : Path
        Where; made.
    groups, replicas : int
        Number of groups, and of slices in each. Rank ``replica * groups + group``.
    size : int
        About how many bytes a slice has.
    """
    for group in range(groups):
        data = slice_bytes({"weight": size // 8, "moment1.weight": size // 8, "global_step": 1}, group)
        listed = encode_group_info(GroupInfo(tuple(range(group, groups * replicas, groups))))
        for rank in range(group, groups * replicas, groups):
            folder = root / f"ckpt_dir{rank}"
            folder.mkdir(parents=True)
            (folder / "group_info.pb").write_bytes(listed)
            (folder / "test-1_8.ckpt").write_bytes(data)
    return root


def litter(root: Path, count: int) -> Path:
    """Leave files of other programs in one rank's directory."""
    for number in range(count):
        os.close(os.open(root / "ckpt_dir1" / f"swap-{number}.tmp", os.O_CREAT | os.O_WRONLY))
    return root


def contents(folder: Path, limit: float) -> Measured:
    """Judge 2 groups of 1,024 replicas of 25 KiB by their contents."""
    root = make_replicas(folder / "contents", 2, 1024, 25 << 10)
    os.sync()
    return measure([*COMMAND, "plan", str(root), "--lost", "0", "--json"], limit)


def sealing(folder: Path, limit: float) -> Measured:
    """Seal 6,000 slices in groups of 8."""
    root = make_replicas(folder / "sealing", 750, 8, 4 << 10)
    os.sync()
    return measure([*COMMAND, "seal", str(root), "--json"], limit)


def leftovers(folder: Path, limit: float) -> Measured:
    """Plan eight ranks beside 100,000 leftovers of other programs."""
    root = litter(make_replicas(folder / "leftovers", 2, 4, 4 << 10), 100_000)
    return measure([*COMMAND, "plan", str(root)], limit)


def iterations(folder: Path, limit: float) -> Measured:
    """Plan an iteration of MindFormers with 4,096 ranks of 8 pipeline stages, 580 parameters in 8,192 files.

    Its metadata.json takes 1.5 GB, as MindFormers writes it. One model and one optimizer file are lost.
    """
    job = Job(data_parallel=64, model_parallel=8, stages=8, layers=20)
    root = write_job(folder / "iterations", job, iterations=(200,))
    for path in (root / "iteration_00000200").glob("*-0000009-*"):
        path.unlink()
    os.sync()
    return measure([*COMMAND, "plan", str(root), "--json"], limit)


def one_group(folder: Path) -> Path:
    """Return a tree of 10,000 ranks that hold the same slice, which no strategy file and no manifest says."""
    root = folder / "one group"
    if not root.exists():
        make_replicas(root, 1, 10_000, 4 << 10)
        os.sync()
    return root


def group_by_headers(folder: Path, limit: float) -> Measured:
    """Plan 10,000 ranks of one rank list by headers."""
    return measure([*COMMAND, "plan", str(one_group(folder)), "--lost", "0", "--quick"], limit)


def group_by_contents(folder: Path, limit: float) -> Measured:
    """Plan the same by contents."""
    return measure([*COMMAND, "plan", str(one_group(folder)), "--lost", "0"], limit)


def group_audited(folder: Path, limit: float) -> Measured:
    """Audit the same by headers."""
    return measure([*COMMAND, "audit", str(one_group(folder)), "--survive", "rank", "--quick"], limit)


GOALS = (
    ("plan: 2 groups x 1,024 replicas of 25 KiB, no manifests", contents, 3.0),
    ("seal: 6,000 slices", sealing, 5.0),
    ("plan: 100,000 leftovers in one directory", leftovers, 3.0),
    ("plan --quick: 10,000 ranks in one rank list, no strategy files", group_by_headers, 1.5),
    ("plan: the same by contents", group_by_contents, 2.5),
    ("audit --quick: the same", group_audited, 2.5),
    ("plan: an iteration of MindFormers, 4,096 ranks x 580 parameters", iterations, 10.0),
)
STARTS = (
    ("python -c pass", (sys.executable, "-c", "pass"), None),
    ("python -c 'import click'", (sys.executable, "-c", "import click"), None),
    ("recover-ckpt --help", (*COMMAND, "--help"), 0.060),
)


def show_ranks(folder: Path, sizes: Sequence[int], limit: float) -> None:
    """Print the table of plans by headers and layouts."""
    print(
        "| ranks | parameters | lost | seconds | CPU seconds | ms per rank | actions |\n|---|---|---|---|---|---|---|"
    )
    for ranks in sizes:
        root = folder / str(ranks)
        count = make_tree(root, ranks)
        os.sync()
        step = MODEL_PARALLEL * SHARDS
        for what, lost in (("one node of 8", "0-7"), ("a whole group", ",".join(map(str, range(0, ranks, step))))):
            found = measure([*COMMAND, "plan", str(root), "--quick", "--lost", lost, "--json"], limit)
            actions = len(json.loads(found.output)["actions"]) if found.code is not None else "stopped"
            print(
                f"| {ranks} | {count} | {what} | {found.wall:.2f} | {found.cpu:.2f} | "
                f"{1000 * found.wall / ranks:.2f} | {actions} |",
                flush=True,
            )


def show_goals(folder: Path, limit: float) -> None:
    """Print the table of what has a goal of its own."""
    print("| what | seconds | CPU seconds | goal, CPU seconds |\n|---|---|---|---|")
    for what, run, goal in GOALS:
        found = run(folder, limit)
        more = "more than " if found.code is None else ""
        print(f"| {what} | {more}{found.wall:.2f} | {more}{found.cpu:.2f} | {goal:g} |", flush=True)


def show_starts(times: int) -> None:
    """Print the table of starts: medians of runs that take turns."""
    runs: dict[str, list[Measured]] = {what: [] for what, _, _ in STARTS}
    for _ in range(times):
        for what, command, _ in STARTS:
            runs[what].append(measure(command, 60))
    print("| start | ms | CPU ms | goal, ms |\n|---|---|---|---|")
    for what, _, goal in STARTS:
        wall, cpu = (1000 * median(getattr(one, kind) for one in runs[what]) for kind in ("wall", "cpu"))
        print(f"| {what} | {wall:.0f} | {cpu:.0f} | {f'{1000 * goal:.0f}' if goal else ''} |", flush=True)


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="*", default=[1280, 2560, 5120, 10240])
    parser.add_argument("--only", choices=("ranks", "goals", "starts"), help="one of the three tables")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which a command is stopped")
    parser.add_argument("--directory", default=None, help="where trees are made; default: the temporary directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        if options.only in (None, "ranks"):
            show_ranks(Path(folder), options.ranks, options.limit)
        if options.only in (None, "goals"):
            show_goals(Path(folder), options.limit)
        if options.only in (None, "starts"):
            show_starts(15)


if __name__ == "__main__":
    main()
