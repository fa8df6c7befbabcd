import pytest

from ms_recover.errors import MsRecoverError, UnrecoverableError, UsageError
from ms_recover.model.plan import RankVerdict, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.rank_view import RankView
from ms_recover.training.resume_step import find_common_step, newest_common_step

ONE = TrainingJob(0, 1)


def steps(*texts):
    return [Step.parse(text) for text in texts]


@pytest.mark.parametrize(
    ("offers", "chosen"),
    [
        ([["3_8", "2_8"]], "3_8"),
        ([["3_8", "2_8"], ["2_8", "1_8"]], "2_8"),
        ([["10_8", "9_8"], ["9_8", "10_8"]], "10_8"),
        ([["1_5", "1_10"], ["1_10"], ["1_10", "1_5"]], "1_10"),
        ([["3_8"], ["2_8"]], None),
        ([["3_8"], []], None),
        ([[], []], None),
    ],
)
def test_the_newest_step_that_all_offer(offers, chosen):
    found = newest_common_step([[(0, step) for step in steps(*offer)] for offer in offers])
    assert found == ((0, Step.parse(chosen)) if chosen else None)


def test_steps_of_a_later_run_are_newer_than_those_it_goes_on_from():
    old, new = (1, Step(2, 6)), (2, Step(2, 4))
    assert newest_common_step([[new, old], [old, new]]) == new
    assert newest_common_step([[new, old], [old]]) == old


def view(**verdicts):
    steps = {Step.parse(step[1:]): RankVerdict(0, "ok", verdict, "why") for step, verdict in verdicts.items()}
    assessments = {step: StepAssessment(step, (verdict,), ()) for step, verdict in steps.items()}
    return RankView(rank=0, assessments=assessments)


def test_a_single_rank_takes_its_newest_available_step():
    assert find_common_step(ONE, view(_3_8="unrecoverable", _2_8="copy", _1_8="keep"), "/tree")[1] == Step(2, 8)
    assert find_common_step(ONE, RankView(rank=0), "/tree") is None
    with pytest.raises(UnrecoverableError, match=r"/tree .*rank 0 lacks step 3_8: why.*recover-ckpt plan"):
        find_common_step(ONE, view(_3_8="unrecoverable"), "/tree")


def test_a_withdrawn_step_is_not_available_and_its_reason_is_kept():
    before = view(_3_8="keep", _2_8="unrecoverable", _1_8="keep")
    after = before.withdraw(Step(3, 8), "the copy failed")
    assert before.available_steps == steps("3_8", "1_8")
    assert after.available_steps == steps("1_8")
    assert list(after.unavailable_steps.items()) == [(Step(3, 8), "the copy failed"), (Step(2, 8), "why")]


def test_many_ranks_without_a_common_step_are_named_in_short():
    class Apart(TrainingJob):
        def gather(self, numbers, doing="", *, named=""):
            rows = [(1, 1) if len(numbers) == 2 else (0, rank % 7 + 1, 8, 1, 0) for rank in range(self.size)]
            return [tuple(numbers), *rows[1:]]

        def gather_text(self, text, doing):
            return [text] * self.size

    with pytest.raises(UnrecoverableError) as caught:
        find_common_step(Apart(0, 70, True), view(_1_8="keep"), "/tree")
    assert "rank(s) 0, 7, 14, 21, 28 and 5 more: 1_8; " in str(caught.value)
    assert " and 2 more); see:" in str(caught.value)


def test_ranks_without_communication_are_asked_to_initialize_it():
    with pytest.raises(UsageError, match="init"):
        TrainingJob(0, 2).gather([1])


def test_running_together_passes_on_results_and_errors():
    assert ONE.run_together("testing", lambda: 7) == 7

    def fail():
        raise MsRecoverError("no")

    with pytest.raises(MsRecoverError, match="no"):
        ONE.run_together("testing", fail)
