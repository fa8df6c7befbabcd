"""Ranges and preconditions as RFC 9110 has them."""

import pytest

from ms_recover.serving.conditions import Answer, answer_to, http_time

SIZE, ETAG, MODIFIED = 1000, '"xxh3_128:00ff"', 1_700_000_000
AT, BEFORE, AFTER = (http_time(MODIFIED + add) for add in (0, -1, 1))


def answer(size=SIZE, **headers):
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return answer_to(named, size=size, etag=ETAG, modified=MODIFIED)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("bytes=0-0", Answer(206, 0, 1)),
        ("bytes=0-999", Answer(206, 0, 1000)),
        ("bytes=999-5000", Answer(206, 999, 1000)),
        ("bytes=10-", Answer(206, 10, 1000)),
        ("bytes=-10", Answer(206, 990, 1000)),
        ("bytes=-5000", Answer(206, 0, 1000)),
        ("bytes=1000-", Answer(416)),
        ("bytes=1000-1001", Answer(416)),
        ("bytes=-0", Answer(416)),
        ("bytes=5-4", Answer(200, 0, 1000)),
        ("bytes=0-1,5-6", Answer(200, 0, 1000)),
        ("bytes=-", Answer(200, 0, 1000)),
        ("lines=0-1", Answer(200, 0, 1000)),
        ("bytes=a-b", Answer(200, 0, 1000)),
        ("bytes=0-99999999999999999999", Answer(200, 0, 1000)),
    ],
)
def test_ranges(wanted, expected):
    assert answer(Range=wanted) == expected


def test_an_empty_file_has_no_range():
    assert answer(size=0) == Answer(200, 0, 0)
    assert answer(size=0, Range="bytes=0-") == Answer(416)
    assert answer(size=0, Range="bytes=-1") == Answer(416)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If_Match": ETAG}, 200),
        ({"If_Match": "*"}, 200),
        ({"If_Match": f'"other", {ETAG}'}, 200),
        ({"If_Match": '"other"'}, 412),
        ({"If_Match": f"W/{ETAG}"}, 412),
        ({"If_Match": "nonsense"}, 412),
        ({"If_Unmodified_Since": AT}, 200),
        ({"If_Unmodified_Since": BEFORE}, 412),
        ({"If_Unmodified_Since": "nonsense"}, 200),
        ({"If_Match": ETAG, "If_Unmodified_Since": BEFORE}, 200),
        ({"If_None_Match": ETAG}, 304),
        ({"If_None_Match": f"W/{ETAG}"}, 304),
        ({"If_None_Match": "*"}, 304),
        ({"If_None_Match": '"other"'}, 200),
        ({"If_None_Match": '"other"', "If_Modified_Since": AFTER}, 200),
        ({"If_Modified_Since": AT}, 304),
        ({"If_Modified_Since": BEFORE}, 200),
        ({"If_Match": '"other"', "If_None_Match": ETAG}, 412),
        ({"Range": "bytes=5-", "If_Match": '"other"'}, 412),
        ({"Range": "bytes=5-", "If_Range": ETAG}, 206),
        ({"Range": "bytes=5-", "If_Range": '"other"'}, 200),
        ({"Range": "bytes=5-", "If_Range": f"W/{ETAG}"}, 200),
        ({"Range": "bytes=5-", "If_Range": AT}, 206),
        ({"Range": "bytes=5-", "If_Range": BEFORE}, 200),
    ],
)
def test_preconditions(headers, status):
    assert answer(**headers).status == status
