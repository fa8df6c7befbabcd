"""``recover-ckpt serve``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from ms_recover.cli.options import takes_scan, takes_security
from ms_recover.cli.output import print_text
from ms_recover.cli.peers import need_numpy, security_of
from ms_recover.cli.tree import cores

if TYPE_CHECKING:
    from ms_recover.cli.options import PeerOptions
    from ms_recover.model.options import ScanOptions


@click.command(name="serve")
@click.argument("root", type=click.Path(readable=False))
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen at; off loopback a token is required.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=29610, show_default=True, help="TCP port to listen at.")
@click.option("--idle", type=click.FloatRange(min=0.5), help="End after so many seconds without a client.")
@takes_security
@takes_scan
def command(root: str, bind: str, port: int, idle: float | None, peers: PeerOptions, scan: ScanOptions) -> int:
    """Serve ROOT to nodes that share no file system with this one, until Ctrl-C or SIGTERM.

    They use it with: recover-ckpt apply THEIR_ROOT --from HOST:PORT. Only slices and their companions that a scan
    finds below ROOT are read, and nothing is written.
    """
    need_numpy()
    from ms_recover.remote.server import serve

    serve(
        root,
        address=bind,
        port=port,
        security=security_of(peers),
        idle=idle,
        jobs=cores(),
        ready=print_text,
        options=scan,
    )
    return 0
