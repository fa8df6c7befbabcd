"""``recover-ckpt metrics``."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.options import takes_plan, takes_scan
from ms_recover.cli.output import print_error
from ms_recover.cli.topology import topology_of_tree, topology_options
from ms_recover.errors import MissingInputError, MsRecoverError, UsageError, install_extra

if TYPE_CHECKING:
    from ms_recover.cli.topology import TopologyOptions
    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.reporting.metrics_text import Look

_LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*\Z", re.ASCII)
_TAKEN = ("state", "result", "phase")
_ENDING, _OURS = ".prom", b"# HELP ms_recover_"


@click.command(
    name="metrics",
    cls=Command,
    example="recover-ckpt metrics /checkpoints\nrecover-ckpt metrics /checkpoints --watch 60 --textfile "
    "/var/lib/prometheus/node-exporter/ms_recover.prom",
)
@click.argument("root", type=click.Path(readable=False))
@click.option(
    "--textfile",
    metavar="PATH",
    type=click.Path(dir_okay=False),
    help="Write them here, whole or not at all, for the textfile collector of node_exporter; the name ends in .prom. "
    "Replaces nothing but older figures.",
)
@click.option(
    "--watch",
    metavar="SECONDS",
    type=click.FloatRange(min=0.05, max=86400),
    envvar="RECOVER_CKPT_METRICS_WATCH",
    help="Go on until Ctrl-C or SIGTERM, with so many seconds between two looks at the tree. From the environment: "
    "RECOVER_CKPT_METRICS_WATCH.",
)
@click.option(
    "--label",
    "labels",
    metavar="NAME=VALUE",
    multiple=True,
    help="Give every series this label, to tell several trees apart. Repeatable.",
)
@topology_options
@takes_plan(without=("step", "clean", "require_newest", "quick", "ranks", "follow"))
@takes_scan
def command(  # noqa: PLR0913 (an option each)
    *,
    root: str,
    textfile: str | None,
    watch: float | None,
    labels: tuple[str, ...],
    plan: PlanOptions,
    scan: ScanOptions,
    topology: TopologyOptions,
) -> int:
    """Print figures about ROOT in the text format of Prometheus. Changes nothing below ROOT.

    Slices are judged by headers and manifests. A look that fails is itself a figure: ms_recover_scan_success is then 0
    and the figures of the tree are left out. Takes prometheus_client, of the extra [metrics].
    """
    text_of = _exporter()
    named = _parse_labels(labels)
    if textfile is not None:
        textfile_target(textfile)  # before any time goes into a look
    errors, named_before = 0, None
    while True:
        look, error = _look(root, plan, scan, topology, errors)
        others = look.found.others if look.found is not None else None
        if others is not None and others != named_before:  # once, however often it is looked
            print_error(f"recover-ckpt: WARNING: {others}")
        named_before = others
        errors = look.errors
        try:
            _write(text_of(look, named), textfile)
        except MsRecoverError as unwritten:
            error = error or unwritten
        if watch is None:
            if error is not None:
                raise error
            return 0
        if error is not None:
            print_error(f"recover-ckpt: {error}")
        time.sleep(watch)


def _exporter() -> Callable[[Look, Mapping[str, str]], str]:
    try:
        from ms_recover.reporting.metrics_text import metrics_text
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "prometheus_client":
            raise
        raise UsageError(f"metrics takes prometheus_client: {install_extra('metrics')}") from None
    return metrics_text


def _look(
    root: str, plan: PlanOptions, scan: ScanOptions, topology: TopologyOptions, errors: int
) -> tuple[Look, MsRecoverError | None]:
    """Look at a tree; an error of the tree is returned beside the look that failed."""
    from ms_recover import api
    from ms_recover.reporting.metrics_text import Look
    from ms_recover.verbs.metrics import measure

    begun = time.monotonic()
    found, failed = None, None
    try:
        inventory = api.scan(root, replace(scan, crc=False))
        found = measure(inventory, plan, topology=topology_of_tree(inventory, topology, plan))
    except MsRecoverError as error:
        failed = error
    spent = time.monotonic() - begun
    return Look(found=found, ended=time.time(), seconds=spent, errors=errors + (failed is not None)), failed


def _write(text: str, textfile: str | None) -> None:
    if textfile is None:
        click.echo(text, nl=False)
        return
    from ms_recover.stores.atomic import write_small

    write_small(textfile_target(textfile), text.encode())


def textfile_target(path: str) -> str:
    """Return where figures are written, with links resolved: a new file, an empty one, or one with older figures.

    Raises
    ------
    UsageError
        When the collector would not read the name, or anything else is there: a slice, a device.
    MissingInputError
        When there is no such directory.
    StorageError
        When what is there cannot be read.
    """
    from ms_recover.system_errors import explained

    if not path.endswith(_ENDING):
        raise UsageError(
            f"--textfile {path}: the collector reads names that end in {_ENDING} alone; choose such a name"
        )
    target = os.path.realpath(path)
    with explained("looking at", path):
        if not os.path.lexists(target):
            if not os.path.isdir(os.path.dirname(target)):
                raise MissingInputError(f"--textfile {path}: the directory does not exist: make it first")
            return target
        if os.path.isfile(target):
            with open(target, "rb") as file:
                head = file.read(len(_OURS))
            if head in (_OURS, b""):
                return target
    raise UsageError(
        f"--textfile {path} exists and holds no figures of recover-ckpt: only older figures are replaced; name another "
        "file"
    )


def _parse_labels(texts: tuple[str, ...]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not _LABEL.match(name):
            raise UsageError(f"--label {text!r} is no label: write NAME=VALUE, for example job=run7")
        if name in labels or name in _TAKEN:
            raise UsageError(f"--label {text!r}: {name} is {'given twice' if name in labels else 'a label already'}")
        labels[name] = value
    return labels
