"""The steps that commands share: scan a tree, plan, and the codes of plans and verifications."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ms_recover.errors import StorageError, UnrecoverableError, VerificationError

if TYPE_CHECKING:
    from ms_recover.model.explanation import Explanation
    from ms_recover.model.inventory import Inventory
    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.model.plan import Plan
    from ms_recover.model.verification import Verification


def scan_tree(root: str, options: ScanOptions, *, run: str | None = None, as_json: bool = False) -> Inventory:
    """Scan; progress is shown where slices are read for their CRCs. Of a backup of several runs show one `run`."""
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar
    from ms_recover.stores.urls import root_of_run

    root = root if run is None else root_of_run(root, run)
    with progress_bar("checking CRCs", None, as_json) as progress:
        return api.scan(root, options, progress=progress)


def plan_inventory(
    inventory: Inventory, plan: PlanOptions, *, explain: int | None = None, as_json: bool = False
) -> tuple[Plan, Explanation | None]:
    """Plan what was scanned; with `explain` also explain the slice of that rank."""
    from ms_recover import api
    from ms_recover.cli.progress import progress_bar

    with progress_bar("reading", None, as_json) as progress:
        explanation = None
        if explain is None:
            made = api.plan(inventory, plan, jobs=cores(), progress=progress)
        else:
            made, explanation = api.explain(inventory, explain, plan, jobs=cores(), progress=progress)
    log_plan(made)
    return made, explanation


def log_plan(made: Plan) -> None:
    """Log the step of a plan, those that it passes over, and the verdict of each rank."""
    import logging  # loaded by now, by what reads

    log = logging.getLogger(__name__)
    if not log.isEnabledFor(logging.INFO):
        return
    log.info("%d ranks, by %s", made.world_size, made.world_size_from)
    log.info("the plan is for step %s, run %s; %d actions", made.step, made.run_id, len(made.actions))
    for passed in made.rejected_steps:
        log.info("step %s is not taken: %s", passed.step, passed.reason)
    for obstacle in made.obstacles:
        log.warning("%s cannot be written: %s", obstacle.path, obstacle.reason)
    for rank in made.ranks:
        level = logging.DEBUG if rank.verdict == "keep" else logging.INFO
        log.log(level, "rank %d: %s, %s: %s", rank.rank, rank.state, rank.verdict, rank.reason)


SOMETHING_TO_DO = 10
"""Exit code of ``plan --detailed-exitcode`` where applying the plan would change something."""


def plan_code(plan: Plan, *, detailed: bool = False) -> int:
    """Return the exit code of a plan that is not applied; with `detailed` 10 where there is something to do.

    One that would fail because of what is in the way has the code with which applying it would end.
    """
    if plan.recoverable and plan.obstacles:
        from ms_recover.planning.plan.places import code_of

        return code_of(plan)
    if plan.recoverable:
        return SOMETHING_TO_DO if detailed and plan.changes_anything else 0
    if any(rank.verdict == "unrecoverable" and rank.state == "unreadable" for rank in plan.ranks):
        return StorageError.exit_code
    return VerificationError.exit_code if plan.disagreements else UnrecoverableError.exit_code


def verification_code(checked: Verification) -> int:
    """Return the exit code of a verification: what cannot be opened is no damage."""
    if not checked.wrong:
        return 0 if checked.ok else VerificationError.exit_code
    unreadable = all(check.status == "unreadable" for check in checked.wrong)
    return StorageError.exit_code if unreadable else VerificationError.exit_code


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))
