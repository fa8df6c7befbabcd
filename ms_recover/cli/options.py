"""Options that commands share, and how values are parsed."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from ms_recover.model.steps import Step

_F = TypeVar("_F", bound=Callable[..., Any])
_RANKS = re.compile(r"(\d{1,8})(?:-(\d{1,8}))?\Z", re.ASCII)
_MOST_RANKS = 1 << 20
_SHAPING = (
    "step",
    "lost",
    "world_size",
    "newest",
    "tolerate",
    "require_newest",
    "quick",
    "pattern",
    "group_info",
    "strategy",
    "no_crc",
)


def parse_step(ctx: click.Context, param: click.Parameter, value: str | None) -> Step | None:
    """Parse ``EPOCH_STEP``."""
    try:
        return None if value is None else Step.parse(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def parse_ranks(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[int, ...]:
    """Parse ``0,3,8-15``."""
    ranks: set[int] = set()
    for part in value.split(",") if value is not None else ():
        match = _RANKS.match(part.strip())
        if match is None:
            raise click.BadParameter(f"{part!r} is no rank and no range: write for example 0,3 or 8-15", ctx, param)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first or last >= _MOST_RANKS:
            raise click.BadParameter(f"{part!r} is no range of ranks below {_MOST_RANKS}", ctx, param)
        ranks.update(range(first, last + 1))
    return tuple(sorted(ranks))


def tree_options(function: _F) -> _F:
    """Add the options that say how a tree is laid out."""
    options = [
        click.option(
            "--pattern",
            metavar="PATTERN",
            help="Where slices lie below ROOT, with {rank} {prefix} {epoch} {step}; "
            "default: ckpt_dir{rank}/ and rank_{rank}/, also below checkpoints/ or checkpoint/.",
        ),
        click.option(
            "--group-info",
            metavar="PATH",
            multiple=True,
            help="group_info.pb files that are not beside the slices; {rank} stands for the owner. Repeatable.",
        ),
        click.option(
            "--strategy",
            metavar="PATH",
            multiple=True,
            help="Strategy files that are not beside the slices; {rank} stands for the owner. Repeatable.",
        ),
        click.option("--no-crc", is_flag=True, help="Do not check the CRC of slices that have one."),
    ]
    return _add(function, options)


step_option = click.option(
    "--step", metavar="EPOCH_STEP", callback=parse_step, help="Consider this step only, for example 2_77."
)
world_size_option = click.option(
    "--world-size",
    type=click.IntRange(1, _MOST_RANKS),
    help="Number of ranks; default: what manifests, rank lists, strategy files and directories tell.",
)
tolerate_option = click.option(
    "--tolerate",
    metavar="PATTERN",
    multiple=True,
    help="Parameters that may differ between peers, beside batch statistics and random states. Repeatable.",
)


def plan_options(function: _F) -> _F:
    """Add the options that shape a plan."""
    options = [
        step_option,
        click.option(
            "--lost",
            metavar="RANKS",
            callback=parse_ranks,
            help="Ranks whose slices count as gone, for example 0,3 or 8-15.",
        ),
        world_size_option,
        click.option(
            "--newest", is_flag=True, help="Where one rank has two slices for one step take the one written last."
        ),
        tolerate_option,
        click.option(
            "--require-newest",
            is_flag=True,
            help="End with 4 instead of going back behind a newer step that cannot be recovered.",
        ),
        click.option(
            "--quick", is_flag=True, help="Read headers and manifests only: do not compare replicas by contents."
        ),
    ]
    return _add(function, options)


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


def _add(function: _F, options: Sequence[Callable[[_F], _F]]) -> _F:
    for option in reversed(options):
        function = option(function)
    return function


def print_json(data: dict[str, Any]) -> None:
    """Print one JSON object."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=True))


def print_text(text: str) -> None:
    """Print a report; names in damaged files may not fit the terminal's encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding))


def text_width() -> int | None:
    """Return the columns of the terminal on standard output, None for a pipe or a file."""
    return max(60, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def cores() -> int:
    """Return the number of cores this process may use."""
    return len(os.sched_getaffinity(0))


def given_options(ctx: click.Context) -> list[str]:
    """Return the options that shape a plan as they were typed."""
    typed: list[str] = []
    for name in _SHAPING:
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.COMMANDLINE:
            continue
        option, value = f"--{name.replace('_', '-')}", ctx.params[name]
        if name == "lost":
            typed += [option, ",".join(map(str, value))]
        elif name in ("group_info", "strategy", "tolerate"):
            typed += [word for path in value for word in (option, path)]
        else:
            typed += [option] if value is True else [option, str(value)]
    return typed
