"""The judge of random jobs of ranks: what it lets pass, and what it does not."""

from dataclasses import replace

import pytest

from tests.support.random_rank_jobs import ODD, draw_job
from tests.support.rank_job_causes import (
    BUSY,
    LONGEST,
    End,
    SeenRanks,
    causes_of_ranks,
    verdict_of_ranks,
)

BASE = replace(
    draw_job(0, 2).base, trainer="model", network="mlp", data="same", shuffle="seeded", noise="none", callback=False
)
BASE = replace(BASE, odd="none")
JOB = replace(draw_job(0, 2), base=BASE, lost="none", lost_by=1, argument="none", change="none", crashes=())
LOST = "its state file is lost, so random generators and callbacks go on as those of rank 0"
WITHOUT = "the state of random generators and callbacks is not restored, they start anew (there is none)"
DONE = (End("done"), End("done"))
OTHERWISE = (None, "other values at the end")


def job_of(*, lost="folder", argument="none", change="none", crashes=(), **base):
    return replace(JOB, base=replace(BASE, **base), lost=lost, argument=argument, change=change, crashes=crashes)


def judged(job, *ends, differences=OTHERWISE, zero=(), one=(), **seen):
    seen = {"waited": 0.0, **seen}
    made = SeenRanks(ends=ends or DONE, differences=differences, warnings=(tuple(zero), tuple(one)), **seen)
    assert SeenRanks.of_record(made.record) == made
    return verdict_of_ranks(job, made)


def refused(*texts):
    return [End("refused", text) for text in texts]


def test_states_alone_excuse_no_refusal():
    verdict = judged(job_of(callback=True), *refused(LOST, LOST))
    assert (verdict.kind, verdict.undeserved) == ("refused", f"{LOST} | {LOST}")


def test_a_refusal_names_its_cause_on_every_rank():
    job = job_of(lost="none", argument="run")
    assert judged(job, *refused("run is 'a' on rank 1", "run is 'a' on rank 1")).undeserved == ""
    assert judged(job, *refused("run is 'a' on rank 1", "rank 0 could not resume")).undeserved != ""


def test_a_word_is_there_on_the_rank_that_lost_its_state():
    job = job_of(callback=True)
    assert judged(job, one=[f"rank 1: {LOST}"]).kind == "warned"
    assert judged(job, zero=[f"rank 0: {LOST}"]).kind == "silent"
    assert judged(job, zero=["random numbers not proven: those of rank 0 (rank 1)"]).kind == "warned"


def test_own_states_are_exact_where_an_older_step_has_every_ranks_own():
    assert judged(job_of(lost="newest", callback=True), one=[LOST], own=True).kind == "silent"


def test_a_lost_rank_with_a_seed_of_its_own_is_exact_where_another_rank_keeps_its_description():
    job = job_of(shuffle="by rank")
    assert judged(job, one=["samples not proven: another seed"]).kind == "silent"
    assert judged(job, one=["samples not proven: another seed"], described=False).kind == "warned"


@pytest.mark.parametrize("network", ["bank", "norm"])
def test_what_is_said_at_each_resume_without_states_names_nothing_that_was_lost(network):
    job = job_of(trainer="manifests", network=network)
    assert judged(job, zero=[WITHOUT], one=[WITHOUT]).kind == "silent"


def test_values_that_differ_first_are_not_put_down_to_samples():
    job, said = job_of(trainer="manifests", network="bank"), ["samples not proven: the state of the training is lost"]
    sample, value = "('batch', 3, 'a') instead of ('batch', 3, 'b')", "('values', 3, 'a') instead of ('values', 3, 'b')"
    assert judged(job, zero=said, differences=(None, sample)).kind == "warned"
    assert judged(job, zero=said, differences=(sample, value)).kind == "silent"
    own = "rank 1: its values are those of rank 0, and nothing shows whether some were its own"
    assert judged(job, zero=said, one=[own], differences=(sample, value)).kind == "warned"


@pytest.mark.parametrize("argument", ["keep", "format"])
def test_what_may_be_a_ranks_own_excuses_nothing(argument):
    job = job_of(lost="none", argument=argument)
    assert judged(job, *refused(f"{argument} is an argument", f"{argument} is an argument")).undeserved != ""


def test_ends_are_compared_with_the_undisturbed_one():
    job, texts = job_of(lost="none", argument="run"), refused("run", "run")
    assert judged(job, *texts, waited=LONGEST + BUSY + 2, undisturbed=2.5).kind == "refused"
    assert judged(job, *texts, waited=LONGEST + BUSY + 3, undisturbed=2.5).kind == "slow"


def test_a_shard_without_a_reader_is_named_in_an_exact_job():
    job = job_of(lost="none", data="shards", odd="one shard")
    assert judged(job, differences=(None, None)).kind == "silent"
    assert judged(job, differences=(None, None), zero=["nobody reads shard 1"]).kind == "exact"


def test_what_is_wrong_from_the_start_is_drawn():
    jobs = [draw_job(number) for number in range(400)]
    assert {one.base.odd for one in jobs} == set(ODD)
    unequal = [one.base for one in jobs if one.base.odd == "unequal epochs"]
    assert {one.epochs_of(rank) for one in unequal for rank in (0, one.ranks - 1)} == {(3, 4), (4, 3)}
    assert all(len({one.epochs_of(rank) for rank in range(one.ranks)}) == 2 for one in unequal)


def test_a_plain_job_has_no_cause():
    for number in range(400):
        job = draw_job(number)
        if job.is_plain and job.lost != "other experiment":
            names = {one.name for one in causes_of_ranks(job)}
            assert names <= {"statistics"}
