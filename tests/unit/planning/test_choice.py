"""Which of the candidates is taken, which is shown, and where the search ends."""

from functools import partial

import pytest

from ms_recover.errors import MissingInputError, UnrecoverableError
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.planning.choice import Judged, candidates_of, choose, judge_runs, refuse_empty
from ms_recover.planning.tree.candidates import Candidate
from ms_recover.planning.tree.runs import Run
from ms_recover.planning.tree.tree_facts import TreeFacts
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree
from tests.unit.planning.tree.test_lineage import ABANDONED, GROUPS

A, B = Run(run_id="a"), Run(run_id="b")
STEPS = [Step(number, 8) for number in (4, 3, 2, 1)]


def candidates(*passed_over):
    reasons = {one.step: one for one in passed_over}
    return [reasons.get(step, Candidate(step=step, runs=(A,))) for step in STEPS]


def judging(log, **answers):
    """Judge by names of answers: "no", "differ", or enough."""

    def judge(candidate):
        log.append(candidate.step)
        found = answers.get(f"step{candidate.step.epoch}", "")
        return Judged(
            step=candidate.step, run=A, value=found, why=found or None, disputed=found == "differ", lacking=(7,)
        )

    return judge


def never(rejected):
    raise AssertionError(rejected)


def test_the_first_candidate_that_is_enough_is_taken_and_no_other_is_judged():
    log = []
    older = RejectedStep(STEPS[0], "another run", another_run=True)
    made = choose(candidates(older), judging(log, step3="no"), never)
    assert (made.found, made.shown.step) == (True, STEPS[2])
    assert made.rejected == (older, RejectedStep(STEPS[1], "no", ranks=(7,)))
    assert log == STEPS[1:3]


def test_where_none_is_enough_the_newest_that_was_judged_is_shown():
    made = choose(candidates(), judging([], step4="no", step3="no", step2="no", step1="no"), never)
    assert (made.found, made.shown.step) == (False, STEPS[0])
    assert [one.step for one in made.rejected] == STEPS


def test_a_step_at_which_replicas_differ_ends_the_search_and_is_shown():
    log = []
    made = choose(candidates(), judging(log, step4="no", step3="differ"), never)
    assert (made.found, made.shown.step) == (False, STEPS[1])
    assert log == STEPS[:2]


def test_where_there_is_no_candidate_it_is_said_what_to_show():
    passed_over = [RejectedStep(step, "another run", another_run=True) for step in STEPS]
    shown = Judged(step=STEPS[0], run=A, value="shown")
    made = choose(passed_over, never, lambda rejected: shown if rejected == passed_over else None)
    assert (made.found, made.shown, made.rejected) == (False, shown, tuple(passed_over))


def run_by_run(**answers):
    log = []

    def judge(step, run):
        log.append(run.run_id)
        found = answers[run.run_id]
        return Judged(step=step, run=run, value=found, why=found or None, disputed=found == "differ")

    return judge_runs(Candidate(step=STEP, runs=(A, B)), judge), log


def test_a_step_is_taken_as_the_best_run_that_is_enough():
    judged, log = run_by_run(a="", b="no")
    assert (judged.run, log) == (A, ["a"])
    judged, log = run_by_run(a="no", b="")
    assert (judged.run, judged.why, log) == (B, None, ["a", "b"])


def test_a_step_of_which_no_run_is_enough_has_the_reasons_of_all_and_shows_the_best():
    judged, _ = run_by_run(a="no", b="no more")
    assert (judged.run, judged.why) == (A, "run a: no; run b: no more")


def test_no_smaller_run_hides_that_replicas_of_a_larger_one_differ():
    judged, log = run_by_run(a="differ", b="")
    assert (judged.run, judged.disputed, log) == (A, True, ["a"])


def test_steps_that_are_not_clean_are_passed_over_where_clean_ones_are_wanted():
    inventory = tree([slice_file(rank, step) for rank in range(2) for step in (OLDER, STEP)], pairs(2))
    unclean = list(candidates_of(TreeFacts(inventory, PlanOptions(clean=True))))
    assert [(one.step, one.reason) for one in unclean] == [
        (step, "not known to be clean: no slice has a manifest") for step in (STEP, OLDER)
    ]
    with pytest.raises(UnrecoverableError, match="no step to take; step 2_8: not known to be clean"):
        choose(unclean, never, partial(refuse_empty, TreeFacts(inventory)))


def test_without_a_slice_of_the_present_run_the_reasons_are_named():
    facts = TreeFacts(tree([file for pair in ABANDONED for file in pair], GROUPS))
    older = [RejectedStep(STEPS[0], "its slices are of run old", another_run=True)]
    with pytest.raises(MissingInputError, match="no slice of the present run; step 4_8: its slices are of run old"):
        refuse_empty(facts, older)
