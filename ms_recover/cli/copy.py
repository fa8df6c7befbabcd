"""``recover-ckpt copy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.options import json_option, takes_check, takes_scan
from ms_recover.cli.output import print_json, print_text
from ms_recover.cli.tree import cores, scan_tree

if TYPE_CHECKING:
    from ms_recover.model.options import PlanOptions, ScanOptions

_LEAST_JOBS = 4


@click.command(
    name="copy",
    cls=Command,
    example="recover-ckpt copy /checkpoints s3://bucket/run7\nrecover-ckpt copy /checkpoints sftp://node9/backup "
    "--step 2_77",
)
@click.argument("root", type=click.Path(readable=False))
@click.argument("url")
@click.option("--jobs", type=click.IntRange(1, 256), help="Threads; default: one a core, and four at least.")
@click.option("--no-verify", is_flag=True, help="Do not read the backup back to compare digests; sizes are compared.")
@takes_check
@takes_scan
@json_option
def command(
    root: str,
    url: str,
    jobs: int | None,
    no_verify: bool,
    as_json: bool,
    plan: PlanOptions,
    scan: ScanOptions,
) -> int:
    """Back up a proven step below ROOT to URL, contents once each.

    URL is a store (s3://, sftp://, ...) or a local directory: a backup, or nothing yet. Slices that are equal go there
    once, those without a manifest get one there, and all are read back. Run again, it sends what is missing. The backup
    is a root for scan and plan, and a source: recover-ckpt apply ROOT --from URL.
    """
    from ms_recover.backing_up import copy
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.backup_text import backup_text

    inventory = scan_tree(root, scan, as_json=as_json)
    with progress_bar("copying", None, as_json) as progress:
        jobs = jobs or max(cores(), _LEAST_JOBS)
        outcome = copy(inventory, url, plan, jobs=jobs, verify=not no_verify, progress=progress)
    if as_json:
        from ms_recover.formats.report_json import backup_to_json

        print_json(backup_to_json(outcome))
    else:
        print_text(backup_text(outcome))
    return 0
