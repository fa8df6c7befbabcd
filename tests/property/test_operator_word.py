"""Whatever the operator says: a true word is never refused, a false one never believed against the slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from ms_recover.errors import ContradictionError
from ms_recover.model.actions import CopyAction
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step
from ms_recover.verbs.session import Session
from tests.support.examples import examples
from tests.support.inventories import NAMES, slice_file, tree

STEPS = (Step(1, 8), Step(2, 8), Step(3, 8))


@dataclass(frozen=True)
class Job:
    """Ranks with the part that each really holds, and the slices that are left, one with a damaged parameter."""

    parts: tuple[int, ...]
    there: frozenset[tuple[int, Step]]
    damaged: tuple[int, Step] | None
    groups: tuple[frozenset[int], ...]

    @property
    def is_true(self) -> bool:
        return all(len({self.parts[rank] for rank in group}) == 1 for group in self.groups)

    def truth(self, rank: int, step: Step) -> Digests:
        text = f"{step} {self.parts[rank]}"
        return Digests(text, tuple(f"{text} {name}" for name in NAMES))

    def contents(self, rank: int, step: Step) -> Digests:
        right = self.truth(rank, step)
        return Digests(f"{right.file}!", ("!", *right.parameters[1:])) if (rank, step) == self.damaged else right

    def plan(self) -> Plan:
        files = [slice_file(rank, step) for rank, step in sorted(self.there)]
        options = PlanOptions(groups=self.groups, world_size=len(self.parts))
        return Session(tree(files, {}), options, read=self._read).planned.plan

    def _read(self, files: Sequence[SliceFile]) -> Contents:
        return Contents({file.path: self.contents(file.rank, file.step) for file in files})

    def contradicted(self) -> bool:
        """Whether two slices of one step and group are those of different parts."""
        there = [(group, rank, step) for group in self.groups for rank, step in self.there if rank in group]
        return any(
            (group, step) == (other_group, other_step) and self.parts[rank] != self.parts[other]
            for group, rank, step in there
            for other_group, other, other_step in there
        )


@st.composite
def jobs(draw: st.DrawFn, *, damage: bool = False, true: bool = False) -> Job:
    count = draw(st.integers(2, 7))
    ranks = list(range(count))
    parts = tuple(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)))
    steps = STEPS[: draw(st.integers(1, 3))]
    there = frozenset((rank, step) for rank in ranks for step in steps if draw(st.integers(0, 3)))
    of = parts if true else draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))
    groups = (frozenset(rank for rank in ranks if of[rank] == number) for number in range(3))
    assume(there)
    damaged = draw(st.sampled_from(sorted(there))) if damage else None
    return Job(parts, there, damaged, tuple(group for group in groups if len(group) > 1))


@settings(max_examples=examples(100))
@given(jobs(true=True))
def test_a_true_word_is_believed_and_what_is_copied_is_right(job: Job) -> None:
    plan = job.plan()
    for action in plan.actions:
        assert isinstance(action, CopyAction)
        assert action.evidence == "operator"
        assert job.parts[action.rank] == job.parts[action.source_rank]
    event(f"{len(plan.actions)} copies")


@settings(max_examples=examples(100))
@given(jobs())
def test_a_false_word_is_refused_wherever_slices_show_it(job: Job) -> None:
    try:
        plan = job.plan()
    except ContradictionError:
        event("refused")
        assert not job.is_true
        assert job.contradicted()
        return
    copied = {action.rank for action in plan.actions}
    for group in job.groups if plan.actions else ():
        if copied & group:
            parts = {job.parts[rank] for rank in group - copied if (rank, plan.step) in job.there}
            assert len(parts) == 1


@settings(max_examples=examples(100))
@given(jobs(damage=True))
def test_one_damaged_parameter_beside_a_word_true_or_not_copies_no_other_part(job: Job) -> None:
    try:
        plan = job.plan()
    except ContradictionError:
        assert job.contradicted()
        return
    for action in plan.actions:
        held = [rank for rank in action.group if (rank, plan.step) in job.there and (rank, plan.step) != job.damaged]
        assert len({job.parts[rank] for rank in held}) < 2
