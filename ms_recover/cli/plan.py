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
from ms_recover.cli.peers import check_alone, from_options, given_from, planned_with_peers
from ms_recover.cli.tree import explain_tree, plan_code


@click.command(name="plan")
@click.argument("root", type=click.Path())
@plan_options
@from_options
@tree_options
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False), help="Save the plan here, for: recover-ckpt apply PLAN."
)
@click.option(
    "--explain",
    metavar="RANK",
    type=click.IntRange(0),
    help="Tell for each parameter of this rank who holds which region, and what was chosen.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context, /, root: str, output: str | None, explain: int | None, as_json: bool, **options: Any
) -> int:
    """Find the newest step every rank can have, and what to copy. Changes nothing below ROOT."""
    from ms_recover.reporting.pieces import explanation_text
    from ms_recover.reporting.text import plan_text
    from ms_recover.storage.atomic import write_small

    if options["servers"]:
        if output is not None:
            raise click.UsageError("a plan over other nodes cannot be kept: apply it with the same --from", ctx)
        with planned_with_peers(root, options, as_json, explain) as (_, planned):
            plan, explanation = planned.plan, planned.explanation
    else:
        check_alone(ctx)
        plan, explanation = explain_tree(root, options, explain, as_json)
    if output is not None:
        from ms_recover.formats.plan_json import plan_to_json

        write_small(output, (json.dumps(plan_to_json(plan), indent=2) + "\n").encode())
    if as_json:
        from ms_recover.formats.explanation_json import explained_plan_to_json

        print_json(explained_plan_to_json(plan, explanation))
    elif explanation is not None:
        print_text(explanation_text(explanation, text_width()))
    else:
        print_text(plan_text(plan, text_width(), next_command=_apply_command(ctx, root, output)))
    return plan_code(plan)


def _apply_command(ctx: click.Context, root: str, output: str | None) -> str:
    """Return the command that carries this plan out."""
    if output is not None:
        return shlex.join(["recover-ckpt", "apply", output])
    return shlex.join(["recover-ckpt", "apply", root, *given_options(ctx), *given_from(ctx)])
