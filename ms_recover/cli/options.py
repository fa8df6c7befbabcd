"""Options that commands share, and how values are parsed."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import click

from ms_recover.cli.fields import Decorator, field_option, takes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ms_recover.model.axes import Axes
    from ms_recover.model.steps import Step

_RANKS = re.compile(r"(\d{1,8})(?:-(\d{1,8})(?::(\d{1,8}))?)?\Z", re.ASCII)
_MOST_RANKS = 1 << 20

TLS_VARIABLES = {
    "certificate": "MS_RECOVER_CERTIFICATE",
    "key": "MS_RECOVER_KEY",
    "authority": "MS_RECOVER_AUTHORITY",
}
"""Environment variables with the defaults of the TLS options, as `ms_recover.stores.http_access` reads them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """The other trees that take part in a recovery, and the proof that this node may read them.

    Parameters
    ----------
    servers : tuple of str
        ``HOST:PORT`` of each node that serves a tree, or a tree's URL.
    timeout : float
        Seconds to wait for an answer.
    min_rate : float
        Bytes a second that a web server has to send.
    token_file : str or None
        File of mode 600 with the token; None for the token of the environment.
    certificate, key, authority : str or None
        PEM files for TLS.
    insecure : bool
        Whether token and bytes may cross a network without TLS.
    """

    servers: tuple[str, ...] = ()
    timeout: float = 10.0
    min_rate: float = 1024.0
    token_file: str | None = None
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Where the work is done.

    Parameters
    ----------
    engine : str
        ``local``, or the URL of a scheduler of dask.
    worker_timeout : float
        Seconds to wait for the scheduler, and for a worker that was lost.
    homes : tuple of (ranks, name)
        The nodes that the operator names for ranks.
    """

    engine: str = "local"
    worker_timeout: float = 60.0
    homes: tuple[tuple[frozenset[int], str], ...] = ()


def parse_step(text: str) -> Step:
    """Parse ``EPOCH_STEP`` or an iteration; ValueError when it is invalid."""
    from ms_recover.model.steps import Step

    return Step.parse(text)


def parse_ranks(text: str) -> frozenset[int]:
    """Parse ``0,3,8-15`` or ``0-12:4``, a range with a stride; ValueError when a part is neither a rank nor a range."""
    ranks: set[int] = set()
    for part in text.split(","):
        match = _RANKS.match(part.strip())
        if match is None:
            raise ValueError(f"{part!r} is neither a rank nor a range: write for example 0,3 or 8-15")
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= _MOST_RANKS:
            raise ValueError(f"{part!r} is not a range of ranks below {_MOST_RANKS}")
        if match[3] is not None and int(match[3]) < 1:
            raise ValueError(f"{part!r} has no stride: write for example 0-12:4 for 0,4,8,12")
        ranks.update(range(first, last + 1, int(match[3] or 1)))
    return frozenset(ranks)


def parse_groups(texts: tuple[str, ...]) -> tuple[frozenset[int], ...]:
    """Parse each of some groups of ranks; ValueError as `parse_ranks`."""
    return tuple(map(parse_ranks, texts))


def parse_homes(texts: tuple[str, ...]) -> tuple[tuple[frozenset[int], str], ...]:
    """Parse each of some ``RANKS=NODE``; ValueError when one is invalid."""
    homes = []
    for text in texts:
        ranks, equals, name = text.partition("=")
        if not equals or not name:
            raise ValueError(f"{text!r} names no node: write for example 8-15=node3")
        homes.append((parse_ranks(ranks), name))
    return tuple(homes)


def parse_axes(text: str) -> Axes:
    """Parse ``dp=2,mp=4``; ValueError when it is invalid."""
    from ms_recover.model.axes import Axes

    return Axes.parse(text)


def parse_order(text: str) -> tuple[str, ...]:
    """Parse ``tp,cp,ep,dp,pp``; ValueError when it is invalid."""
    from ms_recover.model.axes import parse_order as parse

    return parse(text)


def parse_shards(text: str) -> int:
    """Parse a number of optimizer shards, or ``all`` for as many as there are replicas; ValueError otherwise."""
    if text.strip().lower() in ("all", "-1"):
        return -1
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is no number of shards: write for example 2, or all")
    return int(text)


_SCAN_OPTIONS, _PLAN_OPTIONS = "ms_recover.model.options:ScanOptions", "ms_recover.model.options:PlanOptions"
_PEER_OPTIONS, _ENGINE_OPTIONS = f"{__name__}:PeerOptions", f"{__name__}:EngineOptions"

_scan = partial(field_option, "scan")
_plan = partial(field_option, "plan")
_peers = partial(field_option, "peers")
_engine = partial(field_option, "engine")

_EMPTY = "the pattern is empty, so that the known layouts are looked for"


def _why_tolerates_all(patterns: tuple[str, ...]) -> str:
    """Return a warning about patterns that every parameter matches."""
    every = [text for text in patterns if "*" in text and not text.strip("*?")]
    return f"every parameter matches {every[0]!r}, so that no contents are compared" if every else ""


PATTERN = _scan(
    "--pattern",
    parse=lambda text: text or None,
    doubt=lambda text: "" if text else _EMPTY,
    metavar="PATTERN",
    help="Where slices lie below ROOT, with {rank} {prefix} {epoch} {step}; default: the layouts of MindSpore's "
    "tutorials, MindFormers and MindIO, from ROOT or a folder below it. Where none is known, the error suggests one.",
)
GROUP_INFO = _scan(
    "--group-info",
    metavar="PATH",
    type=click.Path(readable=False),
    multiple=True,
    help="group_info.pb files that are not beside the slices; {rank} stands for the owner. Repeatable.",
)
STRATEGY = _scan(
    "--strategy",
    metavar="PATH",
    type=click.Path(readable=False),
    multiple=True,
    help="Strategy files that are neither beside the slices nor in strategy/ or ../strategy/; {rank} stands for the "
    "owner. Repeatable.",
)
NO_CRC = _scan(
    "--no-crc", field="crc", is_flag=True, parse=operator.not_, help="Do not check the CRC of slices that have one."
)
STEP = _plan(
    "--step",
    metavar="EPOCH_STEP",
    parse=parse_step,
    help="Consider this step only, for example 2_77; of MindFormers' iterations the number, for example 200.",
)
CLEAN = _plan(
    "--clean",
    is_flag=True,
    help="Consider only steps at which all ranks that hold the same agreed, by manifests: see recover-ckpt history.",
)
LOST = _plan(
    "--lost", metavar="RANKS", parse=parse_ranks, help="Ranks whose slices count as lost, for example 0,3 or 8-15."
)
WORLD_SIZE = _plan(
    "--world-size",
    type=click.IntRange(1, _MOST_RANKS),
    help="Number of ranks; default: by manifests, rank lists, strategy files and directories.",
)
GROUP = _plan(
    "--group",
    field="groups",
    metavar="RANKS",
    multiple=True,
    parse=parse_groups,
    help="Ranks that hold the same slice, where no file says it, for example 0,4 or 0-12:4. Repeatable.",
)
AXES = _plan(
    "--axes",
    metavar="SIZES",
    parse=parse_axes,
    help="The same by the sizes of the parallel axes tp (or mp), cp, ep, dp and pp, for example dp=2,mp=4.",
)
ORDER = _plan(
    "--order",
    metavar="AXES",
    parse=parse_order,
    help="With --axes: the axis that neighbouring ranks differ in first; default: tp,cp,ep,dp,pp.",
)
OPTIMIZER_SHARDS = _plan(
    "--optimizer-shards",
    metavar="N",
    parse=parse_shards,
    help="With --axes: MindSpore's optimizer_weight_shard_size, or all where it is -1.",
)
RUN = _plan(
    "--run",
    metavar="ID",
    help="The run to recover, with those that it goes on from: its id, or its experiment by the prefix that its "
    "program gave; where no manifest names either, the prefix of its slices. Default: the run that was started last.",
)
NEWEST = _plan(
    "--newest",
    is_flag=True,
    help="Where several runs saved one step, take the one that most ranks have, of equals the one written last.",
)
TOLERATE = _plan(
    "--tolerate",
    metavar="PATTERN",
    multiple=True,
    doubt=_why_tolerates_all,
    help="Parameters that may differ between peers, beside batch statistics and random states. Repeatable.",
)
REQUIRE_NEWEST = _plan(
    "--require-newest",
    is_flag=True,
    help="End with 4 instead of going back behind a newer step that cannot be recovered.",
)
FOLLOW = _plan(
    "--follow",
    metavar="DIR",
    type=click.Path(readable=False),
    multiple=True,
    help="Where a link in ROOT leads below this directory, such as a disk of this node, write the files there. "
    "Repeatable.",
)
QUICK = _plan("--quick", is_flag=True, help="Read headers and manifests only: do not compare replicas by contents.")
RANKS = _plan(
    "--ranks",
    metavar="RANKS",
    parse=parse_ranks,
    help="With --from: the ranks that live on this node, for example 8-15; only these need a slice. Default: "
    "every rank that has no files on other nodes alone.",
)
SERVER = _peers(
    "--from",
    field="servers",
    metavar="SOURCE",
    multiple=True,
    help="Plan over the tree of another node as well, and fetch from it the slices that this node lacks: HOST:PORT of "
    "recover-ckpt serve, or the URL of a tree, such as https://backup/run7. Repeatable.",
)
TIMEOUT = _peers(
    "--timeout",
    type=click.FloatRange(min=0.5, max=86400),
    default=10.0,
    show_default=True,
    envvar="MS_RECOVER_TIMEOUT",
    help="With --from: seconds to wait for a web server to answer, at first and whenever it is gone. A listing or an "
    "inventory has to be there within 60 times as long in all. MS_RECOVER_TIMEOUT holds for a ROOT that is a URL, too.",
)
MIN_RATE = _peers(
    "--min-rate",
    metavar="BYTES",
    type=click.FloatRange(min=0, max=1e12),
    default=1024.0,
    show_default=True,
    envvar="MS_RECOVER_MIN_RATE",
    help="With --from: bytes a second that a web server has to send, or to report as read for digests, on average over "
    "6 times --timeout; a slower one is given up, for the next replica where there is one. MS_RECOVER_MIN_RATE holds "
    "for a ROOT that is a URL, too.",
)
TOKEN_FILE = _peers(
    "--token-file",
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="File of mode 600 with the token that servers and clients share; default: "
    "MS_RECOVER_TOKEN_FILE, or the token itself in MS_RECOVER_TOKEN. Needed off loopback.",
)

ENGINE = _engine(
    "--engine",
    metavar="ENGINE",
    default="local",
    show_default=True,
    help="Where the bytes are read and written: local, or dask://HOST:PORT for the workers of that dask scheduler. "
    "ROOT may then be node://*/data/ckpt: the disks of all nodes as one tree; node://node3/... for one, "
    "node://{node1,node2}/... for some.",
)
WORKER_TIMEOUT = _engine(
    "--worker-timeout",
    type=click.FloatRange(min=1, max=86400),
    default=60.0,
    show_default=True,
    help="With --engine: seconds to wait for the scheduler, and for a worker that was lost.",
)
HOME = _engine(
    "--home",
    field="homes",
    metavar="RANKS=NODE",
    multiple=True,
    parse=parse_homes,
    help="With --engine: the node on which slices of these ranks belong, where their files do not say it, for example "
    "8-15=node3. Repeatable.",
)


def _tls(name: str, purpose: str) -> Decorator:
    variable = TLS_VARIABLES[name]
    path = click.Path(dir_okay=False)
    return _peers(f"--{name}", metavar="FILE", type=path, envvar=variable, help=f"{purpose}; default: {variable}.")


_SECURITY = (
    TOKEN_FILE,
    _tls("certificate", "Use TLS, and show this certificate of this node. PEM; with --key"),
    _tls("key", "Private key of the certificate, which other users cannot read"),
    _tls("authority", "Use TLS, and trust the certificates that this authority signed; by default those of the system"),
    _peers(
        "--insecure",
        is_flag=True,
        help="Let the token and the bytes cross a network without TLS, and serve without a token.",
    ),
)


takes_scan = takes("scan", _SCAN_OPTIONS, PATTERN, GROUP_INFO, STRATEGY, NO_CRC)
"""Add the options of a scan, and give the command ``scan: ScanOptions``."""

_OF_PLAN = {
    "step": STEP,
    "clean": CLEAN,
    "lost": LOST,
    "world_size": WORLD_SIZE,
    "groups": GROUP,
    "axes": AXES,
    "order": ORDER,
    "optimizer_shards": OPTIMIZER_SHARDS,
    "run": RUN,
    "newest": NEWEST,
    "tolerate": TOLERATE,
    "require_newest": REQUIRE_NEWEST,
    "quick": QUICK,
    "ranks": RANKS,
    "follow": FOLLOW,
}


def takes_plan(*, without: Sequence[str] = ()) -> Decorator:
    """Add the options of a plan, but those of some fields, and give the command ``plan: PlanOptions``.

    A field that has no option here has its default.
    """
    options = dict(_OF_PLAN)
    for name in without:
        del options[name]
    return takes("plan", _PLAN_OPTIONS, *options.values())


SOURCE_PATTERN = _scan(
    "--source-pattern",
    field="pattern",
    parse=lambda text: text or None,
    doubt=lambda text: "" if text else _EMPTY,
    metavar="PATTERN",
    help="Where slices lie below ROOT, with the same places in braces; default: the known layouts.",
)

takes_source = takes("scan", _SCAN_OPTIONS, SOURCE_PATTERN, GROUP_INFO, STRATEGY, NO_CRC)
"""Add the options of a scan to a command whose ``--pattern`` is that of its output."""

takes_peers = takes("peers", _PEER_OPTIONS, SERVER, TIMEOUT, MIN_RATE, *_SECURITY)
"""Add ``--from`` and the options that go with it, and give the command ``peers: PeerOptions``."""

takes_security = takes("peers", _PEER_OPTIONS, *_SECURITY)
"""Add the options that say who may take part, and give the command ``peers: PeerOptions``."""

takes_engine = takes("engine", _ENGINE_OPTIONS, ENGINE, WORKER_TIMEOUT)
"""Add the options that say where the work is done, and give the command ``engine: EngineOptions``."""

takes_homes = takes("engine", _ENGINE_OPTIONS, ENGINE, WORKER_TIMEOUT, HOME)
"""The same with the nodes on which ranks belong."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
