"""``recover-ckpt complete``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.options import json_option, takes_check, takes_scan
from ms_recover.cli.output import print_json, print_text
from ms_recover.cli.tree import cores, scan_tree

if TYPE_CHECKING:
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
@click.option("--no-verify", is_flag=True, help="Do not read the file back from the device to compare digests.")
@takes_check
@takes_scan
@json_option
def command(
    root: str, rank: int, output: str | None, no_verify: bool, as_json: bool, plan: PlanOptions, scan: ScanOptions
) -> int:
    """Write a full slice for RANK from the parts of its peers.

    For trees saved with remove_redundancy=True, where each parameter lies with one rank of its group only.
    """
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.tables import size_text

    inventory = scan_tree(root, scan, as_json=as_json)
    with progress_bar("reading", None, as_json) as progress:
        result = api.complete(
            inventory, rank, plan, output=output, jobs=cores(), verify=not no_verify, progress=progress
        )
    if as_json:
        from ms_recover.formats.report_json import result_to_json

        print_json(result_to_json(result))
    else:
        print_text(f"{result.target}: {size_text(result.bytes)}, from {result.source}")
    return 0
