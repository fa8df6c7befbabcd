"""``recover-ckpt plan``."""

from __future__ import annotations

import json
import shlex

import click

from ms_recover.cli.options import (
    given_options,
    json_option,
    plan_options,
    print_json,
    print_text,
    text_width,
    tree_options,
)
from ms_recover.errors import UnrecoverableError
from ms_recover.model.steps import Step


@click.command(name="plan")
@click.argument("root", type=click.Path())
@plan_options
@tree_options
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Save the plan here, for: recover-ckpt apply PLAN."
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    root: str,
    step: Step | None,
    lost: tuple[int, ...],
    world_size: int | None,
    newest: bool,
    pattern: str | None,
    group_info: tuple[str, ...],
    no_crc: bool,
    output: str | None,
    as_json: bool,
) -> int:
    """Find the newest step every rank can have, and what to copy. Changes nothing below ROOT."""
    from ms_recover import api
    from ms_recover.model.plan_json import plan_to_json
    from ms_recover.reporting.text import plan_text
    from ms_recover.storage.local import write_text

    inventory = api.scan(root, pattern=pattern, group_info=group_info, crc=not no_crc)
    plan = api.plan(inventory, step=step, lost=lost, world_size=world_size, newest=newest)
    data = plan_to_json(plan)
    if output is not None:
        write_text(output, json.dumps(data, indent=2) + "\n")
    if as_json:
        print_json(data)
    else:
        print_text(plan_text(plan, text_width(), next_command=_apply_command(ctx, root, output)))
    return 0 if plan.recoverable else UnrecoverableError.exit_code


def _apply_command(ctx: click.Context, root: str, output: str | None) -> str:
    """Return the command that carries this plan out."""
    if output is not None:
        return shlex.join(["recover-ckpt", "apply", output])
    return shlex.join(["recover-ckpt", "apply", root, *given_options(ctx)])
