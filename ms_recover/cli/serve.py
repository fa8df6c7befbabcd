"""``recover-ckpt serve``."""

from __future__ import annotations

from typing import Any

import click

from ms_recover.cli.options import cores, tree_options
from ms_recover.cli.peers import need_numpy, security_of, security_options
from ms_recover.cli.tree import scan_options_from


@click.command(name="serve")
@click.argument("root", type=click.Path())
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Where to listen; off loopback a token is required.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=29610, show_default=True, help="TCP port to listen at.")
@click.option("--idle", type=click.FloatRange(min=0.5), help="End after so many seconds without a client.")
@security_options
@tree_options
def command(root: str, bind: str, port: int, idle: float | None, **options: Any) -> int:
    """Serve ROOT to nodes that share no file system with this one, until Ctrl-C or SIGTERM.

    They use it with: recover-ckpt apply THEIR_ROOT --from HOST:PORT. Only what a scan finds below ROOT is read, and
    nothing is written.
    """
    need_numpy()
    from ms_recover.remote.server import serve

    serve(
        root,
        address=bind,
        port=port,
        security=security_of(options),
        idle=idle,
        jobs=cores(),
        ready=click.echo,
        options=scan_options_from(options),
    )
    return 0
