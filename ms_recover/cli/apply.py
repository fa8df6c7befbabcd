"""``recover-ckpt apply``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
from ms_recover.errors import UnrecoverableError
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step


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
    root_or_plan: str,
    dry_run: bool,
    jobs: int | None,
    no_verify: bool,
    step: Step | None,
    lost: tuple[int, ...],
    world_size: int | None,
    newest: bool,
    pattern: str | None,
    group_info: tuple[str, ...],
    no_crc: bool,
    as_json: bool,
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
        _refuse_options(ctx)
        plan = plan_from_json(read_text(root_or_plan), root_or_plan)
    else:
        inventory = api.scan(root_or_plan, pattern=pattern, group_info=group_info, crc=not no_crc)
        plan = api.plan(inventory, step=step, lost=lost, world_size=world_size, newest=newest)
    if plan.recoverable:
        api.check(plan)
    if dry_run or not plan.recoverable:
        if as_json:
            print_json(plan_to_json(plan))
        else:
            print_text(plan_text(plan, text_width()))
        return 0 if plan.recoverable else UnrecoverableError.exit_code
    with _progress(plan, as_json) as progress:
        outcome = api.apply(plan, jobs=jobs or cores(), verify=not no_verify, progress=progress)
    if as_json:
        print_json(outcome.to_json())
    else:
        print_text(outcome_text(outcome, text_width()))
    return outcome.exit_code


def _refuse_options(ctx: click.Context) -> None:
    """Options that shape a plan mean nothing when the plan is given."""
    for option in given_options(ctx):
        raise click.UsageError(f"{option} shapes a plan, and the plan is given: plan again with it", ctx)


@contextmanager
def _progress(plan: Plan, as_json: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on a terminal; nothing in a pipe."""
    if as_json or not plan.actions or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("copying", total=plan.bytes_to_copy)
        yield lambda count: bar.advance(task, count)
