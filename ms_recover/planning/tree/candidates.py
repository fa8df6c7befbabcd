"""The steps that may be taken, newest first, and why the others are passed over: by the facts alone.

Every choice of a step begins here; see `ms_recover.planning.choice` for what judging adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from ms_recover.errors import UsageError
from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.experiments import other_experiments
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.lineage import Lineage
from ms_recover.planning.tree.positions import Saved
from ms_recover.planning.tree.resume_records import why_unhealthy
from ms_recover.planning.tree.runs import Run, find_runs
from ms_recover.planning.tree.tree_facts import TreeFacts, check_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A step that may be taken, as slices of one of some runs, the best first."""

    step: Step
    runs: tuple[Run, ...]
    """Those of one time of the training: a name that two runs gave to different steps makes two candidates."""


def find_candidates(tree: TreeFacts, only: Step | None = None) -> Iterator[Candidate | RejectedStep]:
    """Yield the steps of the run to recover, newest first, and between them each one that is passed over.

    Passed over are those of other experiments than the options name, or the one that was started last.

    With `only` every other step is passed over. A step that the options name is a candidate whatever speaks against it,
    but for a number of ranks that is not its own; no other is then looked at.

    Raises
    ------
    MissingInputError, UsageError
        As for `check_steps`.
    """
    check_steps(tree.inventory, tree.options)
    asked = tree.options.step
    for saved in tree.saved:
        if asked not in (None, saved.step):
            continue
        if only not in (None, saved.step):
            yield RejectedStep(saved.step, f"step {only} was chosen")
        else:
            yield _why_passed_over(tree, saved) or candidate_at(tree, saved.step, saved)


def candidate_at(tree: TreeFacts, step: Step, saved: Saved | None = None) -> Candidate:
    """Return a step with the runs that saved slices of it, or those of one time, whatever speaks against it.

    Where it has several parts, they are those of the first that is of the present run.
    """
    parts = tree.at(step)
    own = [facts for facts in parts if facts.counted_at(step) and why_older(facts, step) is None] if parts[1:] else []
    return Candidate(step=step, runs=next((runs_of(facts, step, saved) for facts in (*own, *parts)), (Run(),)))


def runs_alike(facts: Facts, step: Step, run: Run) -> tuple[Run, ...]:
    """Return the runs of a part of a step that may be one of another part, as far as both state it."""
    own = runs_of(facts, step)
    return (run,) if run in own else tuple(other for other in own if run.may_be(other)) or (run,)


def runs_of(facts: Facts, step: Step, saved: Saved | None = None) -> tuple[Run, ...]:
    """Return the runs that saved slices of a step, the best first; where one is in the lineage, that one alone.

    Of those saved at all times of the training, the newest first, or at the one that is given.
    """
    return _find_runs(facts, step, facts.lineage, saved)


def every_run(facts: Facts, step: Step) -> tuple[Run, ...]:
    """Return the same runs, and after them those that have no part in the lineage."""
    return tuple(dict.fromkeys((*runs_of(facts, step), *_find_runs(facts, step, None))))


def _find_runs(facts: Facts, step: Step, lineage: Lineage | None, saved: Saved | None = None) -> tuple[Run, ...]:
    newest, named = facts.options.newest, facts.older_runs.chosen
    if named is None and facts.named_run is not None and not newest:
        named = facts.named_run.prefix
    times = facts.times_of(step)
    every = frozenset[str]().union(*(at_time.paths or () for at_time in times))
    runs: list[Run] = []
    for at_time in times:
        if saved is not None and saved.paths not in (None, at_time.paths):
            continue
        files = facts.files_at(step, at_time)
        apart = every - at_time.paths if at_time.paths is not None else frozenset()
        of_time = find_runs(files, facts.older_runs, newest=newest, named=named, lineage=lineage)
        runs += [replace(run, trained=at_time.trained, apart=apart) for run in of_time]
    return tuple(runs)


def saved_as(facts: Facts, step: Step, run: Run) -> Saved:
    """Return the slices of a step that were saved when a run of it did."""
    times = facts.times_of(step)
    return next(at_time for at_time in times if at_time.paths is None or at_time.paths.isdisjoint(run.apart))


def why_older(facts: Facts, step: Step, saved: Saved | None = None) -> str | None:
    """Return why the slices of a step, or those saved at one time, are not of the present run; else None."""
    files = facts.files_at(step, saved)
    own, inside = facts.experiments.own(files), facts.times_of(step)[0].generation > 0
    if files and not own and not inside:
        return facts.experiments.why_other(files)
    if facts.lineage is not None and files:
        return None if inside else facts.lineage.why_outside(own)
    named = facts.named_run if facts.older_runs.chosen is None else None
    older = facts.older_runs.why_older(own)
    if older is not None or named is None:
        return older
    return named.why_abandoned(own, step, facts.positions.of_all(own))


def _is_of_others(facts: Facts, saved: Saved) -> bool:
    """Whether slices that were saved at one time are of other experiments alone."""
    files = facts.files_at(saved.step, saved)
    return bool(files) and not facts.experiments.own(files) and not facts.times_of(saved.step)[0].generation


def text_of_others(tree: TreeFacts) -> str | None:
    """Return the warning that names the other experiments, where nothing but their times chose one."""
    return next(filter(None, map(text_of_others_in, tree.every())), None)


def text_of_others_in(facts: Facts) -> str | None:
    """Return the same for one part of a tree."""
    return facts.experiments.text_of(experiments_beside(facts))


def experiments_beside(facts: Facts) -> Mapping[str, Step]:
    """Return the experiments that were not taken, each with its newest step."""
    return other_experiments(facts.experiments, facts.lineage, (one.file for one in facts.counted))


def refuse_experiments(tree: TreeFacts) -> None:
    """Raise a UsageError where several experiments have slices, of the step in the options if they name one.

    Where the options name an experiment or a run, there is nothing to refuse.
    """
    step = tree.options.step
    for facts in tree.every():
        if text_of_others_in(facts) is None:
            continue
        files = [slice_.file for slice_ in facts.counted] if step is None else facts.files_at(step)
        bases = {facts.names.of(file) for file in files}
        listed = sorted(bases.intersection((*facts.experiments.taken, *experiments_beside(facts))))
        if len(listed) > 1:
            at = f"step {step}" if step is not None else "slices"
            raise UsageError(
                f"{tree.inventory.root} has {at} of several experiments, {list_some(map(repr, listed))}: name one, "
                f"with options=PlanOptions(run={listed[0]!r})"
            )


def _why_passed_over(tree: TreeFacts, saved: Saved) -> RejectedStep | None:
    step = saved.step
    given, world = tree.options.world_size, tree.world(step)
    if given not in (None, world.ranks):
        return RejectedStep(step, f"{world.source} are of {world.ranks} ranks, not of {given}", another_run=True)
    if step == tree.options.step:
        return None
    older = why_of_another_run(tree, step, saved)
    if older is not None:
        parts = [facts for facts in tree.at(step) if facts.counted_at(step)]
        others = all(_is_of_others(facts, saved) for facts in parts)
        return RejectedStep(step, older, another_run=True, another_experiment=others)
    unhealthy = filter(None, (why_unhealthy_at(facts, saved) for facts in tree.at(step)))
    return next((RejectedStep(step, why) for why in unhealthy), None)


def why_unhealthy_at(facts: Facts, saved: Saved) -> str | None:
    """Return why slices are not to be resumed from although they may be sound; None when nothing says so."""
    return why_unhealthy(facts.files_at(saved.step, saved), facts.inventory.unhealthy, saved.step)


def why_of_another_run(tree: TreeFacts, step: Step, saved: Saved | None = None) -> str | None:
    """Return the reason why no part of a step is of the run to recover; None when one is, or no slice of it counts."""
    reasons = [why_older(facts, step, saved) for facts in tree.at(step) if facts.counted_at(step)]
    return reasons[0] if reasons and None not in reasons else None
