"""Compare the losses of a resumed run with those of an uninterrupted one, step by step, to the last bit."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

Losses = dict[tuple[int, int], str]
"""Loss by epoch and step, in hexadecimal."""


def last_run(directory: Path, rank: int) -> Losses:
    """Return the losses that the last process of a rank recorded."""
    path = directory / f"ckpt_dir{rank}" / f"loss{rank}.jsonl"
    if not path.is_file():
        sys.exit(f"{path} is not there: rank {rank} has not trained")
    lines = path.read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    return {
        (record["epoch"], record["step"]): record["loss"]
        for record in records
        if record["process"] == records[-1]["process"]
    }


def show(loss: str | None) -> str:
    """Return a loss in decimal and in hexadecimal."""
    return "-" if loss is None else f"{float.fromhex(loss):.9g} {loss}"


def compare(whole: list[Losses], resumed: list[Losses], after: tuple[int, int]) -> bool:
    """Print a table of all steps behind `after`; return whether every rank had every loss alike.

    Parameters
    ----------
    whole, resumed : list of Losses
        Of the uninterrupted and of the resumed run; index = rank.
    after : tuple of int
        Epoch and step of the slices that training resumed from.
    """
    steps = sorted(step for step in whole[0] if step > after)
    print(f"{'step':>8}  {'uninterrupted loss':>32}  {'recovered loss':>32}  equal on all {len(whole)} ranks")
    good = bool(steps)
    for step in steps:
        equal = all(old.get(step) == new.get(step) for old, new in zip(whole, resumed, strict=True))
        good = good and equal
        old, new = (show(run.get(step)) for run in (whole[0], resumed[0]))
        print(f"{f'{step[0]}_{step[1]}':>8}  {old:>32}  {new:>32}  {'yes' if equal else 'NO'}")
    for rank, losses in enumerate(resumed):
        if set(losses) != set(steps):
            print(f"rank {rank} recorded {len(losses)} steps after the resume, expected {len(steps)}")
            good = False
    print(f"{len(steps)} steps compared on {len(whole)} ranks: {'all losses equal' if good else 'NOT equal'}")
    return good


def main() -> int:
    """Compare two output directories; 0 when all losses are equal, 1 when not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("uninterrupted", type=Path, help="output directory of the run that was never interrupted")
    parser.add_argument("recovered", type=Path, help="output directory of the run that was resumed")
    parser.add_argument("--after", required=True, help="EPOCH_STEP of the slices that training resumed from")
    parser.add_argument("--ranks", type=int, required=True, help="number of ranks")
    options = parser.parse_args()
    epoch, step = map(int, options.after.split("_"))
    whole = [last_run(options.uninterrupted, rank) for rank in range(options.ranks)]
    resumed = [last_run(options.recovered, rank) for rank in range(options.ranks)]
    return 0 if compare(whole, resumed, (epoch, step)) else 1


if __name__ == "__main__":
    sys.exit(main())
