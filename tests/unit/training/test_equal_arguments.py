"""Arguments that all ranks must have alike, and exchanges of ranks that do different things."""

import numpy as np
import pytest

from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.model.steps import Step
from ms_recover.training.deciding.equal_arguments import (
    Text,
    agree_arguments,
    or_not_given,
    value_text,
    why_unequal,
)
from ms_recover.training.deciding.job import TrainingJob, pack_text, unpack_text, why_apart
from ms_recover.training.deciding.rank_values import RankValues
from ms_recover.training.deciding.rotation import agree_floor
from ms_recover.training.rank_facts import facts_of, gather_facts
from tests.support.ranks import on_all, thread_jobs


def nobody_answers(numbers):
    raise RuntimeError("Launch kernel failed")


def together(size, work):
    jobs = thread_jobs(size)
    return on_all(size, lambda rank: work(jobs[rank]))


def test_equal_arguments_take_one_exchange():
    sent = []
    jobs = thread_jobs(2, lambda rank, numbers: sent.append(len(numbers)))
    given = {"keep": 4, "save_steps": None, "layouts": or_not_given(())}
    assert on_all(2, lambda rank: agree_arguments(jobs[rank], "saving", given)) == [None, None]
    assert len(sent) == 2


def test_what_differs_is_named_with_values_and_ranks_the_same_on_all():
    errors = together(3, lambda job: agree_arguments(job, "resuming", {"step": "2_4", "epochs": 3 + job.rank // 2}))
    assert {type(error) for error in errors} == {UsageError}
    assert len(set(map(str, errors))) == 1
    assert "epochs is 3 on rank(s) 0, 1, 5 on" not in str(errors[0])
    assert "epochs is 3 on rank(s) 0, 1, 4 on rank(s) 2; give all 3 ranks the same" in str(errors[0])
    assert "step" not in str(errors[0])


def test_an_argument_that_one_rank_lacks_is_named():
    assert why_unequal([{"run": "'a'"}, {}]) == "run is 'a' on rank(s) 0, not given on rank(s) 1"
    assert why_unequal([{"run": "'a'"}, {"run": "'a'"}]) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not given"),
        ("a", "'a'"),
        (Text("of step 2_4"), "of step 2_4"),
        (True, "True"),
        (np.int64(4), "4"),
        (["b"], "['b']"),
    ],
)
def test_a_value_has_one_text(value, text):
    assert value_text(value) == text


def test_long_values_that_differ_behind_the_cut_have_other_texts():
    one, other = value_text("x" * 500 + "1"), value_text("x" * 500 + "2")
    assert one != other
    assert len(one) < 120


def test_whether_it_is_given_is_all_that_counts_of_a_rank_own_value():
    assert or_not_given(object()) == "given"
    assert or_not_given(None) == or_not_given(()) == "not given"


@pytest.mark.parametrize("counts", [(0, 0), (1, 5), (11, 12), (12, 13), (60, 3), (100, 100)])
def test_ranks_may_send_different_counts(counts):
    rows = [tuple(range(count)) for count in counts]
    assert together(2, lambda job: job.gather(rows[job.rank], "sending")) == [rows, rows]


@pytest.mark.parametrize("texts", [("", "a"), ("ä" * 200, "b"), ("same", "same")])
def test_texts_of_any_length_arrive(texts):
    assert together(2, lambda job: job.gather_text(texts[job.rank], "sending")) == [list(texts)] * 2
    assert unpack_text(pack_text(texts[0])) == texts[0]


def test_ranks_at_different_operations_all_raise_the_same_and_are_named():
    errors = together(
        3, lambda job: job.gather([1] * (1 + 40 * job.rank), f"doing {job.rank // 2}", named=f"at {job.rank}")
    )
    assert {type(error) for error in errors} == {UsageError}
    assert len(set(map(str, errors))) == 1
    assert "rank 0 is at 0, rank 1 is at 1, rank 2 is at 2; have all 3 ranks" in str(errors[0])
    assert why_apart(["a", "b", "b"]).startswith(
        "the ranks are not at the same place of the program: rank 0 is a, ranks 1, 2 are b;"
    )


def test_a_name_that_is_long_is_cut_between_letters():
    errors = together(2, lambda job: job.gather([1], "ä" * 300 + str(job.rank)))
    assert all(isinstance(error, UsageError) for error in errors)


def test_saves_of_different_steps_are_named_and_those_of_callbacks_are_not_compared():
    def save(doing):
        return together(
            2, lambda job: agree_floor(job, Step(1, 3 + job.rank), None, (), doing(job), f"saving {job.rank}")
        )

    assert [committed for committed, _ in save(lambda job: "saving")] == [[Step(1, 3), Step(1, 4)]] * 2
    errors = save(lambda job: f"saving step {job.rank}")
    assert all("rank 0 is saving 0, rank 1 is saving 1" in str(error) for error in errors)


@pytest.mark.parametrize("fails_in", ["work of all ranks", "code of one rank"])
def test_the_failure_of_a_rank_is_raised_there_and_the_others_learn_it_wherever_they_are(fails_in):
    def work(job):
        if not job.rank:
            return job.gather([1] * 40, "saving")
        if fails_in == "work of all ranks":
            return job.run_together("scanning", lambda: 1 / 0)
        with job.ending_together("scanning"):
            return 1 / 0

    one, *others = together(3, work)
    assert type(one) is MsRecoverError
    assert "rank 0 stops because scanning failed on rank(s) 1, 2: ZeroDivisionError: division by zero" in str(one)
    assert {type(error) for error in others} == {ZeroDivisionError}


def test_ranks_that_fail_for_different_reasons_raise_their_own_and_the_others_learn_all():
    def work(job):
        with job.ending_together("checking the arguments"):
            if job.rank:
                raise UsageError(f"no\nstep \udcff of rank {job.rank}")
        return job.gather([1], "resuming")

    one, *others = together(3, work)
    assert [str(error) for error in others] == ["no\nstep \udcff of rank 1", "no\nstep \udcff of rank 2"]
    for rank in (1, 2):
        assert f"failed on rank(s) {rank}: UsageError: no\nstep ? of rank {rank}" in str(one)


@pytest.mark.parametrize("wrapped", [True, False])
def test_ranks_within_unlike_many_steps_exchange_a_failure_once(wrapped):
    """Where it is exchanged again, nobody answers."""
    sent = []
    jobs = thread_jobs(2, lambda rank, numbers: sent.append(rank))

    def work(job):
        with job.ending_together("restoring"):
            if not job.rank:
                return job.gather([1], "saving")
            with job.ending_together("reading"):
                try:
                    return job.run_together("opening", lambda: 1 / 0)
                except ZeroDivisionError as error:
                    if wrapped:
                        raise UsageError("no state") from error
                    raise

    one, other = on_all(2, lambda rank: work(jobs[rank]))
    assert sorted(sent) == [0, 0, 1, 1]
    assert "opening failed on rank(s) 1: ZeroDivisionError" in str(one)
    assert type(other) is (UsageError if wrapped else ZeroDivisionError)


def test_a_rank_that_fails_where_nobody_answers_raises_its_own_reason():
    for job in (TrainingJob(0, 2, nobody_answers), TrainingJob(0, 2), TrainingJob(0, 1)):
        with pytest.raises(ZeroDivisionError), job.ending_together("checking"):
            raise ZeroDivisionError


def test_what_another_operation_sent_is_no_answer():
    def meet(numbers):
        return [tuple(numbers), tuple(7 for _ in numbers)]

    with pytest.raises(MsRecoverError, match=r"rank\(s\) 1 do not call this \(beginning to save\)"):
        TrainingJob(0, 2, meet).gather([1], "beginning to save")


def test_a_rank_that_never_answers_is_gone_or_does_not_call_it():
    with pytest.raises(MsRecoverError, match=r"is gone, or does not call this \(saving step 2_4\)"):
        TrainingJob(0, 2, nobody_answers).gather([1], "saving", named="saving step 2_4")


def test_each_exchange_of_a_save_is_one_of_52_bytes():
    """Both together are 64 bytes more than the numbers of the first."""
    sent = []
    summary = RankValues((0, 1), Step(1, 2)).summary()
    jobs = thread_jobs(2, lambda rank, numbers: sent.append(4 * len(numbers)))
    on_all(2, lambda rank: agree_floor(jobs[rank], Step(1, 2), None, summary, "saving", "saving step 1_2"))
    on_all(2, lambda rank: gather_facts(jobs[rank], facts_of({}), "saving", "saving step 1_2"))
    assert sent == [52] * 4
    assert 52 + 52 - 4 * (3 + len(summary)) == 64
