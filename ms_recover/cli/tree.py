"""What commands do with a tree: scan it and plan, with a bar on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ms_recover.cli.options import cores
from ms_recover.errors import UnrecoverableError, VerificationError

if TYPE_CHECKING:
    from ms_recover.model.explanation import Explanation
    from ms_recover.model.inventory import Inventory
    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.model.plan import Plan


def scan_options_from(options: dict[str, Any]) -> ScanOptions:
    """Return the options that `tree_options` adds as one value."""
    from ms_recover.model.options import ScanOptions

    return ScanOptions(
        pattern=options["pattern"],
        group_info=options["group_info"],
        strategy=options["strategy"],
        crc=not options["no_crc"],
    )


def plan_options_from(options: dict[str, Any]) -> PlanOptions:
    """Return the options that `plan_options` and `from_options` add as one value."""
    from ms_recover.model.options import PlanOptions

    return PlanOptions(
        step=options["step"],
        lost=frozenset(options["lost"]),
        world_size=options["world_size"],
        newest=options["newest"],
        tolerate=options["tolerate"],
        quick=options["quick"],
        ranks=frozenset(options["ranks"]) if options["ranks"] else None,
        require_newest=options["require_newest"],
    )


def scan_tree(root: str, options: dict[str, Any]) -> Inventory:
    """Scan with the options that `tree_options` adds."""
    from ms_recover import api

    return api.scan(root, scan_options_from(options))


def plan_tree(root: str, options: dict[str, Any], as_json: bool) -> Plan:
    """Scan and plan with the options that `tree_options` and `plan_options` add."""
    return explain_tree(root, options, None, as_json)[0]


def explain_tree(
    root: str, options: dict[str, Any], rank: int | None, as_json: bool
) -> tuple[Plan, Explanation | None]:
    """Plan as `plan_tree` does, and explain the slice of a rank."""
    from ms_recover import api

    inventory, wanted = scan_tree(root, options), plan_options_from(options)
    with progress_bar("reading", None, as_json) as progress:
        if rank is None:
            return api.plan(inventory, wanted, jobs=cores(), progress=progress), None
        return api.explain(inventory, rank, wanted, jobs=cores(), progress=progress)


def plan_code(plan: Plan) -> int:
    """Return the exit code that a plan alone gives."""
    if plan.recoverable:
        return 0
    return VerificationError.exit_code if plan.disagreements else UnrecoverableError.exit_code


@contextmanager
def progress_bar(what: str, total: int | None, as_json: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on a terminal; nothing in a pipe."""
    if as_json or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)
