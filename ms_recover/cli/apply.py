"""``recover-ckpt apply``."""

from __future__ import annotations

import os
from typing import Any

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
from ms_recover.cli.tree import plan_code, plan_tree, progress_bar


@click.command(name="apply")
@click.argument("root_or_plan", type=click.Path())
@click.option("--dry-run", is_flag=True, help="Show the plan and check its sources; copy nothing.")
@click.option("--jobs", type=click.IntRange(1, 256), help="Threads; default: as many as cores.")
@click.option("--no-verify", is_flag=True, help="Do not read each copy back from the device to compare digests.")
@plan_options
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
    as_json: bool,
    **options: Any,
) -> int:
    """Copy what a plan says, so that every rank has its slice.

    ROOT_OR_PLAN is a checkpoint tree, planned on the spot, or a file written by: recover-ckpt plan ROOT -o FILE. A plan
    from a file is applied only if its sources are still what it saw.
    """
    from ms_recover import api
    from ms_recover.model.plan_json import plan_from_json, plan_to_json
    from ms_recover.reporting.text import outcome_text, plan_text
    from ms_recover.storage.local import read_text

    if os.path.isfile(root_or_plan):
        for option in given_options(ctx):
            raise click.UsageError(f"{option} shapes a plan, and the plan is given: plan again with it", ctx)
        plan = plan_from_json(read_text(root_or_plan), root_or_plan)
    else:
        plan = plan_tree(root_or_plan, options, as_json)
    if plan.recoverable:
        api.check(plan)
    if dry_run or not plan.recoverable:
        if as_json:
            print_json(plan_to_json(plan))
        else:
            print_text(plan_text(plan, text_width()))
        return plan_code(plan)
    with progress_bar("copying", plan.bytes_to_copy, as_json or not plan.actions) as progress:
        outcome = api.apply(plan, jobs=jobs or cores(), verify=not no_verify, progress=progress)
    if as_json:
        print_json(outcome.to_json())
    else:
        print_text(outcome_text(outcome, text_width()))
    return outcome.exit_code
