"""``recover-ckpt seal``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.engine import check_local, is_spread, reader_of, scanned_tree
from ms_recover.cli.options import json_option, parse_ranks, takes_engine, takes_plan, takes_scan
from ms_recover.cli.output import print_error, print_json, print_line, print_text, text_width
from ms_recover.cli.tree import cores, verification_code
from ms_recover.errors import UsageError

if TYPE_CHECKING:
    from ms_recover.cli.options import EngineOptions
    from ms_recover.model.options import PlanOptions, ScanOptions


@click.command(name="seal", cls=Command, example="recover-ckpt seal /checkpoints --step 2_77")
@click.argument("root", type=click.Path(readable=False))
@click.option(
    "--watch", is_flag=True, help="Go on until Ctrl-C or SIGTERM: seal each step when it is complete and quiet."
)
@click.option(
    "--quiet-for",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="With --watch: seconds without a change after which a complete step is sealed.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=5.0,
    show_default=True,
    help="With --watch: seconds between two looks at the tree.",
)
@click.option(
    "--ranks",
    metavar="RANKS",
    help="With --watch: the ranks whose slices lie below ROOT, for example 8-15; default: all of the world.",
)
@click.option("--dry-run", is_flag=True, help="Judge the slices, and say which manifests are missing; write none.")
@takes_plan(without=("clean", "lost", "run", "newest", "require_newest", "quick", "ranks", "follow"))
@takes_engine
@takes_scan
@json_option
@click.pass_context
def command(  # noqa: PLR0913 (an option each)
    ctx: click.Context,
    *,
    root: str,
    watch: bool,
    quiet_for: float,
    interval: float,
    ranks: str | None,
    dry_run: bool,
    as_json: bool,
    plan: PlanOptions,
    engine: EngineOptions,
    scan: ScanOptions,
) -> int:
    """Write the missing manifests below ROOT, after the vote of each group.

    Slices that are damaged, outvoted or undecided get none; the exit code is 5 then. With --watch this goes on beside
    the job that saves there: one line, or with --json one object, for each step that is sealed.
    """
    if watch and is_spread(root, engine):
        raise click.UsageError("--watch looks at a tree of this host: run it on each node", ctx)
    if watch and dry_run:
        raise click.UsageError("--dry-run looks once: leave --watch out", ctx)
    if watch:
        check_local(ctx)
        return _watch(root, scan, replace(plan, ranks=_ranks(ranks)), quiet_for, interval, as_json=as_json)
    _refuse_watch_options()
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar
    from ms_recover.reporting.verification_text import verification_text

    foreseen = None
    if dry_run:
        from ms_recover.execution.seal import ForeseenSeals

        foreseen = ForeseenSeals(root, here=not is_spread(root, engine))
    with (
        scanned_tree(root, engine, scan, as_json=as_json) as (inventory, tree),
        progress_bar("reading", None, as_json) as progress,
    ):
        read, write = reader_of(tree, progress), foreseen or (None if tree is None else tree.write_manifests)
        sealed, checked = api.seal(inventory, plan, jobs=cores(), progress=progress, read=read, write=write)
    if as_json:
        from ms_recover.formats.record import record

        print_json({"sealed": list(sealed), "dry_run": dry_run, **record(checked)})
    else:
        done = f"{len(sealed)} manifests written"
        if foreseen is not None:
            from ms_recover.reporting.tables import size_text

            done = f"{len(sealed)} manifests would be written, {size_text(foreseen.bytes)}"
        print_text(f"{done}\n{verification_text(checked, text_width())}")
    return verification_code(checked)


def _watch(root: str, scan: ScanOptions, plan: PlanOptions, quiet_for: float, interval: float, *, as_json: bool) -> int:
    """Seal steps as they come, until this process is ended."""
    import time

    from ms_recover.stores.urls import is_url, shown_url

    if is_url(root):
        raise UsageError(f"--watch works beside the job, on a local directory: {shown_url(root)} is none")
    from ms_recover.formats.record import record
    from ms_recover.model.sealing import SealedStep
    from ms_recover.reporting.outcome_text import sealed_line
    from ms_recover.supervision.watch import Watch

    def tell(sealed: SealedStep) -> None:
        if as_json:
            print_line(record(sealed))
        else:
            print_text(sealed_line(sealed, time.strftime("%Y-%m-%d %H:%M:%S")))

    Watch(
        root=root,
        scanning=scan,
        judging=plan,
        quiet_for=quiet_for,
        interval=interval,
        jobs=cores(),
        on_sealed=tell,
        on_trouble=lambda text: print_error(f"recover-ckpt: {text}"),
    ).run()
    return 0


def _ranks(text: str | None) -> frozenset[int] | None:
    try:
        return None if text is None else parse_ranks(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--ranks") from None


def _refuse_watch_options() -> None:
    context = click.get_current_context()
    for name in ("quiet_for", "interval", "ranks"):
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} goes with --watch only")
