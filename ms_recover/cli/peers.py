"""Planning over trees that other nodes serve."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ms_recover.cli.fields import ambient_options, typed_options
from ms_recover.cli.options import TLS_VARIABLES, PeerOptions
from ms_recover.cli.tree import cores, log_plan, scan_tree
from ms_recover.errors import InputError, StorageError, UsageError

if TYPE_CHECKING:
    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.remote.client import Peers, RemotePlan
    from ms_recover.remote.peer import Address
    from ms_recover.worlds.security import Security


def check_alone(ctx: click.Context) -> None:
    """Raise click.UsageError when an option that has a meaning only with ``--from`` is given.

    The environment of a node may say how it meets others; which ranks count would change a plan without others.
    """
    typed = [option for option in typed_options(ctx) if option.target == "peers"]
    for option in (*typed, *(one for one in (*typed_options(ctx), *ambient_options(ctx)) if one.field == "ranks")):
        raise click.UsageError(f"{option.opts[0]} goes with --from HOST:PORT", ctx)


def need_numpy() -> None:
    """Raise UsageError when numpy, which worlds need, is not installed."""
    import importlib.util

    if importlib.util.find_spec("numpy") is None:
        raise UsageError("a recovery over several nodes needs numpy: pip install numpy")


def security_of(options: PeerOptions) -> Security:
    """Return who may take part: by the token in a file or the environment, and by certificates when there are some.

    Raises UsageError when the files are invalid, or only some of the three for TLS are given.
    """
    from ms_recover.worlds.security import Security

    token = options.token_file
    security = Security.from_environment(tls=False) if token is None else Security.from_file(token)
    files = {name: getattr(options, name) for name in TLS_VARIABLES}
    missing = [f"--{name} (or {TLS_VARIABLES[name]})" for name, path in files.items() if path is None]
    if len(missing) == len(files):
        return security
    if missing:
        raise UsageError(
            f"TLS needs --certificate, --key and --authority, all three or none; missing: {', '.join(missing)}"
        )
    from ms_recover.worlds.security import with_certificates

    return with_certificates(security, **files)


@contextmanager
def planned_with_peers(
    root: str,
    scan: ScanOptions,
    plan: PlanOptions,
    peers: PeerOptions,
    *,
    explain: int | None = None,
    as_json: bool = False,
) -> Iterator[tuple[Peers, RemotePlan]]:
    """Scan, ask the servers for their inventories, and plan over all; the connections stay open inside."""
    need_numpy()
    from ms_recover.cli.progress import progress_bar
    from ms_recover.remote.client import Peers
    from ms_recover.remote.peer import Address

    local = scan_tree(os.path.abspath(root), replace(scan, may_be_empty=True), as_json=as_json)
    addresses = [Address.parse(text) for text in dict.fromkeys(peers.servers)]
    allowed = security_of(peers)
    with ExitStack() as stack:
        try:
            nodes = stack.enter_context(Peers(addresses, security=allowed, timeout=peers.timeout))
        except StorageError as error:
            _check_tls(addresses, allowed, error)
            raise
        with progress_bar("reading", None, as_json) as progress:
            planned = nodes.plan(local, plan, explain=explain, jobs=cores(), progress=progress)
        log_plan(planned.plan)
        yield nodes, planned


def _check_tls(addresses: list[Address], security: Security, error: StorageError) -> None:
    """Raise InputError when a server was not reached because the two sides do not agree about TLS."""
    from ms_recover.remote.tls import mismatch

    for address in addresses:
        why = mismatch(address.host, address.port, security)
        if why is not None:
            raise InputError(f"{address} {why}") from error
