"""``recover-ckpt serve``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.options import takes_scan, takes_security
from ms_recover.cli.output import print_error, print_line, print_text
from ms_recover.cli.peers import access_of
from ms_recover.cli.tree import cores
from ms_recover.errors import UsageError, install_extra

if TYPE_CHECKING:
    from ms_recover.cli.options import PeerOptions
    from ms_recover.model.options import ScanOptions
    from ms_recover.serving.server import Listening


@click.command(name="serve", cls=Command, example="recover-ckpt serve /checkpoints --bind 10.0.0.2 --token-file token")
@click.argument("root", type=click.Path(readable=False))
@click.option(
    "--bind",
    metavar="ADDRESS",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen at; off loopback a token and TLS are required.",
)
@click.option("--port", type=click.IntRange(1, 65535), default=29610, show_default=True, help="TCP port to listen at.")
@click.option("--idle", type=click.FloatRange(min=0.5), help="End after so many seconds without a client.")
@takes_security
@takes_scan
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line: at the start and at the end.")
def command(  # noqa: PLR0913 (an option each)
    *, root: str, bind: str, port: int, idle: float | None, as_json: bool, peers: PeerOptions, scan: ScanOptions
) -> int:
    """Serve ROOT over HTTP, to nodes that share no file system with this one, until Ctrl-C or SIGTERM.

    They use it with: recover-ckpt apply THEIR_ROOT --from HOST:PORT; curl and browsers can read it too. Only slices and
    their companions that a scan finds below ROOT are given, and nothing is written.
    """
    need_packages()
    from ms_recover.serving.server import serve
    from ms_recover.stores.http_access import TOKEN_FILE_VARIABLE

    access = access_of(peers)

    def started(at: Listening) -> None:
        if not as_json:
            print_text(f"serving {os.path.realpath(root)} at {at.url}")
            if access.insecure and not (access.token and at.tls):
                missing = " and ".join(
                    name for name, there in (("a token", access.token), ("TLS", at.tls)) if not there
                )
                print_error(f"recover-ckpt: --insecure, and no {missing}: whoever reaches this port can read the tree")
            return
        from ms_recover.formats.record import record
        from ms_recover.model.listening import Started

        token_file = peers.token_file or os.environ.get(TOKEN_FILE_VARIABLE) or None
        print_line(
            record(
                Started(
                    root=os.path.realpath(root),
                    address=at.address,
                    port=at.port,
                    tls=at.tls,
                    token=bool(access.token),
                    token_file=None if token_file is None else os.path.abspath(token_file),
                    pid=os.getpid(),
                )
            )
        )

    end = serve(
        root,
        address=bind,
        port=port,
        access=access,
        idle=idle,
        jobs=cores(),
        started=started,
        options=scan,
    )
    if as_json:
        from ms_recover.formats.record import record
        from ms_recover.model.listening import Stopped

        print_line(record(Stopped(reason=end)))
    return 0


def need_packages() -> None:
    """Raise UsageError when a package that serves is not installed."""
    import importlib.util

    for name in ("aiohttp", "prometheus_client"):
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"recover-ckpt serve needs {name}: {install_extra('serve')}")
