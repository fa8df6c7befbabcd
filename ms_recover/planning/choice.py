"""Which step is taken: the candidates, and lazily what judging them shows.

Every verb asks here. They differ in an argument alone: the function that judges a candidate, which says what is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, NoReturn, TypeVar

from ms_recover.errors import MissingInputError, UnrecoverableError
from ms_recover.model.plan import RankVerdict, RejectedStep, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.planning.history.make_history import judge_clean, make_tree_history
from ms_recover.planning.judging.judge import Parts, judge_step
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.supply.choose import choose_sources
from ms_recover.planning.supply.supply import Supply
from ms_recover.planning.tree.candidates import Candidate, candidate_at, find_candidates, runs_alike
from ms_recover.planning.tree.rank_verdicts import join_ranks, why_unrecoverable
from ms_recover.planning.tree.runs import Run
from ms_recover.planning.tree.tree_facts import TreeFacts

C = TypeVar("C")
T = TypeVar("T")

_MOST_NAMED = 8
_NO_STEP = Step(0, 0)


@dataclass(frozen=True, kw_only=True)
class Judged(Generic[T]):
    """A step as slices of one run.

    Parameters
    ----------
    step, run
        The step and the run.
    value
        The result of judging.
    why : str or None
        Why it is not taken; None where it is.
    disputed : bool
        Replicas differ with nothing to settle who is right: no older step is tried, because that would hide it.
    lacking : tuple of int
        The ranks without a source.
    """

    step: Step
    run: Run
    value: T
    why: str | None = None
    disputed: bool = False
    lacking: tuple[int, ...] = ()

    @property
    def rejected(self) -> RejectedStep:
        """The step among those that are passed over."""
        why = f"{self.run.text}: {self.why}" if self.run.apart else self.why or ""
        return RejectedStep(self.step, why, ranks=self.lacking)


@dataclass(frozen=True, kw_only=True)
class Choice(Generic[T]):
    """The step that is taken, or the one to show where none is: at which replicas differ, else the newest judged.

    `rejected` are the steps that were passed over, newest first; where none is taken, the one to show among them.
    """

    shown: Judged[T]
    found: bool
    rejected: tuple[RejectedStep, ...]


def candidates_of(facts: TreeFacts) -> Iterator[Candidate | RejectedStep]:
    """Yield the candidates of a tree without those that are not clean, where the options ask for clean ones.

    Errors are those of `find_candidates` and `judge_clean`.
    """
    why_unclean = judge_clean(facts.options, lambda: make_tree_history(facts))
    for one in find_candidates(facts):
        why = why_unclean(one.step) if isinstance(one, Candidate) else None
        yield RejectedStep(one.step, why) if why is not None else one


def judge_each(
    candidates: Iterable[C | RejectedStep], judge: Callable[[C], Judged[T]]
) -> Iterator[Judged[T] | RejectedStep]:
    """Yield each candidate judged, up to the first at which replicas differ, and the steps passed over between."""
    for candidate in candidates:
        if isinstance(candidate, RejectedStep):
            yield candidate
            continue
        judged = judge(candidate)
        yield judged
        if judged.disputed:
            return


def choose(
    candidates: Iterable[C | RejectedStep],
    judge: Callable[[C], Judged[T]],
    show: Callable[[Sequence[RejectedStep]], Judged[T]],
) -> Choice[T]:
    """Choose the first candidate that is enough; `show` judges a step where there is no candidate, or raises."""
    rejected: list[RejectedStep] = []
    shown: Judged[T] | None = None
    for judged in judge_each(candidates, judge):
        if isinstance(judged, RejectedStep):
            rejected.append(judged)
            continue
        if judged.why is None:
            return Choice(shown=judged, found=True, rejected=tuple(rejected))
        rejected.append(judged.rejected)
        shown = judged if judged.disputed else shown or judged
    return Choice(shown=shown or show(rejected), found=False, rejected=tuple(rejected))


def judge_runs(candidate: Candidate, judge: Callable[[Step, Run], Judged[T]]) -> Judged[T]:
    """Judge a step as each of its runs, the best first, up to the first that is enough.

    One whose replicas differ ends the search as well: no smaller run may hide that.
    """
    tried: list[Judged[T]] = []
    for run in candidate.runs:
        judged = judge(candidate.step, run)
        if judged.why is None:
            return judged
        tried.append(judged)
        if judged.disputed:
            break
    if len(tried) == 1:
        return tried[0]
    why = "; ".join(f"{judged.run.text}: {judged.why}" for judged in tried)
    shown = tried[-1] if tried[-1].disputed else tried[0]
    return replace(shown, why=why, lacking=tried[0].lacking)


@dataclass(frozen=True, kw_only=True)
class AssessedPart:
    """One part of a step as the slices of one run."""

    compared: Comparison
    run: Run
    supply: Supply
    assessment: StepAssessment


@dataclass(frozen=True, kw_only=True)
class AssessedStep:
    """The parts of one step, and the verdict on each rank."""

    parts: tuple[AssessedPart, ...]
    ranks: tuple[RankVerdict, ...]

    @property
    def run_id(self) -> str | None:
        """The run that it is of; None when no manifest says so."""
        return next((one.assessment.run_id for one in self.parts if one.assessment.run_id is not None), None)


Assess = Callable[[Candidate], Judged[AssessedStep]]
"""What assesses candidates of one tree: `assess_candidate`, or what remembers its answers."""


def choose_step(parts: Parts) -> Choice[AssessedStep]:
    """Choose the newest step that every rank that needs a slice can be brought to.

    Where every step is passed over before it is judged, the newest of the run is shown.

    Raises
    ------
    MissingInputError
        When no step is of the run to recover.
    """
    return choose(candidates_of(parts.facts), partial(assess_candidate, parts), partial(_show_newest, parts))


def _show_newest(parts: Parts, rejected: Sequence[RejectedStep]) -> Judged[AssessedStep]:
    newest = next((one.step for one in rejected if not one.another_run), None)
    if newest is None:
        refuse_empty(parts.facts, rejected)
    return assess_candidate(parts, candidate_at(parts.facts, newest))


def refuse_empty(facts: TreeFacts, rejected: Sequence[RejectedStep]) -> NoReturn:
    """Raise the error of a tree without a candidate, with the reasons.

    Raises
    ------
    MissingInputError
        When no step is of the run to recover.
    UnrecoverableError
        When each step that is of it is passed over.
    """
    lineage = next((part.lineage for part in facts.every() if part.lineage is not None), None)
    hints = lineage.set_aside_texts(_NO_STEP) if lineage is not None else []
    reasons = [f"step {passed.step}: {passed.reason}" for passed in rejected[:_MOST_NAMED]]
    hints = hints or [*reasons, "name a step with --step"]
    if any(not passed.another_run for passed in rejected):
        raise UnrecoverableError(f"{facts.inventory.root} has no step to take; {'; '.join(hints)}")
    raise MissingInputError(f"{facts.inventory.root} holds no slice of the present run; {'; '.join(hints)}")


def assess_candidate(parts: Parts, candidate: Candidate) -> Judged[AssessedStep]:
    """Judge every rank at a step, and choose a source for each that needs one."""
    return judge_runs(candidate, partial(_assess_run, parts))


def _assess_run(parts: Parts, step: Step, run: Run) -> Judged[AssessedStep]:
    assessed: list[AssessedPart] = []
    compared_parts = parts.at(step)
    for compared in compared_parts:
        # Where there is one part the run is one of its own.
        runs = runs_alike(compared.facts, step, run) if len(compared_parts) > 1 else (run,)
        judged = judge_runs(Candidate(step=step, runs=runs), partial(_assess_part, compared))
        assessed.append(judged.value)
    ranks = join_ranks({part.compared.facts.kind: part.assessment.ranks for part in assessed})
    worlds = {len(part.assessment.ranks) for part in assessed}
    differ = [text for part in assessed for text in part.assessment.disagreements]
    enough = len(worlds) == 1 and 0 not in worlds and all(map(_is_enough, assessed))
    return Judged(
        step=step,
        run=run,
        value=AssessedStep(parts=tuple(assessed), ranks=ranks),
        why=None if enough else why_unrecoverable(ranks) or "; ".join(differ) or "it has no file",
        disputed=bool(differ),
        lacking=() if enough else tuple(part.rank for part in ranks if part.verdict == "unrecoverable"),
    )


def _assess_part(compared: Comparison, step: Step, run: Run) -> Judged[AssessedPart]:
    supply = Supply.of(compared.facts, judge_step(compared, step, run))
    part = AssessedPart(compared=compared, run=run, supply=supply, assessment=choose_sources(supply))
    why = None if _is_enough(part) else ""
    return Judged(step=step, run=run, value=part, why=why, disputed=bool(part.assessment.disagreements))


def _is_enough(part: AssessedPart) -> bool:
    """Whether each rank that needs a slice keeps its own or gets one, of a part of which something is known."""
    assessment = part.assessment
    ranks = part.compared.facts.options.ranks
    wanted = range(len(assessment.ranks)) if ranks is None else ranks
    return not assessment.disagreements and all(assessment.ranks[rank].verdict != "unrecoverable" for rank in wanted)


def assess_step(compared: Comparison, step: Step, run: Run) -> StepAssessment:
    """Judge every rank at a step as the slices of one run, and choose a source for each rank that needs one."""
    return _assess_part(compared, step, run).value.assessment
