"""Options that commands share, and how values are parsed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ms_recover.cli.fields import FieldDeclaration, field_option, takes

if TYPE_CHECKING:
    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.model.steps import Step

_RANKS = re.compile(r"(\d{1,8})(?:-(\d{1,8}))?\Z", re.ASCII)
_MOST_RANKS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityOptions:
    """Who may take part in a recovery over several nodes.

    Parameters
    ----------
    token_file : str or None
        File of mode 600 with the token; None for the token of the environment.
    certificate, key, authority : str or None
        PEM files for TLS: all three or none.
    """

    token_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """The other nodes whose trees take part.

    Parameters
    ----------
    servers : tuple of str
        ``HOST:PORT`` of each.
    timeout : float
        Seconds to wait for an answer.
    """

    servers: tuple[str, ...] = ()
    timeout: float = 10.0


def parse_step(text: str) -> Step:
    """Parse ``EPOCH_STEP``; ValueError when it is invalid."""
    from ms_recover.model.steps import Step

    return Step.parse(text)


def parse_ranks(text: str) -> frozenset[int]:
    """Parse ``0,3,8-15``.

    Raises
    ------
    ValueError
        When a part is neither a rank nor a range.
    """
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANKS.match(part.strip())
        if match is None:
            raise ValueError(f"{part!r} is neither a rank nor a range: write for example 0,3 or 8-15")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= _MOST_RANKS:
            raise ValueError(f"{part!r} is not a range of ranks below {_MOST_RANKS}")
        ranks.update(range(first, last + 1))
    return frozenset(ranks)


def spell_ranks(ranks: Iterable[int]) -> str:
    """Return ranks as `parse_ranks` reads them."""
    from ms_recover.reporting.tables import ranks_text

    return ranks_text(ranks).replace(" ", "")


PATTERN = field_option(
    "--pattern",
    target="scan",
    field="pattern",
    metavar="PATTERN",
    help="Where slices lie below ROOT, with {rank} {prefix} {epoch} {step}; "
    "default: ckpt_dir{rank}/ and rank_{rank}/, also below checkpoints/ or checkpoint/.",
)
GROUP_INFO = field_option(
    "--group-info",
    target="scan",
    field="group_info",
    metavar="PATH",
    multiple=True,
    help="group_info.pb files that are not beside the slices; {rank} stands for the owner. Repeatable.",
)
STRATEGY = field_option(
    "--strategy",
    target="scan",
    field="strategy",
    metavar="PATH",
    multiple=True,
    help="Strategy files that are not beside the slices; {rank} stands for the owner. Repeatable.",
)
NO_CRC = field_option(
    "--no-crc",
    target="scan",
    field="crc",
    is_flag=True,
    inverted=True,
    help="Do not check the CRC of slices that have one.",
)
STEP = field_option(
    "--step",
    target="plan",
    field="step",
    metavar="EPOCH_STEP",
    parse=parse_step,
    help="Consider this step only, for example 2_77.",
)
LOST = field_option(
    "--lost",
    target="plan",
    field="lost",
    metavar="RANKS",
    parse=parse_ranks,
    spell=spell_ranks,
    help="Ranks whose slices count as lost, for example 0,3 or 8-15.",
)
WORLD_SIZE = field_option(
    "--world-size",
    target="plan",
    field="world_size",
    type=click.IntRange(1, _MOST_RANKS),
    help="Number of ranks; default: by manifests, rank lists, strategy files and directories.",
)
NEWEST = field_option(
    "--newest",
    target="plan",
    field="newest",
    is_flag=True,
    help="Where several runs saved one step, take the run whose slices were written last.",
)
TOLERATE = field_option(
    "--tolerate",
    target="plan",
    field="tolerate",
    metavar="PATTERN",
    multiple=True,
    help="Parameters that may differ between peers, beside batch statistics and random states. Repeatable.",
)
REQUIRE_NEWEST = field_option(
    "--require-newest",
    target="plan",
    field="require_newest",
    is_flag=True,
    help="End with 4 instead of going back behind a newer step that cannot be recovered.",
)
QUICK = field_option(
    "--quick",
    target="plan",
    field="quick",
    is_flag=True,
    help="Read headers and manifests only: do not compare replicas by contents.",
)
SERVER = field_option(
    "--from",
    target="peers",
    field="servers",
    metavar="HOST:PORT",
    multiple=True,
    help="Plan over the tree of another node as well, which runs recover-ckpt serve, and fetch from it the slices that "
    "this node lacks. Repeatable.",
)
RANKS = field_option(
    "--ranks",
    target="plan",
    field="ranks",
    needs_from=True,
    metavar="RANKS",
    parse=parse_ranks,
    spell=spell_ranks,
    help="With --from: the ranks that live on this node, for example 8-15; only these need a slice. Default: "
    "every rank that has no files on other nodes alone.",
)
TIMEOUT = field_option(
    "--timeout",
    target="peers",
    field="timeout",
    needs_from=True,
    type=click.FloatRange(min=0.5, max=86400),
    default=10.0,
    show_default=True,
    help="With --from: seconds to wait for a server to answer, at first and whenever it is gone.",
)
TOKEN_FILE = field_option(
    "--token-file",
    target="security",
    field="token_file",
    needs_from=True,
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="File of mode 600 with the token that servers and clients share; default: "
    "MS_RECOVER_WORLDS_TOKEN_FILE, or the token itself in MS_RECOVER_WORLDS_TOKEN. Needed off loopback.",
)

TLS_VARIABLES = {
    "certificate": "MS_RECOVER_WORLDS_CERTIFICATE",
    "key": "MS_RECOVER_WORLDS_KEY",
    "authority": "MS_RECOVER_WORLDS_AUTHORITY",
}
"""Environment variables with the defaults of the TLS options."""


def _tls_option(name: str, purpose: str) -> FieldDeclaration:
    return field_option(
        f"--{name}",
        target="security",
        field=name,
        needs_from=True,
        metavar="FILE",
        type=click.Path(dir_okay=False),
        envvar=TLS_VARIABLES[name],
        help=f"{purpose}; default: {TLS_VARIABLES[name]}.",
    )


CERTIFICATE = _tls_option(
    "certificate",
    "Use TLS, and show this certificate of this node. PEM; with --key and --authority, on both sides",
)
KEY = _tls_option("key", "Private key of the certificate, which other users cannot read")
AUTHORITY = _tls_option("authority", "Certificate of the authority that signed the certificates of all nodes")


def _scan_options() -> type[ScanOptions]:
    from ms_recover.model.options import ScanOptions

    return ScanOptions


def _plan_options() -> type[PlanOptions]:
    from ms_recover.model.options import PlanOptions

    return PlanOptions


def takes_plan(*options: FieldDeclaration) -> Callable[[Callable[..., int]], Callable[..., int]]:
    """Add some options of a plan, and give the command ``plan: PlanOptions``."""
    return takes("plan", _plan_options, *options)


def takes_security(function: Callable[..., int]) -> Callable[..., int]:
    """Add the options that say who may take part, and give the command ``security: SecurityOptions``."""
    return takes("security", lambda: SecurityOptions, TOKEN_FILE, CERTIFICATE, KEY, AUTHORITY)(function)


def takes_peers(function: Callable[..., int]) -> Callable[..., int]:
    """Add ``--from`` and its timeout, and give the command ``peers: PeerOptions``."""
    return takes("peers", lambda: PeerOptions, SERVER, TIMEOUT)(function)


takes_scan = takes("scan", _scan_options, PATTERN, GROUP_INFO, STRATEGY, NO_CRC)
"""Add the options of a scan, and give the command ``scan: ScanOptions``."""

takes_whole_plan = takes_plan(STEP, LOST, WORLD_SIZE, NEWEST, TOLERATE, REQUIRE_NEWEST, QUICK, RANKS)
"""Add all options of a plan, and give the command ``plan: PlanOptions``."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
