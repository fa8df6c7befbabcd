"""``recover-ckpt complete``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.options import json_option, takes_plan, takes_scan
from ms_recover.cli.output import print_json, print_text
from ms_recover.cli.tree import cores, scan_tree
from ms_recover.errors import UsageError
from ms_recover.file_names import WEIGHT_KINDS

if TYPE_CHECKING:
    from ms_recover.file_names import WeightKind
    from ms_recover.model.options import PlanOptions, ScanOptions


@click.command(name="complete", cls=Command, example="recover-ckpt complete /checkpoints 3 -o rank3.ckpt")
@click.argument("root", type=click.Path(readable=False))
@click.argument("rank", type=click.IntRange(0))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write; default: {name}.complete.ckpt in the rank's directory. Nothing is overwritten.",
)
@click.option(
    "--part",
    type=click.Choice(["model", "opt"]),
    help="Of MindFormers' iterations: write the model file, or the optimizer file; default: both.",
)
@click.option("--no-verify", is_flag=True, help="Do not read the file back from the device to compare digests.")
@click.option("--dry-run", is_flag=True, help="Say what would be written, and from whom; write nothing.")
@takes_plan(without=("clean", "lost", "newest", "require_newest", "quick", "ranks", "follow"))
@takes_scan
@json_option
def command(  # noqa: PLR0913 (an option each)
    *,
    root: str,
    rank: int,
    output: str | None,
    part: WeightKind | None,
    no_verify: bool,
    dry_run: bool,
    as_json: bool,
    plan: PlanOptions,
    scan: ScanOptions,
) -> int:
    """Write a full slice for RANK from the parts of its peers.

    For trees saved with remove_redundancy=True, where each parameter lies with one rank of its group only. Of an
    iteration of MindFormers the model file and the optimizer file are written.
    """
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.tables import size_text

    inventory = scan_tree(root, scan, run=plan.run, as_json=as_json)
    whole = bool(inventory.iterations) and part is None
    if part is not None and not inventory.iterations:
        raise UsageError("--part is for iterations of MindFormers: a slice of this tree is one file")
    if output is not None and whole:
        raise UsageError("-o names one file, and a slice of an iteration is two: add --part model or --part opt")
    with progress_bar("reading", None, as_json) as progress:
        results = api.complete_iteration(
            inventory,
            rank,
            plan,
            kinds=WEIGHT_KINDS if part is None else (part,),
            output=output,
            jobs=cores(),
            verify=not no_verify,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        from ms_recover.formats.record import record

        printed = [record(result) for result in results]
        print_json({"results": printed} if whole else printed[0])
    else:
        for result in results:
            would = " would be written" if dry_run else ""
            print_text(f"{result.target}: {size_text(result.bytes)}{would}, from {result.source}")
    return 0
