"""Digests that a server works out, as they come: one JSON object a line."""

import io
import json

import pytest

from ms_recover.errors import AnswerError, SlowSourceError, StorageError
from ms_recover.model.contents import Contents
from ms_recover.model.manifest import DIGEST, Digests
from ms_recover.stores.http_digests import Wanted, read_digests, request_digests
from ms_recover.stores.patience import Limits, Pace

WANTED = [Wanted("a", 100, 5, 2), Wanted("b", 50, 6, None), Wanted("c", 7, 8, 0)]
FILE, FIRST, SECOND = (f"{DIGEST}:{number:032x}" for number in (1, 2, 255))
ANSWER = [
    {"working": 60},
    {"path": "b", "digests": [FILE, FIRST], "state": "its state file is damaged"},
    {"working": 90},
    {"path": "c", "problem": "it is gone"},
    {"working": 90},
    {"path": "a", "digests": [FILE, FIRST, SECOND]},
    {"done": True},
]


def lines(*objects):
    return b"".join(json.dumps(one).encode() + b"\n" for one in objects)


def answer(data, wanted=WANTED, progress=lambda count: None, pace=None):
    pace = Pace("http://host", Limits()) if pace is None else pace
    return read_digests(io.BytesIO(data), wanted, progress, pace)


def test_a_request_names_files_and_their_states():
    files = [{"path": one.path, "bytes": one.bytes, "mtime_ns": one.mtime_ns} for one in WANTED]
    assert json.loads(request_digests(WANTED)) == {"version": 1, "files": files}


def test_an_answer_has_something_about_each_file():
    counts = []
    found = answer(lines(*ANSWER), progress=counts.append)
    digests = {"a": Digests(FILE, (FIRST, SECOND)), "b": Digests(FILE, ())}
    assert found == Contents(digests, {"c": "it is gone"}, {"b": "its state file is damaged"})
    assert counts == [60, 90, 7]  # no more than what was asked for
    assert answer(lines({"done": True}), []) == Contents({}, {}, {})


@pytest.mark.parametrize("end", range(1, len(lines(*ANSWER)), 23))
def test_an_answer_that_is_cut_off_says_so(end):
    with pytest.raises(StorageError, match=r"http://host is gone while it works out digests .*cut off"):
        answer(lines(*ANSWER)[: len(lines(*ANSWER)) - end])


@pytest.mark.parametrize(
    ("objects", "why"),
    [
        ([{"done": True}], "nothing about a"),
        ([*ANSWER[:-2], {"done": True}], "nothing about a"),
        ([*ANSWER[:-2], {"done": 1}], "something that is no text"),
        ([{"path": "d", "digests": [FILE]}], "not asked for"),
        ([ANSWER[3], ANSWER[3]], "not asked for"),
        ([{"path": 3, "digests": [FILE]}], "no text"),
        ([{"path": "c", "problem": None}], "no text"),
        ([{"path": "c", "digests": [FILE], "state": 3}], "no text"),
        ([{"path": "c", "digests": []}], "no digests of c"),
        ([{"path": "c", "digests": FILE}], "no digests of c"),
        ([{"path": "c"}], "no digests of c"),
        ([{"path": "c", "digests": [FILE, FIRST]}], "1 digests for 0 parameters of c"),
        ([{"path": "a", "digests": [FILE, FIRST]}], "1 digests for 2 parameters of a"),
        ([{"path": "b", "digests": [FILE, f"{FIRST}0"]}], "no digests of b"),
        ([{"path": "b", "digests": [FILE, FIRST.upper()]}], "no digests of b"),
        ([{"path": "b", "digests": [FILE, 3]}], "no digests of b"),
        ([{"working": -1}], "no text"),
        ([{"working": 1 << 60}], "no text"),
        ([3], "object"),
    ],
)
def test_an_answer_that_cannot_be_is_refused(objects, why):
    with pytest.raises(AnswerError, match=rf"http://host sent an invalid answer .*{why}.*same version"):
        answer(lines(*objects))


def test_what_a_server_says_is_shown_in_part():
    found = answer(lines({"path": "c", "problem": "x" * 1000}, {"done": True}), WANTED[2:])
    assert found.problems == {"c": "x" * 500}


def test_an_answer_without_end_is_refused():
    with pytest.raises(AnswerError, match="a line without end"):
        answer(b"x" * (33 << 20))
    with pytest.raises(AnswerError, match="one line about its work follows the other"):
        answer(lines({"working": 0}) * 40_000)


def test_a_server_that_works_too_slowly_is_left():
    now = iter(range(0, 10_000, 10))
    pace = Pace("http://host", Limits(timeout=1, min_rate=1024), clock=lambda: next(now))
    with pytest.raises(SlowSourceError, match="too slowly"):
        answer(lines({"working": 1}), pace=pace)
