"""Options and planning for trees that other nodes serve."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ms_recover.cli.options import cores, parse_ranks
from ms_recover.cli.tree import plan_options_from, progress_bar, scan_options_from
from ms_recover.errors import InputError, StorageError, UsageError

if TYPE_CHECKING:
    from ms_recover.remote.client import Peers, RemotePlan
    from ms_recover.remote.peer import Address
    from ms_recover.worlds.security import Security

_F = TypeVar("_F", bound=Callable[..., Any])
_TLS = {
    "certificate": "MS_RECOVER_WORLDS_CERTIFICATE",
    "key": "MS_RECOVER_WORLDS_KEY",
    "authority": "MS_RECOVER_WORLDS_AUTHORITY",
}
_ALONE = ("ranks", "token_file", *_TLS, "timeout")


def security_options(function: _F) -> _F:
    """Add the options that say who may take part."""
    options = [
        click.option(
            "--token-file",
            metavar="PATH",
            type=click.Path(dir_okay=False),
            help="File of mode 600 with the token that servers and clients share; default: "
            "MS_RECOVER_WORLDS_TOKEN_FILE, or the token itself in MS_RECOVER_WORLDS_TOKEN. Needed off loopback.",
        ),
        *(
            click.option(
                f"--{name}",
                metavar="FILE",
                type=click.Path(dir_okay=False),
                envvar=variable,
                help=f"{what}; default: {variable}.",
            )
            for (name, variable), what in zip(
                _TLS.items(),
                (
                    "Speak TLS, and show this certificate of this node. PEM; with --key and --authority, on both sides",
                    "Private key of the certificate, which others cannot read",
                    "Certificate of the authority that has to have signed those of all nodes",
                ),
                strict=True,
            )
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def from_options(function: _F) -> _F:
    """Add the options that take other nodes' trees in."""
    options = [
        click.option(
            "--from",
            "servers",
            metavar="HOST:PORT",
            multiple=True,
            help="Plan over the tree of another node as well, which runs recover-ckpt serve, and fetch from it what "
            "this node lacks. Repeatable.",
        ),
        click.option(
            "--ranks",
            metavar="RANKS",
            callback=parse_ranks,
            help="With --from: the ranks that live on this node, for example 8-15; only these need a slice. Default: "
            "every rank that has no files on other nodes alone.",
        ),
        security_options,
        click.option(
            "--timeout",
            type=click.FloatRange(min=0.5, max=86400),
            default=10.0,
            show_default=True,
            help="With --from: seconds to wait for a server to answer, at first and whenever it is gone.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def check_alone(ctx: click.Context) -> None:
    """Refuse options that only mean something with ``--from``."""
    for name in _ALONE:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --from HOST:PORT", ctx)


def given_from(ctx: click.Context) -> list[str]:
    """Return the options of `from_options` as they were typed."""
    typed = [word for server in ctx.params["servers"] for word in ("--from", server)]
    for name in _ALONE:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            value = ctx.params[name]
            typed += [f"--{name.replace('_', '-')}", ",".join(map(str, value)) if name == "ranks" else str(value)]
    return typed


def need_numpy() -> None:
    """Say what to install where worlds cannot run.

    Raises
    ------
    UsageError
        When numpy is not installed.
    """
    if importlib.util.find_spec("numpy") is None:
        raise UsageError("talking with other nodes needs numpy: pip install numpy")


def security_of(options: dict[str, Any]) -> Security:
    """Return who may take part: by the token in a file or the environment, and by certificates when there are some.

    Raises
    ------
    UsageError
        When the files are not what they should be, or only some of those for TLS are given.
    """
    from ms_recover.worlds.security import Security

    token_file = options["token_file"]
    security = Security.from_file(token_file) if token_file is not None else Security.from_environment(tls=False)
    given = [name for name in _TLS if options[name] is not None]
    if not given:
        return security
    missing = [f"--{name} (or {variable})" for name, variable in _TLS.items() if name not in given]
    if missing:
        raise UsageError(
            f"TLS needs --certificate, --key and --authority, all three or none; missing: {', '.join(missing)}"
        )
    from ms_recover.remote.tls import with_certificates

    return with_certificates(security, options["certificate"], options["key"], options["authority"])


@contextmanager
def planned_with_peers(
    root: str, options: dict[str, Any], as_json: bool, explain: int | None = None
) -> Iterator[tuple[Peers, RemotePlan]]:
    """Scan, ask the servers what they have, and plan over all; the servers stay at hand inside."""
    need_numpy()
    from ms_recover import api
    from ms_recover.remote.client import Peers
    from ms_recover.remote.peer import Address

    scanning = replace(scan_options_from(options), may_be_empty=True)
    local = api.scan(os.path.abspath(root), scanning)
    addresses = [Address.parse(text) for text in dict.fromkeys(options["servers"])]
    security = security_of(options)
    with ExitStack() as stack:
        try:
            peers = stack.enter_context(Peers(addresses, security=security, timeout=options["timeout"]))
        except StorageError as error:
            _tell_of_tls(addresses, security, error)
            raise
        with progress_bar("reading", None, as_json) as progress:
            planned = peers.plan(local, plan_options_from(options), explain=explain, jobs=cores(), progress=progress)
        yield peers, planned


def _tell_of_tls(addresses: list[Address], security: Security, error: StorageError) -> None:
    """Say so when a server was not reached because the two sides do not agree about TLS.

    Raises
    ------
    InputError
    """
    from ms_recover.remote.tls import mismatch

    for address in addresses:
        why = mismatch(address.host, address.port, security)
        if why is not None:
            raise InputError(f"{address} {why}") from error
