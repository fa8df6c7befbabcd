"""``recover-ckpt apply``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial as partial_call
from time import monotonic
from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command, variable_of
from ms_recover.cli.engine import check_local, is_spread, refuse_servers, scan_spread, spread_tree
from ms_recover.cli.fields import ambient_options, typed_options
from ms_recover.cli.options import json_option, takes_homes, takes_peers, takes_plan, takes_scan
from ms_recover.cli.output import print_error, print_json, print_text, text_width
from ms_recover.cli.peers import check_alone, planned_with_peers
from ms_recover.cli.tree import cores, log_plan, plan_code, plan_inventory, scan_tree
from ms_recover.errors import OlderStepError, UsageError

if TYPE_CHECKING:
    from ms_recover.cli.options import EngineOptions, PeerOptions
    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.model.outcome import Outcome
    from ms_recover.model.plan import Plan


@click.command(
    name="apply",
    cls=Command,
    example="recover-ckpt apply /checkpoints\nrecover-ckpt apply plan.json\n"
    "recover-ckpt apply /checkpoints --from node2:29610 --token-file token",
)
@click.argument("root_or_plan", type=click.Path(readable=False))
@click.option("--dry-run", is_flag=True, help="Show the plan and check its sources; copy nothing.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Threads; default: four a core, which keeps a device busy.")
@click.option("--no-verify", is_flag=True, help="Do not read each copy back from the device to compare digests.")
@click.option(
    "--scratch",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False),
    help="Of a root at a URL: the local folder in which files are made before they are sent; default: TMPDIR.",
)
@click.option(
    "--partial",
    is_flag=True,
    help="Where no step is recoverable write the surviving parameters, as {name}.partial.ckpt; ends with 4 all the "
    "same.",
)
@takes_plan()
@takes_peers
@takes_homes
@takes_scan
@json_option
@click.pass_context
def command(  # noqa: PLR0913 (an option each)
    ctx: click.Context,
    *,
    root_or_plan: str,
    dry_run: bool,
    jobs: int | None,
    no_verify: bool,
    scratch: str | None,
    partial: bool,
    as_json: bool,
    plan: PlanOptions,
    peers: PeerOptions,
    engine: EngineOptions,
    scan: ScanOptions,
) -> int:
    """Carry out a plan, so that every rank has its slice.

    ROOT_OR_PLAN is a checkpoint tree, planned on the spot, or a file written by: recover-ckpt plan ROOT -o FILE. A plan
    from a file is applied only if its sources have not changed since. With --from slices are fetched from nodes that
    run recover-ckpt serve, for ranks of this node.
    """
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.outcome_text import outcome_text

    def carry_out(made: Plan, run: Callable[..., Outcome], threads: int | None) -> int:
        if dry_run or not (made.recoverable or (partial and made.partials)):
            _show(made, as_json=as_json)
            return plan_code(made)
        actions = made.actions if made.recoverable else made.partials
        with progress_bar("writing", sum(action.bytes for action in actions), as_json or not actions) as progress:
            outcome = run(jobs=jobs or threads, verify=not no_verify, progress=progress, partial=partial)
        if as_json:
            from ms_recover.formats.record import record

            print_json(record(outcome))
        else:
            print_text(outcome_text(outcome, text_width(), progress.seconds_to_end, warnings=made.warnings))
        return outcome.exit_code

    try:
        made = _given_plan(ctx, root_or_plan, plan) if os.path.isfile(root_or_plan) else None
        root = root_or_plan if made is None else made.root
        if is_spread(root, engine):
            refuse_servers(ctx)
            with spread_tree(root, engine) as tree:
                inventory = scan_spread(tree, scan, as_json=as_json)
                if made is None:
                    with progress_bar("reading", None, as_json) as progress:
                        made, _ = tree.plan(inventory, plan, progress=progress)
                    log_plan(made)
                if made.recoverable:
                    tree.check(made)
                return carry_out(made, partial_call(tree.apply, made), None)
        check_local(ctx)
        if made is None and peers.servers:
            with planned_with_peers(root, scan, plan, peers, as_json=as_json) as planned:
                run = partial_call(api.apply, planned.plan, sources=planned.sources)
                return carry_out(planned.plan, run, 4 * cores())
        if made is None:
            check_alone(ctx)
            begun = monotonic()
            made, _ = plan_inventory(scan_tree(root, scan, run=plan.run, as_json=as_json), plan, as_json=as_json)
            if made.actions and not dry_run:
                from ms_recover.execution.recovery_log import note_phase

                note_phase(made.root, "plan", monotonic() - begun)
    except OlderStepError as error:
        _show(error.plan, refused=True, as_json=as_json)
        return error.exit_code
    if made.recoverable:
        api.check(made)
        made = _seen_now(made) if dry_run else made
    return carry_out(made, partial_call(api.apply, made, scratch=scratch), 4 * cores())


def _show(made: Plan, *, refused: bool = False, as_json: bool) -> None:
    """Print a plan that is not carried out."""
    if as_json:
        from ms_recover.formats.plan_json import plan_to_json

        print_json(plan_to_json(made))
    else:
        from ms_recover.reporting.plan_text import plan_text

        print_text(plan_text(made, text_width(), refused=refused))


def _check_kind(path: str) -> None:
    """Raise UsageError when a file is one of a tree, and no plan."""
    from ms_recover.formats.identify import DESCRIPTIONS, identify

    kind = identify(path)
    if kind not in ("json", "empty", "zeros", "unknown"):
        raise UsageError(
            f"{path} is {DESCRIPTIONS[kind]}, and no plan: name the folder of the tree, or a file that plan ROOT -o "
            "FILE has written; recover-ckpt inspect shows what is in it"
        )


def _seen_now(made: Plan) -> Plan:
    """Return a plan with what is in its way now: one from a file saw its places earlier."""
    from dataclasses import replace

    from ms_recover.execution.targets import judge_now

    return replace(made, obstacles=judge_now(made).obstacles)


def _given_plan(ctx: click.Context, path: str, options: PlanOptions) -> Plan:
    """Read a plan; options of the environment were for the planning, but for the refusal of older steps."""
    from ms_recover.formats.plan_json import plan_from_json
    from ms_recover.planning.plan.planner import refuse_older_step
    from ms_recover.stores.local import read_text

    for option in typed_options(ctx):
        if option.target == "engine":
            continue
        if option.field == "servers":
            raise click.UsageError("a plan from a file names no other nodes: name the tree with --from", ctx)
        raise click.UsageError(f"{option.opts[0]} shapes a plan, and the plan is given: plan again with it", ctx)
    ambient = [option for option in ambient_options(ctx) if option.target != "engine"]
    unused = [variable_of(option) for option in ambient if option.field != "require_newest"]
    if unused:
        print_error(f"recover-ckpt: {', '.join(unused)} shaped the plan, if anything: {path} is applied as it is")
    _check_kind(path)
    made = plan_from_json(read_text(path), path)
    if options.require_newest:
        refuse_older_step(made)
    return made
