"""The verbs that cut a checkpoint anew: plan_reshard, reshard.

>>> from ms_recover import api, resharding
>>> from ms_recover.model.reshard import ReshardOptions
>>> wanted = ReshardOptions(strategy="new_job/strategy")
>>> plan = resharding.plan_reshard(api.scan("/checkpoints"), "/checkpoints_of_4", wanted)       # doctest: +SKIP
>>> if plan.complete:                                                                           # doctest: +SKIP
...     resharding.reshard(plan, jobs=2)
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ms_recover.comparing import compare_read
from ms_recover.errors import MissingInputError, UsageError
from ms_recover.formats.cast import check_castable
from ms_recover.model.contents import NOTHING_READ
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.plan import RejectedStep
from ms_recover.model.progress import Progress
from ms_recover.planning.facts import gather_facts
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.planner import check_kind_of_step
from ms_recover.planning.resharding.step_plan import plan_step, steps_to_try, why_incomplete
from ms_recover.scanning.progress_values import read_progress
from ms_recover.scanning.target_files import read_target

if TYPE_CHECKING:
    from ms_recover.model.reshard import ReshardOptions, ReshardOutcome, ReshardPlan
    from ms_recover.planning.judging.judgement import Comparison


def plan_reshard(
    inventory: Inventory,
    output: str | os.PathLike[str],
    wanted: ReshardOptions,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
) -> ReshardPlan:
    """Plan the slices of a step for other ranks, or whole parameters in one checkpoint. Changes nothing.

    By default it is the newest step of the present run of which every region has a sound holder; without one the plan
    is for the newest step and says what is missing.

    Parameters
    ----------
    inventory, options, jobs, progress
        As for `ms_recover.api.plan`. All slices of the step are read, unless `options.quick` is set.
    output : str or path
        The folder to write: none, an empty one, or one that the same plan has begun.
    wanted : ReshardOptions
        How the output is cut, and its form.

    Raises
    ------
    UsageError
        When the target does not fit the parameters of the source.
    MissingInputError
        When there is no slice, no strategy file of the target, or nothing states how the source is cut.
    FormatError, ContradictionError
        When a strategy file is damaged, or documents contradict each other.
    """
    target = read_target(wanted.strategy) if wanted.strategy is not None else None
    if wanted.dtype is not None:
        check_castable()
    if wanted.form is None and wanted.pattern is None and not wanted.full and inventory.iterations:
        wanted = replace(wanted, form="mindformers")
    if wanted.form == "mindformers" and wanted.pattern is not None:
        raise UsageError("MindFormers' format has its own names for files: leave the pattern out")
    shown: ReshardPlan | None = None
    rejected: list[RejectedStep] = []
    candidates = [options.step] if options.step is not None else list(steps_to_try(inventory, options))
    for step in candidates:
        parts = _compare(inventory, replace(options, step=step), jobs, progress)
        values = read_progress(inventory, step) if wanted.form == "mindformers" else {}
        plan = plan_step(parts, step, target, wanted, os.path.abspath(output), inventory, values)
        if plan.overlaps:
            from ms_recover.execution.reshard_overlaps import find_unequal

            unequal = find_unequal(plan)
            if unequal:
                plan = plan_step(parts, step, target, wanted, os.path.abspath(output), inventory, values, unequal)
        if plan.complete or plan.disagreements:
            return replace(plan, rejected_steps=tuple(rejected))
        shown = shown or plan
        rejected.append(RejectedStep(step, why_incomplete(plan)))
    if shown is None:
        raise MissingInputError(f"{inventory.root} holds no slice of the present run: name a step with --step")
    return replace(shown, rejected_steps=tuple(one for one in rejected if one.step != shown.step))


def _compare(inventory: Inventory, options: PlanOptions, jobs: int, progress: Progress | None) -> list[Comparison]:
    if not options.quick:
        return compare_read(inventory, options, jobs, progress)[0]
    check_kind_of_step(inventory, options.step)
    if not inventory.iterations:
        return [compare_slices(gather_facts(inventory, options), all_read=True)]
    from ms_recover.planning.plan_parts import Parts  # which other trees need not load

    return Parts(inventory, options, NOTHING_READ).every()


def reshard(
    plan: ReshardPlan,
    *,
    jobs: int = 1,
    verify: bool = True,
    partial: bool = False,
    compare: bool = False,
    progress: Progress | None = None,
) -> ReshardOutcome:
    """Write what `plan_reshard` planned; the outcome has the gravest exit code of its files.

    Each file gets its name when it is whole and durable. Killed at any moment it can be repeated, and goes on.

    Parameters
    ----------
    jobs : int
        Threads that write.
    verify : bool
        Read each file back from the device before it gets its final name.
    partial : bool
        Write what there is where nobody holds the rest; the exit code is 4 all the same.
    compare : bool
        At the end cut the output back in memory, and compare it with the source.
    progress : callable, optional
        See `ms_recover.model.progress.Progress`; the bytes written.

    Raises
    ------
    UnrecoverableError
        When something is missing, and not `partial`.
    UsageError
        When the output holds something else, lies in the tree, or its format cannot hold a parameter.
    StorageError
        When another reshard writes the same output.
    """
    from ms_recover.execution.reshard import run_reshard

    return run_reshard(plan, jobs=jobs, verify=verify, partial=partial, compare=compare, progress=progress)
