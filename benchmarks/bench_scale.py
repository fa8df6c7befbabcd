"""Plan a tree of many ranks by headers and layouts, and show that the time per rank does not grow with their number."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ms_recover.formats.group_info import encode_group_info
from ms_recover.formats.image import ckpt_image
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.groups import GroupInfo
from ms_recover.model.slices import Parameter
from ms_recover.model.strategy import Strategy

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support
from tests.support.cuts import cut_layout, fill

LAYERS = 24
NAMES = ("attention.qkv", "attention.out", "mlp.up", "mlp.down", "norm1.gamma", "norm2.gamma")
MODEL_PARALLEL = 8
SHARDS = 4


def make_tree(root: Path, ranks: int) -> int:
    """Write headers and layouts of a transformer with Adam; the contents are zeros, one row a parameter.

    Weights are cut over 8 ranks, optimizer shards over 4 of the data-parallel ones, so that slices repeat; norms are
    cut over all data-parallel ranks. Returns the number of parameters of a slice.
    """
    matrix = (ranks // MODEL_PARALLEL, MODEL_PARALLEL)
    layouts, parameters = [], []
    for state in ("", "moment1.", "moment2."):
        for layer in range(LAYERS):
            for place, short in enumerate(NAMES):
                name = f"{state}blocks.{layer}.{short}"
                norm = "norm" in short
                maps = ((),) if norm else ((0,), ()) if place % 2 else ((), (0,))
                layouts.append(cut_layout(name, matrix, *maps, shards=SHARDS))
                parameters.append(Parameter(name, "Float32", (4,) if norm else (1, 4), 16))
    parameters += [Parameter(name, "Float32", (), 4) for name in ("beta1_power", "beta2_power", "learning_rate")]
    data = fill(
        ckpt_image(parameters, [[one.nbytes] for one in parameters]), {p.name: bytes(p.nbytes) for p in parameters}
    )
    strategy = encode_strategy(Strategy((0,), 2, tuple(layouts)))
    step = MODEL_PARALLEL * SHARDS
    for rank in range(ranks):
        folder = root / f"ckpt_dir{rank}"
        folder.mkdir(parents=True)
        group = GroupInfo(tuple(range(rank % step, ranks, step)))
        (folder / "group_info.pb").write_bytes(encode_group_info(group))
        (folder / "strategy.ckpt").write_bytes(strategy)
        (folder / "test-1_8.ckpt").write_bytes(data)
    return len(parameters)


def measure(root: Path, lost: str) -> dict[str, float]:
    """Plan in a new process; return seconds and what was planned."""
    command = [sys.executable, "-c", "import sys; from ms_recover.cli.main import main; sys.exit(main())"]
    begin = time.perf_counter()
    done = subprocess.run(
        [*command, "plan", str(root), "--quick", "--lost", lost, "--json"], capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - begin
    plan = json.loads(done.stdout)
    return {"seconds": seconds, "code": done.returncode, "actions": len(plan["actions"])}


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1280, 2560, 5120, 10240])
    parser.add_argument("--directory", default=None, help="where trees are made; default: the temporary directory")
    options = parser.parse_args()
    print("| ranks | parameters | lost | seconds | ms per rank | actions |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        for ranks in options.ranks:
            root = Path(folder) / str(ranks)
            count = make_tree(root, ranks)
            os.sync()
            step = MODEL_PARALLEL * SHARDS
            for what, lost in (("one node of 8", "0-7"), ("a whole group", ",".join(map(str, range(0, ranks, step))))):
                found = measure(root, lost)
                print(
                    f"| {ranks} | {count} | {what} | {found['seconds']:.2f} | "
                    f"{1000 * found['seconds'] / ranks:.2f} | {found['actions']} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
