"""``recover-ckpt scan``."""

from __future__ import annotations

import click

from ms_recover.cli.options import json_option, print_json, print_text, text_width, tree_options


@click.command(name="scan")
@click.argument("root", type=click.Path())
@tree_options
@json_option
def command(root: str, pattern: str | None, group_info: tuple[str, ...], no_crc: bool, as_json: bool) -> int:
    """List the slices, steps and rank lists below ROOT."""
    from ms_recover import api
    from ms_recover.reporting.text import inventory_text

    inventory = api.scan(root, pattern=pattern, group_info=group_info, crc=not no_crc)
    if as_json:
        print_json(inventory.to_json())
    else:
        print_text(inventory_text(inventory, text_width()))
    return 0
