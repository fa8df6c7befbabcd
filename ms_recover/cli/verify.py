"""``recover-ckpt verify``."""

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


@click.command(name="verify")
@click.argument("root", type=click.Path())
@step_option
@click.option("--deep", is_flag=True, help="Read from the device, not from the page cache.")
@world_size_option
@tolerate_option
@tree_options
@json_option
def command(
    root: str,
    step: Step | None,
    deep: bool,
    world_size: int | None,
    tolerate: tuple[str, ...],
    as_json: bool,
    **options: Any,
) -> int:
    """Read every slice below ROOT and check it against its manifest, its structure and its peers."""
    from ms_recover import api
    from ms_recover.model.options import PlanOptions
    from ms_recover.reporting.text import verification_text

    inventory = scan_tree(root, options)
    with progress_bar("reading", None, as_json) as progress:
        found = api.verify(
            inventory,
            PlanOptions(step=step, world_size=world_size, tolerate=tolerate),
            deep=deep,
            jobs=cores(),
            progress=progress,
        )
    if as_json:
        from ms_recover.formats.report_json import verification_to_json

        print_json(verification_to_json(found))
    else:
        print_text(verification_text(found, text_width()))
    return VerificationError.exit_code if found.wrong else 0
