"""``recover-ckpt audit``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.engine import check_local, is_spread, reader_of, scanned_tree
from ms_recover.cli.options import json_option, takes_homes, takes_plan, takes_scan
from ms_recover.cli.output import is_ascii_only, print_json, print_text, text_width
from ms_recover.cli.topology import find_topology, topology_of_tree, topology_options, write_placement
from ms_recover.cli.tree import cores

if TYPE_CHECKING:
    from ms_recover.cli.options import EngineOptions
    from ms_recover.cli.topology import TopologyOptions
    from ms_recover.model.audit import Audit
    from ms_recover.model.options import AuditOptions, PlanOptions, ScanOptions

NOT_SURVIVED = 6
"""Exit code where a loss that must be survived is fatal."""

_RATE = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*([kKmMgGtT]i?)?\s*(B|b|bit|Bit)(?:/s|ps)?\Z", re.ASCII)
_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_rate(text: str) -> float:
    """Parse ``25Gbit/s``, ``10Gb``, ``2GiB/s`` or ``500MB`` to bytes a second; ValueError when it is none of these."""
    match = _RATE.match(text.strip())
    if match is None or not float(match[1]):
        raise ValueError(f"{text!r} is no bandwidth: write for example 25Gbit or 2GB")
    unit = match[2] or ""
    scale: int = (1024 if unit.endswith("i") else 1000) ** _UNITS[unit[:1].upper()]
    return float(match[1]) * scale / (1 if match[3] == "B" else 8)


@click.command(
    name="audit",
    cls=Command,
    example="recover-ckpt audit /checkpoints\nrecover-ckpt audit /checkpoints --hostfile hosts --survive 2hosts\n"
    "recover-ckpt audit --axes dp=64,tp=8,pp=4 --optimizer-shards 8 --ranks-per-host 8",
)
@click.argument("root", type=click.Path(readable=False), required=False)
@topology_options
@click.option(
    "--survive",
    metavar="LOSS",
    default="host",
    show_default=True,
    help="End with 6 unless the job survives it: host, rack, or another level of the topology, with a number ahead for "
    "several at once, for example 2hosts.",
)
@click.option(
    "--losses",
    metavar="K",
    type=click.IntRange(1, 64),
    default=2,
    show_default=True,
    help="Count the fatal losses of up to K hosts at once, and list those of K.",
)
@click.option("--bandwidth", metavar="RATE", help="What a host sends or receives a second, for example 25Gbit or 2GB.")
@click.option(
    "--write-placement",
    "placement",
    metavar="FILE",
    help="Write a placement that survives, where one is found: a rank table where FILE ends in .json, else a hostfile.",
)
@takes_plan(without=("clean", "require_newest", "ranks", "follow"))
@takes_homes
@takes_scan
@json_option
def command(  # noqa: PLR0913 (an option each)
    *,
    root: str | None,
    survive: str,
    losses: int,
    bandwidth: str | None,
    placement: str | None,
    as_json: bool,
    plan: PlanOptions,
    scan: ScanOptions,
    topology: TopologyOptions,
    engine: EngineOptions,
) -> int:
    """Say which hosts and racks may be lost, before they are. Changes nothing.

    ROOT is a directory or the URL of one. Without it, before the first checkpoint, --strategy, --group-info or --axes
    say who will hold the same.
    """
    from ms_recover.model.options import AuditOptions
    from ms_recover.planning.audit.headline import named, parse_gate, passes
    from ms_recover.reporting.audit_text import audit_text

    ctx = click.get_current_context()
    if root is None and engine.engine != "local":
        raise click.UsageError("--engine goes with ROOT: before the first checkpoint there is nothing to read", ctx)
    if root is None or not is_spread(root, engine):
        check_local(ctx)
    try:
        gate = parse_gate(survive)
        wanted = AuditOptions(losses=losses, bandwidth=parse_rate(bandwidth) if bandwidth is not None else None)
    except ValueError as error:
        raise click.UsageError(str(error), ctx) from None
    if root is None:
        made = _before(ctx, plan, scan, topology, wanted)
    else:
        from ms_recover import api
        from ms_recover.cli.progress import progress_bar

        with scanned_tree(root, engine, scan, run=plan.run, as_json=as_json) as (inventory, tree):
            places = topology_of_tree(inventory, topology, plan, None if tree is None else tree.topology)
            with progress_bar("reading", None, as_json) as progress:
                read = reader_of(tree, progress)
                made = api.audit(inventory, plan, places, wanted, jobs=cores(), progress=progress, read=read)
    gate, passed = named(made, gate), passes(made, gate)
    if as_json:
        from dataclasses import replace

        from ms_recover.formats.record import record
        from ms_recover.model.audit import GateResult

        print_json(record(replace(made, gate=GateResult(gate.text, passed))))
    else:
        print_text(audit_text(made, text_width(), gate=_gate_line(made, gate.text, passed), ascii_only=is_ascii_only()))
    if placement is not None:
        _write_placement(made, placement, topology)
    if passed is None:
        from ms_recover.cli.output import print_error

        print_error(
            f"recover-ckpt: nothing says which ranks share a host, so that --survive {survive} cannot be judged: name "
            "the hosts with --hostfile, --rank-table or --ranks-per-host, or take --survive rank"
        )
    return _code(made, passed)


def _before(
    ctx: click.Context, plan: PlanOptions, scan: ScanOptions, topology: TopologyOptions, wanted: AuditOptions
) -> Audit:
    """Audit what will be saved, by what options name."""
    from ms_recover import api

    if not (scan.strategy or scan.group_info or plan.axes is not None):
        raise click.UsageError(
            "name ROOT; or, before the first checkpoint, what says who will hold the same: --axes, --strategy or "
            "--group-info",
            ctx,
        )
    claims = api.read_claims(scan)
    ranks = api.count_ranks_of_claims(claims, plan)
    return api.audit_claims(claims, plan, find_topology(None, topology, ranks), wanted)


def _gate_line(made: Audit, text: str, passed: bool | None) -> str:
    if made.step is None:
        return ""
    if passed is None:
        return f"UNKNOWN whether it survives the loss of any {_any(text)}: nothing says which ranks share a host"
    return f"{'OK: it survives' if passed else 'NOT SURVIVED:'} the loss of any {_any(text)}"


def _any(text: str) -> str:
    return text.removeprefix("1 ")


def _write_placement(made: Audit, path: str, topology: TopologyOptions) -> None:
    from ms_recover.cli.output import print_error

    proposed = next((one.topology for one in made.findings if one.topology is not None), None)
    if proposed is None:
        why = next(
            (one.mend for one in made.findings if one.kind in ("placement", "slices")),
            "there is nothing that another placement mends",
        )
        print_error(f"recover-ckpt: no placement was written to {path}: {why}")
        return
    kind = write_placement(path, proposed, topology)
    print_error(f"recover-ckpt: a placement that survives is written to {path}, as a {kind}")


def _code(made: Audit, passed: bool | None) -> int:
    from ms_recover.errors import MissingInputError, UnrecoverableError, VerificationError

    if made.step is None:
        return VerificationError.exit_code if made.disputed else UnrecoverableError.exit_code
    if passed is None:
        return MissingInputError.exit_code
    return 0 if passed else NOT_SURVIVED
