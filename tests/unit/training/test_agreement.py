"""The step that all ranks resume from, by what each of them can be brought to."""

import logging
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from ms_recover.errors import UnrecoverableError, VerificationError
from ms_recover.model.steps import Step
from ms_recover.training.deciding.agreement import (
    Agreed,
    Back,
    Candidate,
    Candidates,
    agree,
    find_common_step,
    why_no_common_step,
)
from ms_recover.training.deciding.job import TrainingJob
from tests.support.ranks import on_all, thread_jobs

ONE = TrainingJob(0, 1)


def place(text):
    """Return the place that a text such as ``3_8`` or, of a later run, ``2:3_8`` names."""
    generation, _, step = text.rpartition(":")
    return int(generation or 0), Step.parse(step)


def offer(text, **facts):
    return Candidate(place=place(text), **facts)


@dataclass(eq=False)
class Offers(Candidates[str]):
    """What a rank can be brought to; `bad` are steps that cannot be had although they seem so."""

    offers: list[Candidate]
    bad: dict[str, str] = field(default_factory=dict)
    others: dict[str, int] = field(default_factory=dict)
    """Fingerprints behind the proof."""
    seen: bool = True
    withdrawn: dict[str, str] = field(default_factory=dict)
    missing: list[tuple[str, list[int]]] = field(default_factory=list)

    @property
    def is_empty(self):
        return not self.seen

    def newest(self, bound, *, own_states):
        may = [one for one in self.offers if str(one.step) not in self.withdrawn]
        may = [one for one in may if bound is None or one.place <= bound]
        return max((one for one in may if one.own_states or not own_states), key=lambda one: one.place, default=None)

    def obtain(self, candidate):
        step = str(candidate.step)
        if step in self.bad:
            self.withdrawn[step] = self.bad[step]
            return None
        return f"slice of {step}"

    def fingerprint(self, candidate):
        return self.others.get(str(candidate.step), candidate.fingerprint)

    def withdraw(self, candidate, why):
        self.withdrawn[str(candidate.step)] = why

    def missed(self, candidate, ranks):
        self.missing.append((str(candidate.step), ranks))

    def why_none(self, job, ranks):
        return f"rank(s) {ranks} have none"


def agreed(*ranks):
    """Return what each rank obtained, or what it raised."""
    jobs = thread_jobs(len(ranks))
    return on_all(len(ranks), lambda rank: agree(jobs[rank], ranks[rank]))


def offers(*texts, **facts):
    return Offers([offer(text) for text in texts], **facts)


def alike(outcomes):
    (outcome,) = set(outcomes)
    return outcome


@pytest.mark.parametrize(
    ("ranks", "chosen"),
    [
        (["3_8 2_8"], "3_8"),
        (["3_8 2_8", "2_8 1_8"], "2_8"),
        (["10_8 9_8", "9_8 10_8"], "10_8"),
        (["1_5 1_10", "1_10", "1_10 1_5"], "1_10"),
        (["1:2_6 2:2_4", "2:2_4 1:2_6"], "2_4"),
        (["1:2_6 2:2_4", "1:2_6"], "2_6"),
        (["5_1 3_1 1_1", "4_1 3_1 1_1", "5_1 4_1 1_1"], "1_1"),
    ],
)
def test_the_newest_step_that_all_offer(ranks, chosen):
    outcome = alike(agreed(*(offers(*texts.split()) for texts in ranks)))
    assert outcome == Agreed(obtained=f"slice of {chosen}", back=None)


@pytest.mark.parametrize(("ranks", "none"), [(["3_8", "2_8"], [1]), (["3_8", ""], [1]), (["2_8", "3_8", ""], [2])])
def test_without_a_common_step_all_stop(ranks, none):
    outcomes = agreed(*(offers(*texts.split()) for texts in ranks))
    assert all(isinstance(one, UnrecoverableError) for one in outcomes)
    assert {str(one) for one in outcomes} == {f"rank(s) {none if ranks[0] != '3_8' or not ranks[1] else [0]} have none"}


def test_nothing_is_resumed_where_no_rank_sees_slices():
    assert agreed(offers(seen=False), offers(seen=False)) == [None, None]
    assert all(isinstance(one, UnrecoverableError) for one in agreed(offers(seen=False), offers()))


def test_all_go_back_where_a_slice_proves_bad_on_one_rank():
    ranks = offers("3_8", "2_8", "1_8"), offers("3_8", "2_8", "1_8", bad={"3_8": "it is damaged"})
    assert alike(agreed(*ranks)).obtained == "slice of 2_8"
    assert [one.missing for one in ranks] == [[("3_8", [1])]] * 2
    assert [one.withdrawn for one in ranks] == [{}, {"3_8": "it is damaged"}]


def test_what_a_rank_raises_ends_all():
    class Disputed(Offers):
        def obtain(self, candidate):
            raise VerificationError("replicas differ")

    good, bad = agreed(offers("3_8"), Disputed([offer("3_8")]))
    assert isinstance(bad, VerificationError)
    assert "getting the slice of step 3_8 failed on rank(s) 1" in str(good)


@pytest.mark.parametrize("when", ["before", "behind the proof"])
def test_slices_of_different_runs_are_no_common_step(when):
    def rank(number):
        newest = offer("3_8", fingerprint=number if when == "before" else 0)
        return Offers([newest, offer("2_8")], others={} if when == "before" else {"3_8": number})

    ranks = rank(7), rank(8), rank(0)
    assert alike(agreed(*ranks)).obtained == "slice of 2_8"
    assert [one.withdrawn for one in ranks] == [{"3_8": "its slices are of different runs"}] * 3
    assert not any(one.missing for one in ranks)
    assert alike(agreed(rank(7), rank(7), rank(0))).obtained == "slice of 3_8"


def test_all_go_back_to_the_newest_step_at_which_each_has_its_own_states(caplog):
    lost = Offers([offer("4_1", own_states=False), offer("3_1"), offer("2_1")])
    other = Offers([offer("4_1"), offer("3_1", own_states=False), offer("2_1")])
    back = Back(step=Step(4, 1), ranks=(1,))
    assert alike(agreed(other, lost, offers("4_1", "3_1", "2_1"))) == Agreed(obtained="slice of 2_1", back=back)
    assert back.text == "4_1, where states of rank(s) 1 are lost"
    said = sorted(one.getMessage() for one in caplog.records if one.levelno == logging.WARNING)
    assert said == [f"rank {rank}: {back.why(Step(2, 1))}" for rank in (0, 1)]
    assert "at step 4_1 the states of rank(s) 1 (random generators, callbacks, extra) are lost" in said[0]
    assert "all ranks go back to step 2_1, where each has its own; rank_local='peer' stays at step 4_1" in said[0]


def test_without_a_step_of_own_states_the_newest_is_taken(caplog):
    ranks = Offers([offer("4_1", own_states=False)]), offers("4_1", "3_1")
    assert alike(agreed(*ranks)) == Agreed(obtained="slice of 4_1", back=None)
    assert caplog.text == ""


def test_why_ranks_go_back_is_named_once(caplog):
    rank = Offers([offer("4_1", own_states=False), offer("3_1"), offer("2_1")], bad={"3_1": "damaged"})
    assert agree(ONE, rank) == Agreed(obtained="slice of 2_1", back=Back(step=Step(4, 1), ranks=(0,)))
    assert len(caplog.records) == 1


def test_the_step_is_the_newest_of_those_that_all_have_whatever_each_has():
    """Against the sets of what ranks have; with states, and without."""
    source = Random(5)
    for _ in range(60):
        texts = [f"{source.randrange(3)}:{epoch}_{step}" for epoch in (1, 2) for step in (1, 2, 3)]
        texts = list({text.partition(":")[2]: text for text in texts}.values())
        ranks = [
            [offer(text, own_states=source.random() < 0.7) for text in texts if source.random() < 0.8] for _ in range(3)
        ]
        jobs = thread_jobs(3)
        found = on_all(3, lambda rank, jobs=jobs, ranks=ranks: find_common_step(jobs[rank], Offers(ranks[rank])))
        common = set.intersection(*({one.place for one in rank} for rank in ranks))
        own = set.intersection(*({one.place for one in rank if one.own_states} for rank in ranks))
        for one in found:
            if not common:
                assert isinstance(one, UnrecoverableError)
                continue
            candidate, back = one
            assert candidate.place == (max(own) if own else max(common))
            lacking = [n for n, rank in enumerate(ranks) if replace(offer("1_1"), place=max(common)) not in rank]
            assert (back is None) == (not lacking or not own)
            assert back is None or back == Back(step=max(common)[1], ranks=tuple(lacking))


def none_text(job, available, unavailable=()):
    steps = {Step.parse(step): why for step, why in unavailable}
    return why_no_common_step(job, "/tree", [Step.parse(step) for step in available], steps)


def test_why_there_is_no_step_names_what_ranks_have_and_lack():
    jobs = thread_jobs(3)
    have = [["3_8", "2_8"], ["1_8"], []]
    lack = [[], [("3_8", "lost"), ("2_8", "lost")], [("3_8", "damaged"), ("1_8", "gone")]]
    texts = on_all(3, lambda rank: none_text(jobs[rank], have[rank], lack[rank]))
    told = "there is no step under /tree that every rank can be brought to "
    told += "(rank(s) 0: 3_8, 2_8; rank(s) 1: 1_8; rank(s) 2: none)"
    first, third = "; rank 1 lacks step 3_8, 2_8: lost", "; rank 2 lacks step 3_8: damaged; step 1_8: gone"
    assert texts == [
        f"{told}{first}; see: recover-ckpt plan /tree",
        f"{told}{first}{third}; see: recover-ckpt plan /tree",
        f"{told}{third}{first}; see: recover-ckpt plan /tree",
    ]


def test_the_reason_of_another_rank_is_cut():
    jobs = thread_jobs(2)
    reasons = [[], [("3_8", "x" * 2000)]]
    texts = on_all(2, lambda rank: none_text(jobs[rank], [], reasons[rank]))
    assert texts[0].count("x") == 1000 - len("step 3_8: ")
    assert texts[1].count("x") == 2000


def test_many_ranks_without_a_common_step_are_named_in_short():
    class Apart(TrainingJob):
        def gather_text(self, text, doing):
            if doing.startswith("saying"):
                return [text] * self.size
            return [f"{rank % 7 + 1}_8" for rank in range(self.size)]

    text = none_text(Apart(0, 70, True), ["1_8"])
    assert "rank(s) 0, 7, 14, 21, 28 and 5 more: 1_8; " in text
    assert " and 2 more); see:" in text
