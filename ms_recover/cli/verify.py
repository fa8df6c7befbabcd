"""``recover-ckpt verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.engine import reader_of, scanned_tree
from ms_recover.cli.options import json_option, takes_engine, takes_plan, takes_scan
from ms_recover.cli.output import print_json, print_text, text_width
from ms_recover.cli.tree import cores, verification_code

if TYPE_CHECKING:
    from ms_recover.cli.options import EngineOptions
    from ms_recover.model.options import PlanOptions, ScanOptions


@click.command(name="verify", cls=Command, example="recover-ckpt verify /checkpoints --deep")
@click.argument("root", type=click.Path(readable=False))
@click.option("--deep", is_flag=True, help="Read from the device, not from the page cache.")
@takes_plan(without=("clean", "lost", "run", "newest", "require_newest", "quick", "ranks", "follow"))
@takes_engine
@takes_scan
@json_option
def command(
    *,
    root: str,
    deep: bool,
    as_json: bool,
    plan: PlanOptions,
    engine: EngineOptions,
    scan: ScanOptions,
) -> int:
    """Read every slice below ROOT and check it against its manifest, its structure and its peers.

    ROOT is a directory or the URL of one: see docs/stores.md.
    """
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.verification_text import verification_text

    with (
        scanned_tree(root, engine, scan, as_json=as_json) as (inventory, tree),
        progress_bar("reading", None, as_json) as progress,
    ):
        read = reader_of(tree, progress, from_device=deep)
        checked = api.verify(inventory, plan, deep=deep, jobs=cores(), progress=progress, read=read)
    if as_json:
        from ms_recover.formats.record import record

        print_json(record(checked))
    else:
        print_text(verification_text(checked, text_width(), progress.done, progress.seconds))
    return verification_code(checked)
