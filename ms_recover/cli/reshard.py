"""``recover-ckpt reshard``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ms_recover.cli.command import Command
from ms_recover.cli.fields import field_option, takes
from ms_recover.cli.options import json_option, parse_axes, parse_order, parse_shards, takes_plan, takes_source
from ms_recover.cli.output import print_json, print_text, text_width
from ms_recover.cli.tree import cores, scan_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.model.reshard import CastType, OutputFormat, ReshardOptions, ReshardPlan

_SIZE = re.compile(r"(\d{1,12})\s*(?:([KMGT])i?)?B?\Z", re.ASCII | re.IGNORECASE)
_UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_MOST_JOBS = 16
_MEMBERS = (
    "epoch_num",
    "step_num",
    "global_step",
    "loss_scale",
    "global_batch_size",
    "consumed_samples",
    "ckpt_status",
)
_COUNT = re.compile(r"\d{1,17}\Z", re.ASCII)
_FRACTION = re.compile(r"\d{1,17}(\.\d{1,17})?\Z", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedTexts:
    """The output that is wanted, as it stands on the command line."""

    to: str | None = None
    axes: str | None = None
    full: bool = False
    order: str | None = None
    shards: str | None = None
    rename: tuple[str, ...] = ()
    form: OutputFormat | None = None
    common: tuple[str, ...] = ()
    dtype: CastType | None = None
    pattern: str | None = None
    shard_size: str = "4GiB"


_wanted = partial(field_option, "wanted")


def parse_size(text: str) -> int:
    """Parse ``4GiB``, ``500MiB`` or a number of bytes; ValueError when it is neither."""
    match = _SIZE.match(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is no size: write for example 4GiB")
    return int(match[1]) << _UNITS[(match[2] or "").upper()]


def parse_members(texts: Sequence[str]) -> tuple[tuple[str, float], ...]:
    """Parse ``step_num=200`` and the like; ValueError when it is no number of a member of ``common.json``."""
    found: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in _MEMBERS:
            raise ValueError(f"--common {text}: it is none of {', '.join(_MEMBERS)}")
        if not (_FRACTION if name == "loss_scale" else _COUNT).match(number):
            raise ValueError(f"--common {text}: {number or 'nothing'} is not the number that {name} must be")
        found[name] = float(number) if name == "loss_scale" else int(number)
    return tuple(found.items())


@click.command(
    name="reshard",
    cls=Command,
    example="recover-ckpt reshard /checkpoints --to new_job/strategy -o /checkpoints_of_4\n"
    "recover-ckpt reshard /checkpoints --axes tp=2,dp=1 -o /checkpoints_of_2 --plan\n"
    "recover-ckpt reshard /checkpoints --full --format safetensors -o /model",
)
@click.argument("root", type=click.Path(readable=False))
@_wanted(
    "--to",
    metavar="PATH",
    help="Strategy files of the job to come: one, or a folder of them, "
    "protobuf or JSON, a stage each or merged; or a metadata.json of MindFormers.",
)
@_wanted(
    "--axes",
    metavar="SIZES",
    help="Instead: the sizes of its axes tp (or mp), cp, dp and pp, for example "
    "tp=2,dp=4; parameters are cut over the same axes as in ROOT.",
)
@_wanted("--full", is_flag=True, help="Instead: one checkpoint of whole parameters.")
@_wanted(
    "--order",
    metavar="AXES",
    help="With --axes: the axis that neighbouring ranks differ in first, of both jobs; default: tp,cp,ep,dp,pp.",
)
@_wanted(
    "--optimizer-shards",
    field="shards",
    metavar="N",
    help="With --axes: optimizer shards of the job to come, or all; default: as in ROOT where that is clear.",
)
@_wanted(
    "--rename",
    metavar="OLD=NEW",
    multiple=True,
    help="Give parameters other names: a whole name, or dotted parts of names. Repeatable.",
)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=click.Path(file_okay=False, readable=False),
    help="Folder to write: a new one, an empty one, or one that this command began. Outside ROOT.",
)
@_wanted(
    "--format",
    field="form",
    metavar="FORMAT",
    type=click.Choice(["ckpt", "safetensors", "mindformers"]),
    help="ckpt or safetensors, as MindSpore saves them, or mindformers, an iteration of its new format; default: that "
    "of ROOT.",
)
@_wanted(
    "--common",
    metavar="NAME=NUMBER",
    multiple=True,
    help="For mindformers: a member of common.json that ROOT does not state, or that changes; step_num is "
    "the iteration. Repeatable.",
)
@_wanted(
    "--dtype",
    metavar="TYPE",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Cast floating-point parameters of the network: bfloat16, float16 or float32, rounded to the nearest. "
    "Default: as in ROOT. Optimizer states keep their type.",
)
@_wanted(
    "--pattern",
    metavar="PATTERN",
    help="Where slices lie below OUT, with {rank} {prefix} {epoch} {step}; default: as below ROOT.",
)
@_wanted(
    "--shard-size",
    metavar="SIZE",
    default="4GiB",
    show_default=True,
    help="With --full: files of so many bytes at most, and an index; 0 for one file.",
)
@click.option(
    "--plan",
    "only_plan",
    is_flag=True,
    help="Show who is read, how much, and what is missing; write nothing below OUT.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Read all that is needed, put it together in memory, and look at OUT; write nothing below it. Ends as the run "
    "would.",
)
@click.option("--save-plan", metavar="FILE", help="Save the plan as JSON, too; - is standard output.")
@click.option(
    "--partial", is_flag=True, help="Write what there is where nobody holds the rest; ends with 4 all the same."
)
@click.option(
    "--verify/--no-verify",
    "verify",
    default=None,
    help="At the end cut OUT back in memory and compare it "
    "with ROOT. Or do not even read each file back. Default: each file is read back.",
)
@click.option("--jobs", type=click.IntRange(1, 256), help=f"Threads; default: two a core, at most {_MOST_JOBS}.")
@takes_plan(without=("clean", "axes", "order", "optimizer_shards", "require_newest", "ranks", "follow"))
@takes_source
@takes("wanted", f"{__name__}:WantedTexts")
@json_option
def command(  # noqa: PLR0913 (an option each)
    *,
    root: str,
    output: str | None,
    only_plan: bool,
    dry_run: bool,
    save_plan: str | None,
    partial: bool,
    verify: bool | None,
    jobs: int | None,
    as_json: bool,
    plan: PlanOptions,
    scan: ScanOptions,
    wanted: WantedTexts,
) -> int:
    """Cut the slices of ROOT anew for other ranks, or put whole parameters together, in OUT.

    ROOT may have lost slices: each region comes from any sound slice that holds it. Nothing below ROOT changes.
    """
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.reshard_text import reshard_outcome_text, reshard_plan_text

    ctx = click.get_current_context()
    options = _options(ctx, wanted)
    if output == "" or (output is None and not only_plan):
        raise click.UsageError("-o OUT is missing: name the folder to write, or look first with --plan", ctx)
    if output is not None:
        api.check_output(root, output)
    target = None
    if save_plan is not None:
        from ms_recover.cli.plan_file import plan_target

        target = plan_target(save_plan)
    threads = jobs or min(2 * cores(), _MOST_JOBS)
    inventory = scan_tree(root, scan, run=plan.run, as_json=as_json)
    with progress_bar("reading", None, as_json) as progress:
        made = api.plan_reshard(inventory, output or "resharded", options, plan, jobs=cores(), progress=progress)
    if target is not None and target.kind != "stdout":
        from ms_recover.cli.plan_file import write_plan
        from ms_recover.formats.codec import json_text

        write_plan(target, json_text(_plan_json(made)) + "\n")
    to_stdout = target is not None and target.kind == "stdout"
    if only_plan or not (made.complete or partial):
        if as_json or to_stdout:
            print_json(_plan_json(made))
        else:
            print_text(reshard_plan_text(made, text_width()))
        return _code(made)
    doing = "reading" if dry_run else "writing"
    with progress_bar(doing, sum(made.bytes_of(file) for file in made.files), as_json) as progress:
        outcome = api.reshard(
            made,
            jobs=threads,
            verify=verify is not False,
            partial=partial,
            compare=verify is True,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        from ms_recover.formats.record import record

        print_json(record(outcome))
    else:
        print_text(reshard_outcome_text(outcome, text_width(), progress.seconds_to_end))
    return outcome.exit_code


def _options(ctx: click.Context, given: WantedTexts) -> ReshardOptions:
    """Return what is wanted; a usage error when it is not one thing, or an option does not go with it."""
    from ms_recover.model.axes import DEFAULT_ORDER
    from ms_recover.model.reshard import ReshardOptions
    from ms_recover.planning.reshard.rename import parse_rules

    if [given.to is not None, given.axes is not None, given.full].count(True) != 1:
        raise click.UsageError("name the target once: --to PATH, --axes SIZES or --full", ctx)
    for name, text in (("--order", given.order), ("--optimizer-shards", given.shards)):
        if text is not None and given.axes is None:
            raise click.UsageError(f"{name} goes with --axes alone", ctx)
    if given.full and given.pattern is not None:
        raise click.UsageError("--pattern is for the slices of ranks, and --full writes none", ctx)
    sized = ctx.get_parameter_source("shard_size") is click.core.ParameterSource.COMMANDLINE
    if sized and (given.form == "mindformers" or not given.full):
        raise click.UsageError("--shard-size goes with --full alone, and not with --format mindformers", ctx)
    if given.pattern is not None and given.form == "mindformers":
        raise click.UsageError("--pattern: MindFormers' format has its own names for files", ctx)
    if given.common and given.form not in (None, "mindformers"):
        raise click.UsageError("--common goes with --format mindformers alone", ctx)
    try:
        return ReshardOptions(
            strategy=given.to,
            axes=parse_axes(given.axes) if given.axes is not None else None,
            order=parse_order(given.order) if given.order is not None else DEFAULT_ORDER,
            optimizer_shards=parse_shards(given.shards) if given.shards is not None else 0,
            full=given.full,
            shard_size=parse_size(given.shard_size),
            rename=parse_rules(given.rename),
            form=given.form,
            pattern=given.pattern,
            common=parse_members(given.common),
            dtype=given.dtype,
        )
    except ValueError as error:
        raise click.UsageError(str(error), ctx) from None


def _code(made: ReshardPlan) -> int:
    from ms_recover.errors import UnrecoverableError, VerificationError

    if made.complete:
        return 0
    return VerificationError.exit_code if made.disagreements else UnrecoverableError.exit_code


def _plan_json(made: ReshardPlan) -> dict[str, Any]:
    from dataclasses import replace

    from ms_recover.formats.record import record
    from ms_recover.planning.reshard.actions import bytes_read

    return record(replace(made, reads=bytes_read(made)))
