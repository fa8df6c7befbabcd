"""``recover-ckpt copy``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.options import json_option, takes_plan, takes_scan
from ms_recover.cli.output import print_json, print_text, text_width
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
@click.option(
    "--verify/--no-verify",
    "verify",
    default=None,
    help="Read every slice of the step, and every object of it in the backup. Or read nothing back, and compare sizes. "
    "Default: slices without a manifest are read, the others when they are sent, and what was sent is read back.",
)
@click.option(
    "--dry-run", is_flag=True, help="Prove the step, and say what would be sent; write nothing. Ends as the copy would."
)
@takes_plan(without=("clean", "lost", "run", "newest", "require_newest", "quick", "ranks", "follow"))
@takes_scan
@json_option
def command(  # noqa: PLR0913 (an option each)
    *,
    root: str,
    url: str,
    jobs: int | None,
    verify: bool | None,
    dry_run: bool,
    as_json: bool,
    plan: PlanOptions,
    scan: ScanOptions,
) -> int:
    """Back up a proven step below ROOT to URL, contents once each.

    URL is a store (s3://, sftp://, ...) or a local directory outside ROOT: a backup, or nothing yet. Slices that are
    equal go there once, those without a manifest get one there, and what is sent is read back. Run again, it sends what
    is missing. The backup is a root for scan and plan, and a source: recover-ckpt apply ROOT --from URL.
    """
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.outcome_text import backup_text

    with api.open_target(url, root, dry_run=dry_run) as target:
        inventory = scan_tree(root, scan, as_json=as_json)
        with progress_bar("copying", None, as_json) as progress:
            jobs = jobs or max(cores(), _LEAST_JOBS)
            outcome = api.copy(inventory, target, plan, jobs=jobs, verify=verify, dry_run=dry_run, progress=progress)
    if as_json:
        from ms_recover.formats.record import record

        print_json(record(outcome))
    else:
        print_text(backup_text(outcome, text_width()))
    return outcome.exit_code
