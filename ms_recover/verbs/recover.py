"""The verbs that recover a tree: plan, explain, apply.

Each imports on use what the others do not need, so that a plan loads nothing that only writing needs.

>>> from ms_recover import api
>>> plan = api.plan(api.scan("/checkpoints"))       # doctest: +SKIP
>>> if plan.recoverable:                            # doctest: +SKIP
...     api.apply(plan, jobs=2)
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ms_recover.errors import UsageError
from ms_recover.model.contents import Reader
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.model.progress import Progress
from ms_recover.planning.plan.planner import refuse_older_step
from ms_recover.verbs.session import Session

if TYPE_CHECKING:
    from ms_recover.model.explanation import Explanation
    from ms_recover.model.outcome import Outcome
    from ms_recover.stores.store import Store


def plan(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
) -> Plan:
    """Find the newest step that every rank can have, and read its slices to prove it.

    Changes nothing, and gives the same plan for the same input. The plan says whether it is recoverable, and which
    obstacles would keep a file from being written where it belongs; `apply` carries it out.

    Parameters
    ----------
    inventory : Inventory
        The result of `scan`.
    options : PlanOptions
        The operator's choices.
    jobs : int
        Threads that read.
    progress : callable, optional
        See `ms_recover.model.progress.Progress`.
    read : callable, optional
        Reads the slices instead of this function.

    Raises
    ------
    OlderStepError
        When the plan goes back to an older step and `options.require_newest` is set; the error has the plan.
    MissingInputError
        When there is no slice, or none of the step in `options`.
    UsageError
        When a lost rank is outside the world, the world size is invalid, or one of the directories to follow is none.
    ContradictionError
        When rank lists contradict each other.
    """
    return _plan(Session(inventory, options, jobs=jobs, progress=progress, read=read))[0]


def explain(
    inventory: Inventory,
    rank: int,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
) -> tuple[Plan, Explanation]:
    """Do what `plan` does, and list for each parameter of one rank its holders and its chosen source.

    Raises
    ------
    UsageError
        When the rank is not in the world.
    OlderStepError, MissingInputError, ContradictionError
        As `plan` does; an OlderStepError has the explanation too.
    """
    made, explanation = _plan(Session(inventory, options, jobs=jobs, progress=progress, read=read), rank)
    assert explanation is not None
    return made, explanation


def _plan(session: Session, rank: int | None = None) -> tuple[Plan, Explanation | None]:
    """Return the plan with its obstacles, and of one rank the explanation; raise OlderStepError where it is refused."""
    planned, options = session.planned, session.options
    explanation = None
    if rank is not None:
        from ms_recover.planning.plan.explain import explain_planned

        explanation = explain_planned(planned, rank)
    made = with_obstacles(planned.plan, options.follow)
    if options.require_newest:
        refuse_older_step(made, explanation)
    return made, explanation


def apply(  # noqa: PLR0913 (the keywords of programs)
    plan: Plan,
    *,
    jobs: int = 1,
    verify: bool = True,
    ranks: Collection[int] | None = None,
    progress: Progress | None = None,
    lock_timeout: float = 600.0,
    partial: bool = False,
    require_newest: bool = False,
    sources: Mapping[str, Store] | None = None,
    scratch: str | None = None,
) -> Outcome:
    """Carry out a plan in threads; the outcome has the gravest exit code of its actions.

    The actions are independent: one that fails does not stop the others, and all can be repeated. A slice that is
    replaced though nothing proves it damaged is kept beside itself; the results name it.

    Parameters
    ----------
    verify : bool
        Read each copy back before it gets its final name.
    ranks : collection of int, optional
        Carry out the actions of these ranks only.
    lock_timeout : float
        Seconds to wait for another recovery of the same tree, where `ranks` is given; otherwise it is an error at once.
    partial : bool
        Where the plan has no step, write the surviving parameters of the lost slices under other names.
    require_newest : bool
        Refuse a plan that goes back behind a newer step, as the option of `plan` does.
    sources : mapping, optional
        The stores of the slices of the plan that lie elsewhere, by path.
    scratch : str, optional
        Where the root is a URL: the local folder in which files are made before they are sent, by default that for
        temporary files. Such a root is not locked: run one recovery of it at a time.

    Raises
    ------
    OlderStepError
        When the plan goes back to an older step and `require_newest` is set; nothing is done.
    UnrecoverableError
        When the plan has no step.
    StorageError
        When another recovery is at work on the tree.
    KeyboardInterrupt
        After every temporary file is removed.
    """
    from ms_recover.execution.apply import ApplyOptions, apply_plan
    from ms_recover.execution.recovery_log import noted

    if require_newest:
        refuse_older_step(plan)
    options = ApplyOptions(
        jobs=jobs,
        verify=verify,
        ranks=ranks,
        progress=progress or (lambda count: None),
        lock_timeout=lock_timeout,
        partial=partial,
        sources=sources or {},
        scratch=scratch,
    )
    with noted(plan) as note:
        return note(apply_plan(plan, options))


def with_obstacles(plan: Plan, follow: Sequence[str] = (), *, elsewhere: Collection[str] = ()) -> Plan:
    """Return a plan that was just made with what keeps its files from being written, where its root is on this host.

    `follow` is that of the options; `elsewhere` has the paths of slices that do not lie below the root.

    Raises
    ------
    UsageError
        When a directory that links may lead to is none.
    """
    for directory in follow:
        if not os.path.isdir(directory):
            raise UsageError(f"--follow {directory} is no directory of this host: name the one that links lead to")
    plan = replace(plan, follow=tuple(dict.fromkeys(map(os.path.realpath, follow))))
    if not plan.changes_anything:
        return plan
    from ms_recover.execution.targets import judge_now  # which a plan that changes nothing does not need

    return replace(plan, obstacles=judge_now(plan, elsewhere=elsewhere, just_made=True).obstacles)
