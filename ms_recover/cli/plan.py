"""``recover-ckpt plan``."""

from __future__ import annotations

import json
import shlex
from typing import Any

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
from ms_recover.cli.tree import plan_code, plan_tree


@click.command(name="plan")
@click.argument("root", type=click.Path())
@plan_options
@tree_options
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Save the plan here, for: recover-ckpt apply PLAN."
)
@json_option
@click.pass_context
def command(ctx: click.Context, /, root: str, output: str | None, as_json: bool, **options: Any) -> int:
    """Find the newest step every rank can have, and what to copy. Changes nothing below ROOT."""
    from ms_recover.model.plan_json import plan_to_json
    from ms_recover.reporting.text import plan_text
    from ms_recover.storage.local import write_text

    plan = plan_tree(root, options, as_json)
    data = plan_to_json(plan)
    if output is not None:
        write_text(output, json.dumps(data, indent=2) + "\n")
    if as_json:
        print_json(data)
    else:
        print_text(plan_text(plan, text_width(), next_command=_apply_command(ctx, root, output)))
    return plan_code(plan)


def _apply_command(ctx: click.Context, root: str, output: str | None) -> str:
    """Return the command that carries this plan out."""
    if output is not None:
        return shlex.join(["recover-ckpt", "apply", output])
    return shlex.join(["recover-ckpt", "apply", root, *given_options(ctx)])
