"""``recover-ckpt scan``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.engine import check_local, is_spread, scan_spread, spread_tree
from ms_recover.cli.options import json_option, takes_engine, takes_scan
from ms_recover.cli.output import is_ascii_only, print_json, print_text, text_width
from ms_recover.cli.picture import picture_topology
from ms_recover.cli.topology import topology_options
from ms_recover.cli.tree import scan_tree

if TYPE_CHECKING:
    from ms_recover.cli.options import EngineOptions
    from ms_recover.cli.topology import TopologyOptions
    from ms_recover.model.options import ScanOptions


@click.command(name="scan", cls=Command, example="recover-ckpt scan /checkpoints")
@click.argument("root", type=click.Path(readable=False))
@takes_engine
@takes_scan
@topology_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    root: str,
    as_json: bool,
    engine: EngineOptions,
    scan: ScanOptions,
    topology: TopologyOptions,
) -> int:
    """List the slices, steps and rank lists below ROOT.

    ROOT is a directory or the URL of one: see docs/stores.md.
    """
    from ms_recover.reporting.inventory_text import inventory_text

    if is_spread(root, engine):
        with spread_tree(root, engine) as tree:
            inventory = scan_spread(tree, scan, as_json=as_json)
    else:
        check_local(ctx)
        inventory = scan_tree(root, scan, as_json=as_json)
    if as_json:
        from dataclasses import replace

        from ms_recover.formats.record import record
        from ms_recover.planning.tree.positions import find_positions

        print_json(record(replace(inventory, positions=find_positions(inventory.slices).every)))
    else:
        places = picture_topology(inventory, topology)
        print_text(inventory_text(inventory, text_width(), topology=places, ascii_only=is_ascii_only()))
    return 0
