"""``recover-ckpt apply``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial as partial_call
from typing import TYPE_CHECKING, Any

import click

from ms_recover.cli.options import (
    cores,
    given_options,
    json_option,
    plan_options,
    print_json,
    print_text,
    text_width,
    tree_options,
)
from ms_recover.cli.peers import check_alone, from_options, planned_with_peers
from ms_recover.cli.tree import plan_code, plan_tree, progress_bar

if TYPE_CHECKING:
    from ms_recover.model.outcome import Outcome
    from ms_recover.model.plan import Plan


@click.command(name="apply")
@click.argument("root_or_plan", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Show the plan and check its sources; copy nothing.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Threads; default: four a core, which keeps a device busy.")
@click.option("--no-verify", is_flag=True, help="Do not read each copy back from the device to compare digests.")
@click.option(
    "--partial",
    is_flag=True,
    help="Where no step is recoverable write what survives, as {name}.partial.ckpt; ends with 4 all the same.",
)
@plan_options
@from_options
@tree_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    /,
    root_or_plan: str,
    dry_run: bool,
    jobs: int | None,
    no_verify: bool,
    partial: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Copy what a plan says, so that every rank has its slice.

    ROOT_OR_PLAN is a checkpoint tree, planned on the spot, or a file written by: recover-ckpt plan ROOT -o FILE. A plan
    from a file is applied only if its sources are still what it saw. With --from slices are fetched from nodes that run
    recover-ckpt serve, for ranks of this node.
    """
    from ms_recover import api
    from ms_recover.reporting.text import outcome_text, plan_text
    from ms_recover.storage.local import read_text

    def show(plan: Plan) -> int:
        if as_json:
            from ms_recover.formats.plan_json import plan_to_json

            print_json(plan_to_json(plan))
        else:
            print_text(plan_text(plan, text_width()))
        return plan_code(plan)

    def carry_out(plan: Plan, run: Callable[..., Outcome]) -> int:
        if dry_run or not (plan.recoverable or (partial and plan.partials)):
            return show(plan)
        with progress_bar("copying", plan.bytes_to_copy, as_json or not plan.actions) as progress:
            outcome = run(jobs=jobs or 4 * cores(), verify=not no_verify, progress=progress, partial=partial)
        if as_json:
            from ms_recover.formats.report_json import outcome_to_json

            print_json(outcome_to_json(outcome))
        else:
            print_text(outcome_text(outcome, text_width()))
        return outcome.exit_code

    if options["servers"]:
        if os.path.isfile(root_or_plan):
            raise click.UsageError("a plan from a file knows nothing of other nodes: name the tree with --from", ctx)
        with planned_with_peers(root_or_plan, options, as_json) as (peers, planned):
            return carry_out(planned.plan, partial_call(peers.apply, planned))
    check_alone(ctx)
    if os.path.isfile(root_or_plan):
        for option in given_options(ctx):
            raise click.UsageError(f"{option} shapes a plan, and the plan is given: plan again with it", ctx)
        from ms_recover.formats.plan_json import plan_from_json

        plan = plan_from_json(read_text(root_or_plan), root_or_plan)
    else:
        plan = plan_tree(root_or_plan, options, as_json)
    if plan.recoverable:
        api.check(plan)
    return carry_out(plan, partial_call(api.apply, plan))
