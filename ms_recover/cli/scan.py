"""``recover-ckpt scan``."""

from __future__ import annotations

from typing import Any

import click

from ms_recover.cli.options import json_option, print_json, print_text, text_width, tree_options
from ms_recover.cli.tree import scan_tree


@click.command(name="scan")
@click.argument("root", type=click.Path())
@tree_options
@json_option
def command(root: str, as_json: bool, **options: Any) -> int:
    """List the slices, steps and rank lists below ROOT."""
    from ms_recover.reporting.text import inventory_text

    inventory = scan_tree(root, options)
    if as_json:
        from ms_recover.formats.report_json import inventory_to_json

        print_json(inventory_to_json(inventory))
    else:
        print_text(inventory_text(inventory, text_width()))
    return 0
