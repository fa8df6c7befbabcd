"""What one rank has at each step of a tree, or can get there: the verdicts on it, and what they rest on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import RunStep
from ms_recover.model.plan import RankVerdict, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.planning.choice import assess_step
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.supply.lent_values import lost_values, text_of_kept, why_not_shown
from ms_recover.planning.tree.candidates import Candidate, candidate_at, find_candidates, runs_of
from ms_recover.planning.tree.lineage import Lineage
from ms_recover.planning.tree.tree_facts import TreeFacts
from ms_recover.training.deciding.agreement import Place


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """The steps of a tree as one rank sees it; other ranks may see other slices."""

    rank: int
    comparison: Comparison | None = None
    """What the slices show about each other; None where the rank sees no tree, or did not judge it."""
    assessments: Mapping[Step, StepAssessment] = field(default_factory=dict)
    """Newest step first. Only the verdict on this rank counts."""
    withdrawn: Mapping[Step, str] = field(default_factory=dict)
    """Steps that are not resumed from, and the reasons: they belong to an older run, or an attempt failed."""

    @classmethod
    def judged(cls, rank: int, tree: TreeFacts, compared: Comparison, only: Step | None = None) -> RankSteps:
        """Judge the rank at each step that may be resumed from; with `only` at no other one.

        Raises what `find_candidates` raises.
        """
        assessments: dict[Step, StepAssessment] = {}
        passed_over: dict[Step, str] = {}
        slices = tree.inventory.slices
        for one in find_candidates(tree, only) if slices else ():
            if isinstance(one, Candidate):
                assessments[one.step] = _assess(compared, one, rank)
            else:
                passed_over[one.step] = one.reason
        if only is not None and slices and only not in tree.inventory.steps:
            passed_over[only] = "there is no slice of it"
        return cls(rank=rank, comparison=compared, assessments=assessments, withdrawn=passed_over)

    def judged_again(self, step: Step, tree: TreeFacts, compared: Comparison) -> RankSteps:
        """Return the steps after more was read, with another verdict on one of them."""
        assessment = _assess(compared, candidate_at(tree, step), self.rank)
        return replace(self, comparison=compared, assessments={**self.assessments, step: assessment})

    def without(self, step: Step, reason: str) -> RankSteps:
        """Return the steps of which one is not available."""
        return replace(self, withdrawn={**self.withdrawn, step: reason})

    @property
    def compared(self) -> Comparison:
        """The comparison; only for a rank that has judged a tree."""
        assert self.comparison is not None
        return self.comparison

    @property
    def lineage(self) -> Lineage | None:
        """The run to resume, and those that it goes on from; None where nothing states it."""
        return self.comparison.facts.lineage if self.comparison is not None else None

    @property
    def available(self) -> list[Step]:
        """Steps at which this rank has its slice or can get it, newest first."""
        return [
            step
            for step in self.assessments
            if step not in self.withdrawn and self.verdict(step).verdict != "unrecoverable"
        ]

    @property
    def unavailable(self) -> dict[Step, str]:
        """The other steps and the reasons, newest first."""
        available = self.available
        reasons = {step: self.verdict(step).reason for step in self.assessments if step not in available}
        reasons.update(self.withdrawn)
        return {step: reasons[step] for step in sorted(reasons, reverse=True)}

    @property
    def given_up(self) -> dict[Step, str]:
        """The steps that the rank cannot be brought to, and the reasons."""
        verdicts = {step: self.verdict(step) for step in self.assessments if step not in self.withdrawn}
        return {step: one.reason for step, one in verdicts.items() if one.verdict == "unrecoverable"}

    def place(self, step: Step) -> Place:
        """Return the place of a step in the lineage, with the step."""
        return self.comparison.facts.times_of(step)[0].generation if self.comparison is not None else 0, step

    def verdict(self, step: Step) -> RankVerdict:
        """Return the verdict on this rank at a step."""
        return self.assessments[step].ranks[self.rank]

    def lends(self, step: Step) -> bool:
        """Whether this rank's slice has values of another rank since it was recovered earlier."""
        path = self.verdict(step).path
        held = (one for one in self.compared.facts.at(step, self.rank) if one.path == path)
        return any(text_of_kept(one) for one in held)

    def lost_values(self, step: Step) -> tuple[str, ...]:
        """Return the rank-local parameters of which the slice has, or gets, another rank's values."""
        return lost_values(self.compared.facts, self.assessments[step], self.rank)

    def why_not_shown(self, step: Step) -> str | None:
        """Return that nothing shows whether values which this rank gets from another one were its own."""
        return why_not_shown(self.compared.facts, self.assessments[step], self.rank)

    def disputed_from(self, step: Step) -> tuple[Step, tuple[str, ...]] | None:
        """Return a step, this or a newer one, at which replicas differ with nothing to show which is right, and how."""
        disputed = (
            (newer, one.disagreements) for newer, one in self.assessments.items() if newer >= step and one.disagreements
        )
        return next(disputed, None)

    def run_of(self, step: Step) -> RunStep:
        """Return a step with the run that it is taken from."""
        run = runs_of(self.compared.facts, step)[0]
        return RunStep(self.assessments[step].run_id or "", step, run.started)

    def fingerprint(self, step: Step) -> int:
        """Return a 32-bit number that differs between runs, 0 when the run of the step's slices is unknown."""
        run_id = self.assessments[step].run_id
        return 0 if not run_id else fingerprint(f"{run_id}@{self.run_of(step).started}")

    def is_newer(self, file: SliceFile, step: Step) -> bool:
        """Whether a slice is newer than a step, or of a later run than the last."""
        order = self.lineage.order(file) if self.lineage is not None else None
        if order is not None:
            return order > self.place(step)
        return file.step > step or (self.lineage is not None and self.lineage.is_later(file.manifest))


def fingerprint(text: str) -> int:
    """Return a 32-bit number that differs between texts."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest(), "big", signed=True)


def _assess(compared: Comparison, candidate: Candidate, rank: int) -> StepAssessment:
    """Judge every rank at a step: as of the best run, or of another set of its slices if this rank has one there."""
    step, (first, *others) = candidate.step, candidate.runs
    assessed = assess_step(compared, step, first)
    for run in others:
        if assessed.disagreements or assessed.ranks[rank].verdict != "unrecoverable":
            break
        if run.run_id and (run.run_id, run.started) == (first.run_id, first.started):
            other = assess_step(compared, step, run)
            assessed = other if other.ranks[rank].verdict != "unrecoverable" else assessed
    return assessed
