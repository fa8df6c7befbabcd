"""Judge the slices of a step by the ordered list of rules."""

from __future__ import annotations

from dataclasses import replace

from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.planning.facts import Facts
from ms_recover.planning.judging.compare_blocks import find_refuted
from ms_recover.planning.judging.dealt_out import find_dealt, forgive_dealt
from ms_recover.planning.judging.judgement import Case, Comparison, Judgement, StepJudgement
from ms_recover.planning.judging.misplaced import ContentIndex
from ms_recover.planning.judging.rules import RULES
from ms_recover.planning.judging.structure import compare_structure
from ms_recover.planning.runs import Run


def compare_slices(facts: Facts, *, all_read: bool = True) -> Comparison:
    """Compare the slices of all steps with each other; those that contradict their manifests show nothing.

    The parameter lists of slices for which documents state them need no comparison. Unless `all_read`, the result may
    name slices that must be read before the operator's word is judged.

    Raises
    ------
    ContradictionError
        When slices of ranks that hold the same by the operator's word differ as no damage makes them differ.
    """
    contents = ContentIndex(facts.counted, facts.stages)
    structure = compare_structure(
        (
            one
            for one in facts.counted
            if one.manifest_problem is None and one.expected is None
            if one.manifest is not None or contents.why_misplaced(one) is None
        ),
        facts.stages,
    )
    found = find_dealt(facts, structure)
    structure = forgive_dealt(facts, replace(structure, deduplicated=found.dealt, doubtful=found.doubtful))
    steps = facts.steps if facts.stages.layouts else ()
    refuted = {step: find_refuted(facts, facts.counted_at(step)) for step in steps}
    unread: tuple[SliceFile, ...] = ()
    if facts.groups.claimed:
        from ms_recover.planning.judging.word_check import check_word  # which plans without such options need not load

        unread = check_word(facts, structure, contents, all_read=all_read)
    return Comparison(
        facts=facts,
        structure=structure,
        contents=contents,
        refuted={step: found for step, found in refuted.items() if found},
        unread=unread,
    )


def judge_step(compared: Comparison, step: Step, run: Run, *, sealing: bool = False) -> StepJudgement:
    """Judge every slice of a step that is not of a lost rank; those that are not of the run are foreign.

    With `sealing` slices without manifest may be sound beside sealed ones although nobody confirms them.
    """
    slices = compared.facts.counted_at(step)
    judged: dict[str, Judgement] = {}
    disagreements: dict[tuple[int, ...], str] = {}
    for rule in RULES:
        pending = tuple(one for one in slices if one.path not in judged)
        ruling = rule.apply(
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
    refuted = {path: why for other, found in compared.refuted.items() if other != step for path, why in found.items()}
    return StepJudgement(
        step=step,
        run=run,
        slices=judged,
        disagreements=disagreements,
        structure=compared.structure,
        refuted=refuted,
    )
