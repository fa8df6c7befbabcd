import secrets

import pytest

from ms_recover.errors import UsageError
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.runs import RUN_ID, agree_run_id


def agree(job, environ, drawn=secrets.token_bytes):
    return agree_run_id(job, environ.get(RUN_ID, ""), drawn)


class FixedJob(TrainingJob):
    """A job whose other ranks always send the same."""

    def __init__(self, rank, others):
        super().__init__(rank, len(others) + 1, True)
        object.__setattr__(self, "others", others)

    def gather(self, numbers, doing="", *, named=""):
        sent = [tuple(other) for other in self.others]
        return [*sent[: self.rank], tuple(numbers), *sent[self.rank :]]


def said(environ, drawn):
    """Return what a rank tells the others."""
    heard = []

    class Listener(TrainingJob):
        def gather(self, numbers, doing="", *, named=""):
            heard.extend(numbers)
            return [tuple(numbers)]

    agree(Listener(0, 1, True), environ, drawn)
    return heard


def draw(number):
    return lambda count: bytes([number]) * count


def test_numbers_fit_and_come_back():
    data = bytes(range(120, 136))
    heard = said({}, lambda count: data)
    assert all(-(1 << 31) <= number < 1 << 31 for number in heard)
    assert agree(FixedJob(1, [heard]), {}) == data.hex()


def test_alone():
    one = TrainingJob(0, 1)
    assert agree(one, {RUN_ID: "night-7"}) == "night-7"
    assert agree(one, {}, draw(0xF1)) == "f1" * 16
    assert agree(one, {}) != agree(one, {})


def test_ranks_that_cannot_talk_do_not_invent_one():
    assert agree(TrainingJob(1, 4), {}) == ""
    assert agree(TrainingJob(1, 4), {RUN_ID: "night-7"}) == "night-7"


def test_all_take_what_rank_0_drew():
    first = said({}, draw(0xF1))
    assert agree(FixedJob(1, [first]), {}, draw(2)) == "f1" * 16
    assert agree(FixedJob(0, [said({}, draw(2))]), {}, draw(0xF1)) == "f1" * 16


def test_all_take_what_the_launcher_set():
    first = said({RUN_ID: "night-7"}, draw(1))
    assert agree(FixedJob(1, [first, first]), {RUN_ID: "night-7"}) == "night-7"


@pytest.mark.parametrize(("own", "other"), [("night-7", "night-8"), ("night-7", ""), ("", "night-8")])
def test_different_launches_are_refused(own, other):
    theirs = said({RUN_ID: other}, draw(1))
    with pytest.raises(UsageError, match=r"rank 1 has MS_RECOVER_RUN_ID=.*which differs from rank\(s\) 0"):
        agree(FixedJob(1, [theirs]), {RUN_ID: own}, draw(2))


@pytest.mark.parametrize("given", ["a\udcff", "a\x1b[31m", "a\nb", "a\x00"])
def test_an_id_that_no_manifest_can_name_is_refused(given):
    with pytest.raises(UsageError, match=f"{RUN_ID}=.* is not text of one line in UTF-8"):
        agree(TrainingJob(0, 1), {RUN_ID: given})
