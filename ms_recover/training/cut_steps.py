"""The steps that slices can be cut anew from: a rank puts its own slice together from those of any world."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ms_recover.errors import MsRecoverError, UsageError, VerificationError
from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.choice import judge_each
from ms_recover.planning.tree.candidates import Candidate as TreeStep
from ms_recover.planning.tree.lineage import RunRecord
from ms_recover.planning.tree.runs import Run
from ms_recover.training.deciding.agreement import Candidate, Candidates, Place
from ms_recover.training.deciding.foreign_folder import HeldRuns, held_runs
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.rank_steps import fingerprint
from ms_recover.training.search import Search
from ms_recover.training.tree_view import SliceTree, TreeView

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class CutStep:
    """A step of a tree, as slices of a run, that this rank can put its slice together from."""

    view: TreeView
    step: Step
    run: Run

    @property
    def candidate(self) -> Candidate:
        """The step as ranks agree on it: of one run, that one number of ranks saved."""
        number = fingerprint(f"{self.run.run_id}@{self.run.started}/{self.view.ranks}")
        return Candidate(place=self.view.place(self.step), fingerprint=number)


@dataclass(eq=False, kw_only=True)
class CutSteps(Candidates[CutStep]):
    """The steps of all trees that this rank can have, newest first, each looked at when it is asked for."""

    rank: int
    search: Search
    views: Sequence[TreeView]
    why_not: Callable[[CutStep], str | None]
    """Puts the slice of this rank together; returns why that cannot be done, None where it was."""
    passed_over: dict[Step, str] = field(default_factory=dict)
    _judged: dict[Place, CutStep] = field(default_factory=dict)
    """By the place at which a rank named them."""
    _without: set[Place] = field(default_factory=set)
    _why: str | None = None
    """Why this rank could not put together what it tried last."""

    @classmethod
    def judged(
        cls,
        rank: int,
        search: Search,
        trees: Sequence[SliceTree],
        runs: tuple[RunRecord, ...],
        why_not: Callable[[CutStep], str | None],
    ) -> CutSteps:
        """Judge the trees by the runs that all ranks see, each for itself; those that cannot be are passed over.

        Raises what `ms_recover.planning.tree.facts.gather_facts` raises where there is no other.
        """
        views: list[TreeView] = []
        first: MsRecoverError | None = None
        for tree in trees:
            try:
                views.append(TreeView.of(tree, search.judging, runs))
            except UsageError:
                raise
            except MsRecoverError as error:
                _log.warning("%s is passed over: %s", tree.name, error)
                first = first or error
        if not views and first is not None:
            raise first
        return cls(rank=rank, search=search, views=views, why_not=why_not)

    @property
    def is_empty(self) -> bool:
        """Whether there is no tree with slices."""
        return not self.views

    @property
    def place(self) -> TreeView | None:
        """The tree in place."""
        return next((view for view in self.views if view.tree.in_place), None)

    def held_runs(self) -> Mapping[int, HeldRuns]:
        """Return the runs of which each rank has slices in place."""
        view = self.place
        if view is None:
            return {}
        return {rank: held_runs(view.tree.inventory, view.facts, rank) for rank in range(view.ranks)}

    def newest(self, bound: Place | None, *, own_states: bool) -> Candidate | None:
        """Return the newest step up to a bound of which every region of every parameter has a holder.

        Raises
        ------
        VerificationError
            When replicas of a step differ, and nothing shows which is right.
        """
        for one in judge_each(self._steps(bound), lambda step: step[0].judge(step[1])):
            if isinstance(one, RejectedStep):
                continue
            view, step = one.value, one.step
            if one.why is None:
                chosen = CutStep(view, step, one.run)
                self._judged[chosen.candidate.place] = chosen
                return chosen.candidate
            if one.disputed:
                raise VerificationError(
                    f"step {step} of {view.tree.name}: {one.why}: nothing shows which is right; remove the wrong "
                    "slice, or name the parameters that may differ with tolerate"
                )
            _log.warning("step %s of %s is passed over: %s", step, view.tree.name, one.why)
            self.passed_over[step] = f"{view.tree.name}: {one.why}"
        return None

    def _steps(self, bound: Place | None) -> list[tuple[TreeView, TreeStep]]:
        """Return the candidates of all trees up to a bound."""
        steps: list[tuple[Place, TreeView, TreeStep]] = []
        for view in self.views:
            for one in view.candidates(self.search.step):
                if isinstance(one, RejectedStep):
                    self.passed_over.setdefault(one.step, f"{view.tree.name}: {one.reason}")
                elif (place := view.place(one.step)) not in self._without and (bound is None or place <= bound):
                    steps.append((place, view, one))
        steps.sort(key=lambda step: step[0], reverse=True)  # stable: the tree in place first
        return [(view, one) for _, view, one in steps]

    def obtain(self, candidate: Candidate) -> CutStep | None:
        """Have this rank's slice put together; None where that shows that it cannot be."""
        chosen = self._judged[candidate.place]
        self._why = self.why_not(chosen)
        return chosen if self._why is None else None

    def fingerprint(self, candidate: Candidate) -> int:
        """Return that of the candidate, which is judged."""
        return candidate.fingerprint

    def withdraw(self, candidate: Candidate, why: str) -> None:
        """Name a step no more."""
        view = self._judged[candidate.place].view
        step = candidate.step
        _log.warning("rank %d, step %s, %s: %s; trying an older step", self.rank, step, view.tree.name, why)
        self._without.add(candidate.place)
        self.passed_over[step] = why

    def missed(self, candidate: Candidate, ranks: Sequence[int]) -> None:
        """Give a step up that some ranks cannot put together.

        Raises
        ------
        VerificationError
            When that is the step that was chosen.
        """
        why = self._why or f"rank(s) {list_some(ranks)} cannot put their slices together: see their logs"
        if self.search.step is not None:
            name = self._judged[candidate.place].view.tree.name
            raise VerificationError(f"rank {self.rank}, step {candidate.step}, {name}: {why}")
        self.withdraw(candidate, why)

    def why_none(self, job: TrainingJob, ranks: Sequence[int]) -> str:
        """Return which ranks can have none, and what this one sees."""
        lacks = list_some((f"step {step}: {why}" for step, why in self.passed_over.items()), separator="; ")
        asked = self.search.step
        where = f"under {self.search.root}" + (f" and step {asked}" if asked is not None else "")
        seen = sum(len(view.tree.inventory.slices) for view in self.views)
        return (
            f"there is no step {where} that every rank can put its slice together from: rank(s) {list_some(ranks)} can "
            f"have none; rank {self.rank} sees {seen} slice(s)"
            + (f" ({lacks})" if lacks else "")
            + "; name where other slices lie with sources="
        )
