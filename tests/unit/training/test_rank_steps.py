"""What one rank has at each step, or can get there."""

import pytest

from ms_recover.errors import UnrecoverableError
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.plan import RankVerdict, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.training.deciding.agreement import agree
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.rank_steps import RankSteps
from ms_recover.training.own_steps import OwnSteps
from ms_recover.training.search import Search

ONE = TrainingJob(0, 1)


def steps(*texts):
    return [Step.parse(text) for text in texts]


def rank_steps(withdrawn=(), **verdicts):
    known = {Step.parse(step[1:]): RankVerdict(0, "ok", verdict, "why") for step, verdict in verdicts.items()}
    assessments = {step: StepAssessment(step, (verdict,), ()) for step, verdict in known.items()}
    return RankSteps(rank=0, assessments=assessments, withdrawn=dict(withdrawn))


def own(made):
    return OwnSteps(search=Search("/tree", ScanOptions(), PlanOptions(), "refuse"), steps=made)


def test_a_rank_names_its_newest_available_step():
    made = own(rank_steps(_3_8="unrecoverable", _2_8="copy", _1_8="keep"))
    assert made.newest(None, own_states=True).step == Step(2, 8)
    assert made.newest((0, Step(1, 8)), own_states=False).step == Step(1, 8)
    assert made.newest((0, Step(1, 7)), own_states=False) is None


def test_a_withdrawn_step_is_not_available_and_its_reason_is_kept():
    before = rank_steps(_3_8="keep", _2_8="unrecoverable", _1_8="keep")
    after = before.without(Step(3, 8), "the copy failed")
    assert before.available == steps("3_8", "1_8")
    assert after.available == steps("1_8")
    assert list(after.unavailable.items()) == [(Step(3, 8), "the copy failed"), (Step(2, 8), "why")]
    assert before.given_up == after.given_up == {Step(2, 8): "why"}


def test_a_rank_without_any_step_is_empty_and_one_with_steps_that_are_not_taken_is_not():
    assert agree(ONE, own(RankSteps(rank=0))) is None
    with pytest.raises(UnrecoverableError, match=r"/tree .*rank 0 lacks step 3_8: why.*recover-ckpt plan"):
        agree(ONE, own(rank_steps(_3_8="unrecoverable")))
    withdrawn = {Step(3, 8): "unhealthy by the monitor"}
    with pytest.raises(UnrecoverableError, match="rank 0 lacks step 3_8: unhealthy by the monitor"):
        agree(ONE, own(rank_steps(withdrawn)))
