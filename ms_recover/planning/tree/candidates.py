"""The steps that may be taken, newest first, and why the others are passed over: by the facts alone.

Every choice of a step begins here; see `ms_recover.planning.choice` for what judging adds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.planning.facts import Facts
from ms_recover.planning.positions import Saved
from ms_recover.planning.runs import Run
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
    own = [facts for facts in parts if facts.counted_at(step) and facts.why_older(step) is None] if parts[1:] else []
    return Candidate(step=step, runs=next((facts.runs(step, saved) for facts in (*own, *parts)), (Run(),)))


def runs_alike(facts: Facts, step: Step, run: Run) -> tuple[Run, ...]:
    """Return the runs of a part of a step that may be one of another part, as far as both state it."""
    own = facts.runs(step)
    return (run,) if run in own else tuple(other for other in own if run.may_be(other)) or (run,)


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
        others = all(facts.is_of_others(step, saved) for facts in parts)
        return RejectedStep(step, older, another_run=True, another_experiment=others)
    unhealthy = next((why for facts in tree.at(step) if (why := facts.why_unhealthy(step, saved)) is not None), None)
    return RejectedStep(step, unhealthy) if unhealthy is not None else None


def why_of_another_run(tree: TreeFacts, step: Step, saved: Saved | None = None) -> str | None:
    """Return the reason why no part of a step is of the run to recover; None when one is, or no slice of it counts."""
    reasons = [facts.why_older(step, saved) for facts in tree.at(step) if facts.counted_at(step)]
    return reasons[0] if reasons and None not in reasons else None
