"""The verbs that cut a checkpoint anew: check_output, plan_reshard, reshard.

>>> from ms_recover import api
>>> from ms_recover.model.reshard import ReshardOptions
>>> wanted = ReshardOptions(strategy="new_job/strategy")
>>> plan = api.plan_reshard(api.scan("/checkpoints"), "/checkpoints_of_4", wanted)              # doctest: +SKIP
>>> if plan.complete:                                                                           # doctest: +SKIP
...     api.reshard(plan, jobs=2)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ms_recover.errors import UsageError
from ms_recover.formats.cast import check_castable
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.progress import Progress
from ms_recover.model.steps import Step
from ms_recover.planning.choice import Judged, candidates_of, choose, judge_runs, refuse_empty
from ms_recover.planning.reshard.actions import paths_taken
from ms_recover.planning.reshard.step_plan import ReshardTask, plan_step, why_incomplete
from ms_recover.planning.tree.candidates import refuse_experiments, text_of_others
from ms_recover.planning.tree.runs import Run
from ms_recover.scanning.counters import read_progress
from ms_recover.scanning.naming import Pattern
from ms_recover.scanning.target_files import read_target
from ms_recover.stores.urls import is_url, shown_url
from ms_recover.verbs.session import Session

if TYPE_CHECKING:
    from ms_recover.model.reshard import ReshardOptions, ReshardOutcome, ReshardPlan
    from ms_recover.planning.judging.judgement import Comparison


def check_output(root: str, output: str | os.PathLike[str]) -> None:
    """Check that a folder may be written, before the tree is read: plans are not compared yet.

    Raises
    ------
    UsageError
        When it is a URL, lies in the tree, is no folder, or holds files that no reshard wrote.
    """
    from ms_recover.execution.reshard_output import check_folder

    check_folder(root, _folder(output))


def _folder(output: str | os.PathLike[str]) -> str:
    if is_url(output):
        raise UsageError(
            f"{shown_url(os.fspath(output))}: a reshard writes to folders of this host alone: name one, and send it on "
            "with recover-ckpt copy"
        )
    return os.path.abspath(output)


def plan_reshard(  # noqa: PLR0913 (the keywords of programs)
    inventory: Inventory,
    output: str | os.PathLike[str],
    wanted: ReshardOptions,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    why_not: Callable[[ReshardPlan], str | None] = why_incomplete,
    refuse_several: bool = False,
) -> ReshardPlan:
    """Plan the slices of a step for other ranks, or whole parameters in one checkpoint. Changes nothing.

    By default it is the newest step of the present run of which every region has a sound holder; without one the plan
    is for the newest step and says what is missing. One at which sources differ is the last that is tried.

    Parameters
    ----------
    inventory, options, jobs, progress
        As for `ms_recover.api.plan`. The slices that bytes are taken from are read, and all of the step where one has
        no manifest that is a verdict, or where something is missing; none with `options.quick`.
    output : str or path
        The folder to write: none, an empty one, or one that the same plan has begun.
    wanted : ReshardOptions
        How the output is cut, and its form.
    why_not : callable
        Says why the plan of a step is not enough, None where it is; by default everything must have a source.
    refuse_several : bool
        Refuse a tree with several experiments where the options name none.

    Raises
    ------
    UsageError
        When the target does not fit the parameters of the source, or an experiment has to be named.
    MissingInputError
        When there is no slice, no strategy file of the target, or nothing states how the source is cut.
    FormatError, ContradictionError
        When a strategy file is damaged, or documents contradict each other.
    """
    folder = _folder(output)
    target = read_target(wanted.strategy) if wanted.strategy is not None else None
    wanted = _checked(wanted, inventory)
    session = Session(inventory, options, jobs=jobs, progress=progress)
    facts = session.facts

    def judge(step: Step, run: Run) -> Judged[ReshardPlan | None]:
        if not any(part.counted_at(step) for part in facts.at(step)):
            return Judged(step=step, run=run, value=None, why="every slice of it is of a rank that is declared lost")
        values = read_progress(inventory, step) if wanted.form == "mindformers" else {}
        task = ReshardTask(target=target, options=wanted, output=folder, inventory=inventory, values=values)
        make = partial(plan_step, step=step, run=run, task=task)
        plan, parts = _plan_read(session, step, run, make)
        # Two slices may hold one region in pieces of other sizes: no digest compares them, their bytes do.
        if plan.overlaps:
            from ms_recover.execution.reshard_check import find_unequal

            unequal = find_unequal(plan)
            if unequal:
                plan = make(parts, unequal=unequal)
        return Judged(step=step, run=run, value=plan, why=why_not(plan), disputed=bool(plan.disagreements))

    if refuse_several:
        refuse_experiments(facts)
    choice = choose(candidates_of(facts), partial(judge_runs, judge=judge), partial(refuse_empty, facts))
    plan = choice.shown.value
    if plan is None:
        refuse_empty(facts, choice.rejected)
    rejected = tuple(passed for passed in choice.rejected if passed.step != plan.step)
    return replace(plan, rejected_steps=rejected, warnings=(*filter(None, [text_of_others(facts)]), *plan.warnings))


def _checked(wanted: ReshardOptions, inventory: Inventory) -> ReshardOptions:
    """Return what is wanted with its form, where that follows from the source; UsageError where it cannot be."""
    if wanted.dtype is not None:
        check_castable()
    if wanted.form is None and wanted.pattern is None and not wanted.full and inventory.iterations:
        wanted = replace(wanted, form="mindformers")
    if wanted.form == "mindformers" and wanted.pattern is not None:
        raise UsageError("MindFormers' format has its own names for files: leave the pattern out")
    if wanted.pattern is not None:  # other commands have to find the slices, each rank's under its own name
        Pattern.parse(wanted.pattern)
        if any(part.startswith(".") for part in wanted.pattern.split("/")):
            raise UsageError(f"pattern {wanted.pattern!r} has a hidden name, which no scan takes for a slice")
    return wanted


def _plan_read(
    session: Session, step: Step, run: Run, make: Callable[..., ReshardPlan]
) -> tuple[ReshardPlan, list[Comparison]]:
    """Return the plan of a step, and what it was made from; read as `plan_reshard` says.

    Where every slice has a manifest that is a verdict, replicas that give nothing need not be read: their contents
    decide nothing while those that give something are right.
    """
    files = session.files_of(step)
    proven = all(file.manifest is not None and file.manifest.provenance.proven for file in files)
    if not proven and not session.options.quick:
        session.read_step(step, run)

    def judge() -> tuple[ReshardPlan, list[Comparison]]:
        parts = session.compared(step)
        return make(parts), parts

    def required(made: tuple[ReshardPlan, list[Comparison]]) -> list[SliceFile]:
        plan, _ = made
        taken = paths_taken(plan) if plan.complete else None
        return [file for file in files if taken is None or file.path in taken]

    return session.read_until_known(judge, required)


def reshard(  # noqa: PLR0913 (the keywords of programs)
    plan: ReshardPlan,
    *,
    jobs: int = 1,
    verify: bool = True,
    partial: bool = False,
    compare: bool = False,
    dry_run: bool = False,
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
    dry_run : bool
        Read all, put it together in memory, and write nothing; outcome and errors are the same.
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
    from ms_recover.execution.reshard import foresee_reshard, run_reshard

    if dry_run:
        return foresee_reshard(plan, jobs=jobs, partial=partial, progress=progress)
    return run_reshard(plan, jobs=jobs, verify=verify, partial=partial, compare=compare, progress=progress)
