"""``recover-ckpt complete``."""

from __future__ import annotations

from typing import Any

import click

from ms_recover.cli.options import (
    cores,
    json_option,
    print_json,
    print_text,
    step_option,
    tolerate_option,
    tree_options,
    world_size_option,
)
from ms_recover.cli.tree import progress_bar, scan_tree


@click.command(name="complete")
@click.argument("root", type=click.Path())
@click.argument("rank", type=click.IntRange(0))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False),
    help="File to write; default: {name}.complete.ckpt in the rank's directory. Nothing is overwritten.",
)
@click.option("--no-verify", is_flag=True, help="Do not read the file back from the device to compare digests.")
@step_option
@world_size_option
@tolerate_option
@tree_options
@json_option
def command(root: str, rank: int, output: str | None, no_verify: bool, as_json: bool, **options: Any) -> int:
    """Write a full slice for RANK out of its peers' parts.

    For trees saved with remove_redundancy=True, where each parameter lies with one rank of its group only.
    """
    from ms_recover import api
    from ms_recover.model.options import PlanOptions
    from ms_recover.reporting.tables import size_text

    inventory = scan_tree(root, options)
    with progress_bar("reading", None, as_json) as progress:
        result = api.complete(
            inventory,
            rank,
            PlanOptions(step=options["step"], world_size=options["world_size"], tolerate=options["tolerate"]),
            output=output,
            jobs=cores(),
            verify=not no_verify,
            progress=progress,
        )
    if as_json:
        from ms_recover.formats.report_json import result_to_json

        print_json(result_to_json(result))
    else:
        print_text(f"{result.target}: {size_text(result.bytes)}, from {result.source}")
    return 0
