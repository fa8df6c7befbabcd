"""``recover-ckpt seal``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.options import json_option, takes_check, takes_scan
from ms_recover.cli.output import print_json, print_text, text_width
from ms_recover.cli.tree import cores, scan_tree, verification_code

if TYPE_CHECKING:
    from ms_recover.model.options import PlanOptions, ScanOptions


@click.command(name="seal", cls=Command, example="recover-ckpt seal /checkpoints --step 2_77")
@click.argument("root", type=click.Path(readable=False))
@takes_check
@takes_scan
@json_option
def command(root: str, as_json: bool, plan: PlanOptions, scan: ScanOptions) -> int:
    """Write the missing manifests below ROOT, after the vote of each group.

    Slices that are damaged, outvoted or undecided get none; the exit code is 5 then.
    """
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.verification_text import verification_text

    inventory = scan_tree(root, scan, as_json=as_json)
    with progress_bar("reading", None, as_json) as progress:
        sealed, found = api.seal(inventory, plan, jobs=cores(), progress=progress)
    if as_json:
        from ms_recover.formats.report_json import verification_to_json

        print_json({"sealed": list(sealed), **verification_to_json(found)})
    else:
        print_text(f"{len(sealed)} manifests written\n{verification_text(found, text_width())}")
    return verification_code(found)
