"""``recover-ckpt history``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.options import json_option, takes_plan, takes_scan
from ms_recover.cli.output import print_json, print_text, text_width
from ms_recover.cli.tree import cores
from ms_recover.errors import VerificationError

if TYPE_CHECKING:
    from ms_recover.model.options import PlanOptions, ScanOptions


@click.command(
    name="history",
    cls=Command,
    example="recover-ckpt history /checkpoints\nrecover-ckpt history /checkpoints --read --json",
)
@click.argument("root", type=click.Path(readable=False))
@click.option(
    "--read", is_flag=True, help="Read the slices as well, each contents once: find NaN, Inf and what became all zero."
)
@click.option(
    "--last", metavar="N", type=click.IntRange(1), help="With --read: read the slices of the N newest steps only."
)
@takes_plan(without=("step", "clean", "require_newest", "quick", "ranks", "follow"))
@takes_scan
@json_option
@click.pass_context
def command(  # noqa: PLR0913 (an option each)
    ctx: click.Context,
    *,
    root: str,
    read: bool,
    last: int | None,
    as_json: bool,
    plan: PlanOptions,
    scan: ScanOptions,
) -> int:
    """Say at which step, parameter and rank replicas first disagreed, and the last clean step.

    Reads the manifests below ROOT, and no slice without --read. ROOT is a directory or the URL of one: see
    docs/stores.md. Ends with 5 where replicas disagreed or values are not finite.
    recover-ckpt plan ROOT --clean takes the last clean step.
    """
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.history_text import history_text
    from ms_recover.stores.urls import root_of_run
    from ms_recover.verbs.history import history

    if last is not None and not read:
        raise click.UsageError("--last says how many steps --read reads: give both", ctx)
    root = root if plan.run is None else root_of_run(root, plan.run)
    with progress_bar("reading", None, as_json or not read) as progress:
        found = history(root, plan, layout=scan, read=read, last=last, jobs=cores(), progress=progress)
    if as_json:
        from ms_recover.formats.record import record

        print_json(record(found))
    else:
        print_text(history_text(found, text_width()))
    return 0 if found.ok else VerificationError.exit_code
