"""The steps that commands share: scan a tree, plan, and a progress bar on a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ms_recover.errors import StorageError, UnrecoverableError, VerificationError

if TYPE_CHECKING:
    from ms_recover.model.explanation import Explanation
    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.model.plan import Plan
    from ms_recover.model.verification import Verification


def plan_tree(
    root: str, scan: ScanOptions, plan: PlanOptions, *, explain: int | None = None, as_json: bool = False
) -> tuple[Plan, Explanation | None]:
    """Scan and plan; with `explain` also explain the slice of that rank."""
    from ms_recover import api

    inventory = api.scan(root, scan)
    with progress_bar("reading", None, as_json) as progress:
        if explain is None:
            return api.plan(inventory, plan, jobs=cores(), progress=progress), None
        return api.explain(inventory, explain, plan, jobs=cores(), progress=progress)


def plan_code(plan: Plan) -> int:
    """Return the exit code of a plan that is not applied."""
    if plan.recoverable:
        return 0
    if any(rank.verdict == "unrecoverable" and rank.state == "unreadable" for rank in plan.ranks):
        return StorageError.exit_code
    return VerificationError.exit_code if plan.disagreements else UnrecoverableError.exit_code


def verification_code(found: Verification) -> int:
    """Return the exit code of a verification: what cannot be opened is no damage."""
    if not found.wrong:
        return 0 if found.ok else VerificationError.exit_code
    unreadable = all(check.status == "unreadable" for check in found.wrong)
    return StorageError.exit_code if unreadable else VerificationError.exit_code


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def progress_bar(what: str, total: int | None, as_json: bool) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on a terminal; nothing in a pipe."""
    if as_json or sys.stderr is None or not sys.stderr.isatty():
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
