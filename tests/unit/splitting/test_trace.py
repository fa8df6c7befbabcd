"""The trace events that a trace viewer draws."""

from __future__ import annotations

import json

import pytest

from ms_recover.splitting.events import Event, ForwardReport, Span
from ms_recover.splitting.timeline.trace import trace_events, write_trace

SPANS = [
    Span(device=0, part=0, call=0, rows=(0, 5), began=1.0, ended=1.5),
    Span(device=1, part=1, call=0, rows=(0, 5), began=1.5, ended=1.75, outcome="lost"),
    Span(device=1, part=1, call=0, rows=(0, 5), began=2.5, ended=3.0),
]
EVENTS = [
    Event(at=1.75, kind="lost", device=1, part=1, rows=(0, 5), cause="eof", words="killed by SIGKILL"),
    Event(at=1.75, kind="redone", device=1, part=1, rows=(0, 5)),
    Event(at=2.5, kind="recovered", device=1, cause="eof", seconds=0.75, phases=(("start", 0.5), ("weights", 0.25))),
    Event(at=4.0, kind="reset"),
]
REPORTS = [ForwardReport(call=0, rows=5, chunks=1, redone=1, lost=(1,), seconds=2.0)]


def of_phase(phase):
    return [event for event in trace_events(SPANS, EVENTS, REPORTS) if event["ph"] == phase]


def test_every_chunk_and_forward_has_its_begin_and_duration_in_microseconds():
    assert [(event["tid"], event["name"], event["ts"], event["dur"]) for event in of_phase("X")] == [
        (0, "forward 0", 1e6, 2e6),
        (1, "rows 0:5", 1e6, 0.5e6),
        (2, "rows 0:5", 1.5e6, 0.25e6),
        (2, "rows 0:5", 2.5e6, 0.5e6),
    ]
    assert [event["args"]["outcome"] for event in of_phase("X")[1:]] == ["done", "lost", "done"]
    assert [event["args"]["redone"] for event in of_phase("X")[1:]] == [False, False, True]


def test_every_device_is_a_named_thread():
    names = {event["tid"]: event["args"]["name"] for event in of_phase("M")}
    assert names == {0: "forwards", 1: "device 0", 2: "device 1"}


def test_an_outage_lasts_from_the_loss_to_the_recovery():
    [begin], [end] = of_phase("b"), of_phase("e")
    assert (begin["ts"], end["ts"]) == (1.75e6, 2.5e6)
    assert (begin["id"], begin["cat"], begin["name"]) == (end["id"], end["cat"], end["name"])


def test_an_outage_without_end_stays_open():
    events = trace_events([], EVENTS[:1], [])
    assert [event["ph"] for event in events if event["name"] == "down"] == ["b"]


def test_events_are_instants_of_their_device_or_of_all():
    assert [(event["name"], event["tid"], event["s"]) for event in of_phase("i")] == [
        ("lost", 2, "t"),
        ("redone", 2, "t"),
        ("recovered", 2, "t"),
        ("reset", 0, "g"),
    ]
    assert of_phase("i")[0]["args"]["words"] == "killed by SIGKILL"


def test_the_file_is_json_that_names_its_events(tmp_path):
    path = tmp_path / "timeline.trace.json"
    path.write_text("old")
    odd = Event(at=5.0, kind="lost", device=0, words="\ud800 \x00 </script>")
    write_trace(tmp_path / "timeline.html", SPANS, [*EVENTS, odd], REPORTS)
    read = json.loads(path.read_text())
    assert read["traceEvents"] == json.loads(json.dumps(trace_events(SPANS, [*EVENTS, odd], REPORTS)))
    assert [each.name for each in tmp_path.iterdir()] == ["timeline.trace.json"]


@pytest.mark.parametrize(
    ("page", "trace"), [("t.html", "t.trace.json"), ("t", "t.trace.json"), ("a.b/t", "a.b/t.trace.json")]
)
def test_the_trace_lies_beside_the_page(page, trace, tmp_path):
    (tmp_path / trace).parent.mkdir(exist_ok=True)
    write_trace(str(tmp_path / page), SPANS, EVENTS, REPORTS)
    assert (tmp_path / trace).is_file()
