"""The slices of each part of a tree, compared with each other: a tree without iterations is one part."""

from __future__ import annotations

from collections.abc import Sequence

from ms_recover.file_names import WeightKind
from ms_recover.model.steps import Step
from ms_recover.planning.facts import Facts
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.tree.tree_facts import TreeFacts


class Parts:
    """The parts of a tree, each compared when it is needed; a tree without iterations is one part.

    Unless `all_read`, a comparison may name slices that must be read first; see `compare_slices`.
    """

    def __init__(self, facts: TreeFacts, *, all_read: bool = True) -> None:
        self.facts, self._all_read = facts, all_read
        self._compared: dict[int, Comparison] = {}

    def at(self, step: Step, kinds: Sequence[WeightKind | None] = ()) -> list[Comparison]:
        """Return the parts of a step, or those of some kinds; model files first."""
        return [self._compare(facts) for facts in self.facts.at(step, kinds)]

    def every(self) -> list[Comparison]:
        """Return all parts that the step in the options leaves; newest first."""
        return [self._compare(facts) for facts in self.facts.every()]

    def _compare(self, facts: Facts) -> Comparison:
        if id(facts) not in self._compared:
            self._compared[id(facts)] = compare_slices(facts, all_read=self._all_read)
        return self._compared[id(facts)]


def kind_of(compared: Comparison) -> WeightKind | None:
    """Return the part of a tree that is compared; None where a slice is one file."""
    part = compared.facts.inventory.part
    return part.name if part is not None else None
