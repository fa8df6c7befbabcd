"""Options and planning for trees that other nodes serve."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ms_recover.cli.options import cores, parse_ranks
from ms_recover.cli.tree import progress_bar
from ms_recover.errors import UsageError

if TYPE_CHECKING:
    from ms_recover.remote.client import Peers, RemotePlan
    from ms_recover.worlds.security import Security

_F = TypeVar("_F", bound=Callable[..., Any])
_ALONE = ("ranks", "token_file", "timeout")

token_file_option = click.option(
    "--token-file",
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="File of mode 600 with the token that servers and clients share; default: MS_RECOVER_WORLDS_TOKEN_FILE, or "
    "the token itself in MS_RECOVER_WORLDS_TOKEN. Needed off loopback.",
)


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
        token_file_option,
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


def security_of(token_file: str | None) -> Security:
    """Return who may take part, by the token in a file or in the environment."""
    from ms_recover.worlds.security import Security

    return Security.from_file(token_file) if token_file is not None else Security.from_environment()


@contextmanager
def planned_with_peers(
    root: str, options: dict[str, Any], as_json: bool, explain: int | None = None
) -> Iterator[tuple[Peers, RemotePlan]]:
    """Scan, ask the servers what they have, and plan over all; the servers stay at hand inside."""
    need_numpy()
    from ms_recover import api
    from ms_recover.remote.client import Peers
    from ms_recover.remote.peer import Address

    local = api.scan(
        os.path.abspath(root),
        pattern=options["pattern"],
        group_info=options["group_info"],
        strategy=options["strategy"],
        crc=not options["no_crc"],
        may_be_empty=True,
    )
    addresses = [Address.parse(text) for text in dict.fromkeys(options["servers"])]
    security = security_of(options["token_file"])
    with Peers(addresses, security=security, timeout=options["timeout"]) as peers:
        with progress_bar("reading", None, as_json) as progress:
            planned = peers.plan(
                local,
                ranks=options["ranks"] or None,
                explain=explain,
                step=options["step"],
                lost=options["lost"],
                world_size=options["world_size"],
                newest=options["newest"],
                tolerate=options["tolerate"],
                quick=options["quick"],
                jobs=cores(),
                progress=progress,
            )
        yield peers, planned
