"""One tree, and what was read of it: every verb asks here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from typing import TypeVar

from ms_recover.file_names import WeightKind
from ms_recover.model.contents import Contents, Reader
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.progress import Progress
from ms_recover.model.steps import Step
from ms_recover.planning.choice import AssessedStep, Choice, choose_step
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.judging.trials import trials_of
from ms_recover.planning.plan.planner import Planned, plan_choice
from ms_recover.planning.plan.required_reads import required_reads
from ms_recover.planning.tree.lineage import RunRecord
from ms_recover.planning.tree.runs import Run
from ms_recover.planning.tree.tree_facts import TreeFacts
from ms_recover.scanning.read import Reading, read_contents

T = TypeVar("T")
Kinds = Sequence[WeightKind | None]


def reader_of(inventory: Inventory, jobs: int, progress: Progress | None, *, from_device: bool = False) -> Reader:
    """Return what reads slices of a tree in threads of this process, from the device or from the page cache."""
    counted = progress or (lambda count: None)
    reading = Reading(jobs=jobs, progress=counted, from_device=from_device, crc=inventory.crc_later)
    return partial(read_contents, inventory.root, reading=reading)


class Session:
    """A tree that was scanned, with the options of its operator, and what was read of its slices so far.

    Parameters are those of `ms_recover.api.plan`, and the runs that are known from elsewhere.

    Attributes
    ----------
    reader : callable
        Reads slices of the tree.
    facts : TreeFacts
        What is known of the tree; they are others after more was read.

    Raises
    ------
    UsageError, MissingInputError
        As `TreeFacts` does.
    """

    def __init__(
        self,
        inventory: Inventory,
        options: PlanOptions = DEFAULT_PLAN,
        *,
        jobs: int = 1,
        progress: Progress | None = None,
        read: Reader | None = None,
        known_runs: Sequence[RunRecord] = (),
    ) -> None:
        self.inventory, self.options = inventory, options
        self.reader = read or reader_of(inventory, jobs, progress)
        self.facts = TreeFacts(inventory, options, known_runs=known_runs)
        self._parts = Parts(self.facts)

    @property
    def contents(self) -> Contents:
        """The digests that were read."""
        return self.facts.contents

    @cached_property
    def planned(self) -> Planned:
        """The plan, with what it was made from; also one that goes back to an older step.

        What it rests on is read, until it rests on what was read. Errors are those of `ms_recover.api.plan`.
        """
        return plan_choice(*self.chosen)

    @cached_property
    def chosen(self) -> tuple[Parts, Choice[AssessedStep]]:
        """The step that a plan is for, and the parts of the tree, after what the choice rests on is read."""
        return self.read_until_known(self._choose, lambda found: required_reads(found[1]))

    def _choose(self) -> tuple[Parts, Choice[AssessedStep]]:
        tree = Parts(self.facts, all_read=self.options.quick)
        return tree, choose_step(tree)

    def read(self, files: Iterable[SliceFile]) -> bool:
        """Read slices from end to end that were not read before; whether there were any.

        Errors are those of `ms_recover.scanning.read.read_contents`.
        """
        unread = {file.path: file for file in files if not self.contents.knows(file)}
        if unread:
            self.facts = self.facts.with_contents(self.contents.merged(self.reader(list(unread.values()))))
            self._parts = Parts(self.facts)
        return bool(unread)

    def read_until_known(self, judge: Callable[[], T], required: Callable[[T], Iterable[SliceFile]]) -> T:
        """Judge, read what that requires, and judge again, until nothing that it requires is unread.

        With ``quick`` in the options nothing is read.
        """
        while True:
            judged = judge()
            if self.options.quick or not self.read(required(judged)):
                return judged

    def read_step(self, step: Step, run: Run, kinds: Kinds = ()) -> None:
        """Read the slices of a step, and of another step those that show whether one is outvoted rightly."""
        self.read(self.files_of(step, kinds))
        parts = self.compared(step, kinds)
        self.read(file for compared in parts for file in trials_of(compared, step, run))

    def files_of(self, step: Step | None, kinds: Kinds = ()) -> list[SliceFile]:
        """Return the slices that are not malformed, of one step and of some kinds of files if they are given."""
        return [
            file
            for file in self.inventory.slices
            if file.problem is None and step in (None, file.step) and (not kinds or file.kind in kinds)
        ]

    def compared(self, step: Step, kinds: Kinds = ()) -> list[Comparison]:
        """Return the parts of a step, or those of some kinds, compared by what was read."""
        return self._parts.at(step, kinds)

    def every_compared(self) -> list[Comparison]:
        """Return all parts that the step in the options leaves, compared by what was read; newest first."""
        return self._parts.every()
