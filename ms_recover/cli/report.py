"""``recover-ckpt report``."""

from __future__ import annotations

import importlib.util
import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ms_recover.cli.command import Command
from ms_recover.cli.fields import words_of
from ms_recover.cli.options import takes_plan, takes_scan
from ms_recover.cli.output import print_text
from ms_recover.cli.topology import topology_of_tree, topology_options
from ms_recover.cli.tree import cores, log_plan, scan_tree
from ms_recover.errors import UsageError, install_extra

if TYPE_CHECKING:
    from ms_recover.cli.plan_file import PlanTarget
    from ms_recover.cli.topology import TopologyOptions
    from ms_recover.model.inventory import Inventory
    from ms_recover.model.options import PlanOptions, ScanOptions

_OURS = b'<meta name="generator" content="ms_recover">'
_HEAD = 4096


@click.command(
    name="report",
    cls=Command,
    example="recover-ckpt report /checkpoints -o report.html\nrecover-ckpt report /checkpoints --ranks-per-host 8 -o -",
)
@click.argument("root", type=click.Path(readable=False))
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    default="report.html",
    show_default=True,
    help="Write the page here. Replaces nothing but an older page; - is standard output.",
)
@takes_plan(without=("clean", "ranks"))
@takes_scan
@topology_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    root: str,
    output: str,
    plan: PlanOptions,
    topology: TopologyOptions,
    scan: ScanOptions,
) -> int:
    """Write a page about ROOT for browsers: ranks by host, every step, the plan and its reasons.

    ROOT is a directory or the URL of one: see docs/stores.md. The page is one file that loads nothing. It is also
    written for a tree that cannot be recovered, and the code is 0 then as well: plan is the gate for scripts.
    """
    from ms_recover.cli.progress import progress_bar
    from ms_recover.verbs.report import describe
    from ms_recover.version import __version__

    need_jinja2()
    target = page_target(output)
    inventory = scan_tree(root, scan, run=plan.run)
    refuse_place(target, inventory)
    places = topology_of_tree(inventory, topology, plan, whole=False)
    with progress_bar("reading", None, False) as progress:
        report = describe(inventory, plan, places, jobs=cores(), progress=progress)
    log_plan(report.plan)
    words = [report.plan.root, *words_of(ctx.command, {"plan": plan, "scan": scan})]
    next_command = shlex.join(["recover-ckpt", "apply", *words]) if report.plan.changes_anything else ""
    report = replace(report, next_command=next_command)

    from ms_recover.cli.plan_file import write_file
    from ms_recover.reporting.page.report import report_html

    refused = plan.require_newest and report.plan.recoverable and bool(report.plan.not_newest)
    write_file(target, report_html(report, made=_now(), version=__version__, refused=refused), page_target)
    if target.kind == "file":
        print_text(f"Written: {target.path}")
    return 0


def page_target(path: str) -> PlanTarget:
    """Decide how a page is written, as `ms_recover.cli.plan_file.file_target` does."""
    from ms_recover.cli.plan_file import file_target

    return file_target(path, "page of recover-ckpt", _is_page)


def refuse_place(target: PlanTarget, inventory: Inventory) -> None:
    """Raise UsageError when a page would lie among the slices of the tree that it is about."""
    from ms_recover.stores.urls import is_url

    if target.kind != "file" or is_url(inventory.root):
        return
    folder = os.path.dirname(target.path)
    root = os.path.realpath(inventory.root)
    if folder in {os.path.realpath(os.path.join(root, os.path.dirname(file.path))) for file in inventory.slices}:
        raise UsageError(f"-o {target.path} would lie among slices: name a file outside the directories of ranks")


def need_jinja2() -> None:
    """Raise UsageError when jinja2, which fills the page, is not installed."""
    if importlib.util.find_spec("jinja2") is None:
        raise UsageError(f"recover-ckpt report needs jinja2: {install_extra('report')}")


def _is_page(path: str) -> bool:
    from ms_recover.system_errors import explained

    with explained("reading", path), open(path, "rb") as file:
        return _OURS in file.read(_HEAD)


def _now() -> str:
    from datetime import datetime, timezone

    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
