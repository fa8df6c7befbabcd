"""``recover-ckpt plan``."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from ms_recover.cli.command import Command
from ms_recover.cli.engine import check_local, is_spread, refuse_servers, scan_spread, spread_tree
from ms_recover.cli.fields import words_of
from ms_recover.cli.options import json_option, takes_homes, takes_peers, takes_plan, takes_scan
from ms_recover.cli.output import is_ascii_only, print_json, print_text, text_width
from ms_recover.cli.peers import check_alone, planned_with_peers
from ms_recover.cli.picture import picture_topology
from ms_recover.cli.topology import topology_options
from ms_recover.cli.tree import log_plan, plan_code, plan_inventory, scan_tree
from ms_recover.errors import OlderStepError

if TYPE_CHECKING:
    from ms_recover.cli.options import EngineOptions, PeerOptions
    from ms_recover.cli.topology import TopologyOptions
    from ms_recover.model.explanation import Explanation
    from ms_recover.model.inventory import Inventory
    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.model.plan import Plan


@click.command(
    name="plan",
    cls=Command,
    example="recover-ckpt plan /checkpoints\nrecover-ckpt plan output --strategy 'strategy/rank_{rank}.ckpt'",
)
@click.argument("root", type=click.Path(readable=False))
@takes_plan()
@takes_peers
@takes_homes
@takes_scan
@topology_options
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Save the plan here, for: recover-ckpt apply FILE. Replaces nothing but an older plan; - is standard output.",
)
@click.option(
    "--explain",
    metavar="RANK",
    type=click.IntRange(0),
    help="List for each parameter of this rank the ranks that hold each region, and the chosen source.",
)
@click.option(
    "--detailed-exitcode",
    is_flag=True,
    help="End with 0 only where nothing is to do, and with 10 where apply would change something.",
)
@json_option
@click.pass_context
def command(  # noqa: PLR0913 (an option each)
    ctx: click.Context,
    *,
    root: str,
    output: str | None,
    explain: int | None,
    detailed_exitcode: bool,
    as_json: bool,
    plan: PlanOptions,
    peers: PeerOptions,
    engine: EngineOptions,
    scan: ScanOptions,
    topology: TopologyOptions,
) -> int:
    """Find the newest step that every rank can have, and the copies it takes. Changes nothing below ROOT.

    ROOT is a directory or the URL of one: see docs/stores.md.
    """
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.pieces import explanation_text
    from ms_recover.reporting.plan_text import plan_text
    from ms_recover.stores.urls import is_url

    if output is not None and peers.servers:
        raise click.UsageError("a plan over other nodes cannot be kept: apply it with the same --from", ctx)
    target = None
    if output is not None:
        from ms_recover.cli.plan_file import plan_target

        target = plan_target(output)
    to_stdout = target is not None and target.kind == "stdout"
    if to_stdout and explain is not None:
        raise click.UsageError("--explain and a plan both go to standard output: save the plan in a file", ctx)
    refused = False
    inventory: Inventory | None = None
    try:
        if is_spread(root, engine):
            refuse_servers(ctx)
            with spread_tree(root, engine) as tree:
                inventory = scan_spread(tree, scan, as_json=as_json)
                with progress_bar("reading", None, as_json) as progress:
                    made, explanation = tree.plan(inventory, plan, explain=explain, progress=progress)
            log_plan(made)
        elif peers.servers:
            check_local(ctx)
            with planned_with_peers(root, scan, plan, peers, explain=explain, as_json=as_json) as planned:
                made, explanation = planned.plan, planned.explanation
        else:
            check_local(ctx)
            check_alone(ctx)
            inventory = scan_tree(root, scan, run=plan.run, as_json=as_json)
            made, explanation = plan_inventory(inventory, plan, explain=explain, as_json=as_json)
    except OlderStepError as error:
        made, explanation, refused = error.plan, error.explanation, True
    if target is not None and not to_stdout and not refused:
        from ms_recover.cli.plan_file import write_plan
        from ms_recover.formats.codec import json_text

        write_plan(target, json_text(_plan_json(made)) + "\n")
    if as_json or (to_stdout and not refused):
        print_json(_plan_json(made, explanation))
    elif explanation is not None:
        print_text(explanation_text(explanation, text_width()))
    else:
        words = [
            made.root if is_url(root) else root,
            *words_of(ctx.command, {"plan": plan, "peers": peers, "engine": engine, "scan": scan}),
        ]
        again = words_of(ctx.command, {"engine": engine})
        command_line = shlex.join(["recover-ckpt", "apply", *(words if output is None else [output, *again])])
        places = None if inventory is None else picture_topology(inventory, topology, made.world_size)
        print_text(
            plan_text(
                made,
                text_width(),
                next_command=command_line,
                refused=refused,
                topology=places,
                ascii_only=is_ascii_only(),
            )
        )
    return OlderStepError.exit_code if refused else plan_code(made, detailed=detailed_exitcode)


def _plan_json(made: Plan, explanation: Explanation | None = None) -> dict[str, Any]:
    from ms_recover.formats.plan_json import plan_to_json  # loads the codec, which text does not need

    return plan_to_json(made, explanation)
