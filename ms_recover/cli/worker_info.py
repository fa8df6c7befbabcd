"""``recover-ckpt worker-info``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.engine import opened_engine
from ms_recover.cli.options import takes_engine
from ms_recover.cli.output import print_json
from ms_recover.errors import InputError

if TYPE_CHECKING:
    from ms_recover.cli.options import EngineOptions


@click.command(
    name="worker-info",
    cls=Command,
    example="recover-ckpt worker-info /data/ckpt\n"
    "recover-ckpt worker-info 'node://*/data/ckpt' --engine dask://scheduler:8786",
)
@click.argument("root", type=click.Path(readable=False))
@takes_engine
def command(root: str, engine: EngineOptions) -> int:
    """Print as JSON what this host sees at ROOT: the directory, which one it is, and the free space.

    With --engine the same of every worker. MS_RECOVER_NODE_ROOTS on a host says where roots lie there, for example
    /data/ckpt=/mnt/disk1/ckpt. Ends with 3 when a worker cannot take part or a root cannot be read.
    """
    import os
    import socket

    from ms_recover.engine.nodes import NodeTree, is_node_url
    from ms_recover.engine.workers import reports_to_json

    tree = NodeTree.parse(root) if is_node_url(root) else NodeTree(("*",), os.path.abspath(root))
    with opened_engine(engine) as opened:
        reports = [one for one in opened.look(tree.root) if tree.takes(one.names)]
    print_json(reports_to_json(socket.gethostname(), reports))
    troubles = [one.problem or (one.root.problem if one.root is not None else None) for one in reports]
    return InputError.exit_code if any(troubles) else 0
