"""``recover-ckpt seal``."""

from __future__ import annotations

from typing import Any

import click

from ms_recover.cli.options import (
    cores,
    json_option,
    print_json,
    print_text,
    step_option,
    text_width,
    tolerate_option,
    tree_options,
    world_size_option,
)
from ms_recover.cli.tree import progress_bar, scan_tree
from ms_recover.errors import VerificationError
from ms_recover.model.steps import Step


@click.command(name="seal")
@click.argument("root", type=click.Path())
@step_option
@world_size_option
@tolerate_option
@tree_options
@json_option
def command(
    root: str, step: Step | None, world_size: int | None, tolerate: tuple[str, ...], as_json: bool, **options: Any
) -> int:
    """Write manifests for the slices below ROOT that have none, after the vote of each group.

    Slices that are damaged, outvoted or undecided get none; the exit code is 5 then.
    """
    from ms_recover import api
    from ms_recover.model.options import PlanOptions
    from ms_recover.reporting.text import verification_text

    inventory = scan_tree(root, options)
    with progress_bar("reading", None, as_json) as progress:
        sealed, found = api.seal(
            inventory,
            PlanOptions(step=step, world_size=world_size, tolerate=tolerate),
            jobs=cores(),
            progress=progress,
        )
    if as_json:
        from ms_recover.formats.report_json import verification_to_json

        print_json({"sealed": list(sealed), **verification_to_json(found)})
    else:
        print_text(f"{len(sealed)} manifests written\n{verification_text(found, text_width())}")
    return VerificationError.exit_code if found.wrong else 0
