"""The outcomes of nodes as one (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ms_recover.errors import MsRecoverError, UnrecoverableError
from ms_recover.model.actions import CopyAction
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import Action, Plan


def outcome_at(label: str, done: Outcome) -> Outcome:
    """Return the outcome of a node, with its name in each error."""
    results = tuple(
        replace(one, error=f"{label}: {one.error}") if one.error is not None else one for one in done.results
    )
    return replace(done, results=results, errors=tuple(f"{label}: {error}" for error in done.errors))


def lost_outcome(label: str, part: Plan, error: MsRecoverError) -> Outcome:
    """Return the outcome of a node that could not be asked to the end: its actions have failed."""
    why = f"{label}: {error}"
    step = part.step if part.step is not None else part.considered
    assert step is not None
    failed = tuple(_failed(action, why) for action in (part.actions or part.partials))
    return Outcome(part.root, step, failed, (), True, () if failed else (why,), error.exit_code)


def _failed(action: Action, error: str) -> ActionResult:
    source = action.source if isinstance(action, CopyAction) else f"{len(action.source_ranks)} slices"
    rank = action.source_rank if isinstance(action, CopyAction) else None
    return ActionResult(action.rank, rank, source, action.target, "failed", error=error)


def joined(plan: Plan, planned: Sequence[Action], outcomes: Sequence[Outcome], verify: bool) -> Outcome:
    """Return the outcome of all nodes as that of one."""
    results = {result.target: result for outcome in outcomes for result in outcome.results}
    step = plan.step if plan.step is not None else plan.considered
    assert step is not None
    codes = [outcome.exit_code for outcome in outcomes]
    return Outcome(
        root=plan.root,
        step=step,
        results=tuple(results[action.target] for action in planned),
        group_files=tuple(sorted(path for outcome in outcomes for path in outcome.group_files)),
        verified=verify,
        errors=tuple(error for outcome in outcomes for error in outcome.errors),
        exit_code=max([*codes, UnrecoverableError.exit_code if plan.step is None else 0]),
        partial=plan.step is None,
        rejected_steps=plan.rejected_steps,
        meta_files=tuple(sorted(path for outcome in outcomes for path in outcome.meta_files)),
        strategy_files=tuple(sorted(path for outcome in outcomes for path in outcome.strategy_files)),
        set_aside=tuple(sorted({path for outcome in outcomes for path in outcome.set_aside})),
    )
