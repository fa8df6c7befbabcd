"""Judge slices by the ordered list of rules: those of all steps compared once, then those of one step."""

from __future__ import annotations

from collections.abc import Sequence

from ms_recover.file_names import WeightKind
from ms_recover.model.steps import Step
from ms_recover.planning.judging.judgement import Case, Comparison, Judgement, StepJudgement
from ms_recover.planning.judging.misplaced import ContentIndex
from ms_recover.planning.judging.rules import RULES
from ms_recover.planning.tree.candidates import runs_alike
from ms_recover.planning.tree.facts import Facts
from ms_recover.planning.tree.runs import Run
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


def compare_slices(facts: Facts, *, all_read: bool = True) -> Comparison:
    """Compare the slices of all steps with each other, by the rules that need several steps.

    Unless `all_read`, the result may name slices that must be read before the operator's word is judged.

    Raises
    ------
    ContradictionError
        When slices of ranks that hold the same by the operator's word differ as no damage makes them differ.
    """
    compared = Comparison(facts=facts, contents=ContentIndex(facts.counted, facts.stages), all_read=all_read)
    for rule in RULES:
        compared = rule.compare(compared)
    return compared


def judge_part(compared: Comparison, step: Step, run: Run) -> StepJudgement:
    """Judge the slices of a part of a step as those of its best run that may be a run of another part."""
    return judge_step(compared, step, runs_alike(compared.facts, step, run)[0])


def judge_step(compared: Comparison, step: Step, run: Run, *, sealing: bool = False) -> StepJudgement:
    """Judge every slice of a step that is not of a lost rank; those that are not of the run are foreign.

    With `sealing` slices without manifest may be sound beside sealed ones although nobody confirms them.
    """
    slices = compared.facts.counted_at(step)
    judged: dict[str, Judgement] = {}
    disagreements: dict[tuple[int, ...], str] = {}
    for rule in RULES:
        pending = tuple(slice_ for slice_ in slices if slice_.path not in judged)
        ruling = rule.judge(
            Case(
                compared=compared,
                step=step,
                run=run,
                sealing=sealing,
                slices=slices,
                pending=pending,
                judged=judged,
            )
        )
        judged = {**judged, **ruling.slices}
        disagreements = {**disagreements, **ruling.disagreements}
    # By other steps: at the step itself its slices vote.
    refuted = {
        path: why for other, reasons in compared.refuted.items() if other != step for path, why in reasons.items()
    }
    return StepJudgement(
        step=step,
        run=run,
        slices=judged,
        disagreements=disagreements,
        structure=compared.structure,
        refuted=refuted,
    )
