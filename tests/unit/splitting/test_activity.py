"""Outages, repeated chunks and groups of events."""

from __future__ import annotations

from ms_recover.splitting.activity import busy_times, group_events, in_turn, outages, redone_spans
from ms_recover.splitting.events import Event, Span
from ms_recover.splitting.summary import loss_texts


def test_outages_end_with_what_ended_them() -> None:
    events = [
        Event(at=1, kind="ready", device=0),
        Event(at=2, kind="lost", device=0),
        Event(at=3, kind="lost", device=0),
        Event(at=4, kind="recovered", device=0),
    ]
    events += [
        Event(at=5, kind="lost", device=1),
        Event(at=6, kind="retired", device=1),
        Event(at=7, kind="lost", device=2),
    ]
    assert [(loss.at, end and end.at) for loss, end in outages(events)[0]] == [(2, 3), (3, 4)]
    assert [words for _, words in loss_texts(events)] == [
        "at 2.000 s, failed again after 1.00 s",
        "at 3.000 s, back after 1.00 s",
        "at 5.000 s, retired",
        "at 7.000 s, not back since",
    ]


def test_a_chunk_is_redone_by_the_first_span_after_the_event() -> None:
    spans = [Span(device=0, part=1, call=0, rows=(0, 5), began=at, ended=at + 0.5) for at in (1.0, 2.0, 3.0)]
    assert redone_spans(spans, [Event(at=1.7, kind="redone", device=9, part=1, rows=(0, 5))]) == {1}
    assert (
        redone_spans(
            spans,
            [
                Event(at=1.7, kind="redone", device=9, part=2, rows=(0, 5)),
                Event(at=4.0, kind="redone", device=9, part=1, rows=(0, 5)),
            ],
        )
        == set()
    )


def test_events_of_a_kind_and_moment_are_one() -> None:
    events = [
        Event(at=1.0, kind="lost", device=0),
        Event(at=1.0, kind="redone", device=0),
        Event(at=1.0, kind="redone", device=0),
        Event(at=3.0, kind="redone", device=0),
    ]
    assert [len(group) for group in group_events(events, 0.5)] == [1, 2, 1]


def test_a_device_computes_one_chunk_after_the_other() -> None:
    """Answers that were taken late move back, with the duration that the device measured; other devices stay."""
    recorded = [
        Span(device=0, part=0, call=0, rows=(0, 5), began=1.0, ended=2.0),
        Span(device=0, part=0, call=0, rows=(5, 10), began=1.5, ended=2.5),
        Span(device=0, part=0, call=0, rows=(10, 15), began=2.0, ended=3.0),
        Span(device=1, part=1, call=0, rows=(0, 5), began=1.2, ended=1.4),
    ]
    found = in_turn(recorded[::-1])
    assert [(one.rows, one.began, one.ended) for one in found if one.device == 0] == [
        ((0, 5), 0.0, 1.0),
        ((5, 10), 1.0, 2.0),
        ((10, 15), 2.0, 3.0),
    ]
    assert recorded[3] in found
    assert busy_times(found) == ({0: 3.0, 1: recorded[3].ended - recorded[3].began}, 3.0)


def test_spans_that_lie_apart_stay() -> None:
    recorded = tuple(Span(device=0, part=0, call=0, rows=(n, n + 1), began=n, ended=n + 1) for n in range(4))
    assert in_turn(recorded) == recorded
