"""The page that draws what a splitter's devices did."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args
from xml.etree import ElementTree

import pytest

from ms_recover.errors import StorageError, UsageError
from ms_recover.splitting.events import Event, EventKind, ForwardReport, Missing, Span
from ms_recover.splitting.timeline.drawing import SPANS, ticks
from ms_recover.splitting.timeline.page import EVENTS, timeline_html, write_timeline

ROWS = [(start, start + 5) for start in range(0, 80, 5)]
LOST, BACK = 10.62, 12.92


def pipeline() -> tuple[list[Span], list[Event], list[ForwardReport]]:
    """Sixteen chunks through four devices; device 2 dies in its fifth chunk and is back 2.3 s later."""
    spans, ended = [], dict.fromkeys(ROWS, 9.0)
    for device in range(4):
        free = 9.0
        for number, rows in enumerate(ROWS):
            began = max(free, ended[rows])
            if device == 2 and number == 4:
                spans.append(Span(device=2, part=2, call=0, rows=rows, began=began, ended=LOST, outcome="lost"))
                began = BACK
            free = ended[rows] = began + 0.25
            spans.append(Span(device=device, part=device, call=0, rows=rows, began=began, ended=free))
    events = [Event(at=8.0 + device / 10, kind="ready", device=device) for device in range(4)]
    events += [
        Event(at=LOST, kind="lost", device=2, part=2, rows=None, cause="eof", words="process ended by SIGKILL"),
        Event(at=LOST, kind="redone", device=2, part=2, rows=ROWS[4]),
        Event(at=LOST, kind="redone", device=2, part=2, rows=ROWS[5]),
        Event(at=BACK, kind="recovered", device=2, part=None, rows=None, cause="eof", words="", seconds=BACK - LOST),
    ]
    return spans, events, [ForwardReport(call=0, rows=80, chunks=16, missing=(), redone=2, lost=(2,), seconds=7.5)]


class Page(HTMLParser):
    """Looks at a page as a browser would, and at its drawing as strict XML."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        self.drawings = [ElementTree.fromstring(part) for part in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def having(self, kind: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.tags if kind in (attrs.get("class") or "").split()]


def test_the_page_shows_every_span_and_every_fault_and_loads_nothing() -> None:
    text = timeline_html(*pipeline())
    page = Page(text)
    assert len(page.having("s")) == 65
    assert len(page.having("m")) == 3  # lost; two chunks redone are one mark; recovered
    assert len([attrs for attrs in page.having("down") if "%" in (attrs.get("x") or "")]) == 1
    assert len([attrs for attrs in page.having("again") if "%" in (attrs.get("x") or "")]) == 2
    assert "&#215;2" in text
    assert (
        "<b>Device 2 lost</b> at 10.620 s (eof: process ended by SIGKILL), back after 2.30 s, 2 chunks redone" in text
    )
    assert "forward 0 · 7.50 s" in text
    assert "rows 20:25 · part 2 · device 2 · forward 0" in text
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert not [attrs for _, attrs in page.tags if "src" in attrs]
    assert all((attrs.get("href") or "#").startswith("#") for _, attrs in page.tags)
    assert "default-src 'none'" in text


@pytest.mark.parametrize("kind", get_args(EventKind))
def test_every_kind_of_event_has_a_sign_and_all_but_ready_a_place_in_the_legend(kind: str) -> None:
    page = Page(timeline_html(*pipeline()))
    assert [attrs for attrs in (attrs for tag, attrs in page.tags if tag == "g") if attrs.get("id") == f"e-{kind}"]
    legend = timeline_html([], [], [])
    assert (f'href="#e-{kind}"' in legend) == (kind != "ready")


def test_a_chunk_has_one_colour_on_all_devices() -> None:
    text = timeline_html(*pipeline())
    colours: dict[str, set[str]] = {}
    for key, kind in re.findall(r'data-k="([^"]+)"><title>[^<]*</title><rect [^>]*class="(h\d+)', text):
        colours.setdefault(key, set()).add(kind)
    assert len(colours) == 16
    assert all(len(kinds) == 1 for kinds in colours.values())
    assert len({kind for kinds in colours.values() for kind in kinds}) == 16


def test_spans_stand_where_they_were() -> None:
    spans = [
        Span(device=0, part=0, call=0, rows=(0, 1), began=100.0, ended=110.0),
        Span(device=0, part=0, call=0, rows=(1, 2), began=190.0, ended=200.0),
    ]
    plot = next(d for d in Page(timeline_html(spans, [], [])).drawings if d.get("id") == "plot")
    start, length = float(plot.get("data-start") or ""), float(plot.get("data-length") or "")
    assert start < 100
    assert start + length > 200
    boxes = [group.find("rect") for group in plot.findall("g") if group.get("class") == "s"]
    for box, span in zip(boxes, spans, strict=True):
        assert box is not None
        x, width = (float((box.get(name) or "").rstrip("%")) / 100 * length for name in ("x", "width"))
        assert x + start == pytest.approx(span.began, abs=0.001)
        assert width == pytest.approx(10.0, abs=0.001)


def test_a_page_without_spans_and_events_says_so() -> None:
    text = timeline_html([], [], [])
    assert "Nothing to draw yet" in text
    assert "No device was lost" in text
    Page(text)


@pytest.mark.parametrize("moment", [0.0, 5.0, 1e9])
def test_a_timeline_of_one_moment_is_drawn(moment: float) -> None:
    Page(
        timeline_html(
            [Span(device=0, part=0, call=0, rows=(0, 1), began=moment, ended=moment)],
            [Event(at=moment, kind="lost", device=0)],
            [],
        )
    )


def test_texts_of_models_are_escaped() -> None:
    bad = "<script>alert(1)</script> & \" ' \x00\x1b\ud800\n"
    text = timeline_html(
        *pipeline()[:1],
        [Event(at=9.5, kind="lost", device=1, part=1, rows=(0, 5), cause=bad, words=bad)],
        [],
    )
    assert "<script>alert" not in text
    assert text.isprintable() or not set(text) & {"\x00", "\x1b", "\ud800"}
    text.encode()
    assert sum(tag == "script" for tag, _ in Page(text).tags) == 1


def test_raised_missing_and_unreported_forwards_are_marked() -> None:
    spans = [
        Span(device=0, part=0, call=0, rows=(0, 5), began=1.0, ended=2.0, outcome="raised"),
        Span(device=0, part=0, call=1, rows=(0, 5), began=3.0, ended=4.0),
        Span(device=0, part=1, call=1, rows=(0, 5), began=4.0, ended=5.0),
    ]
    gap = Missing(start=0, stop=5, device=0, part=0, cause="raised", words="no")
    text = timeline_html(
        spans,
        [Event(at=2.0, kind="reset")],
        [ForwardReport(call=0, rows=5, chunks=1, missing=(gap,)), ForwardReport(call=7, rows=5, chunks=1)],
    )
    assert "5 rows missing" in text
    assert "forward 1: no report" in text
    assert "1 forward without a span here cannot be placed" in text
    assert ">p1 0:5</text>" in text  # a device with several parts says which
    page = Page(text)
    assert [attrs for attrs in page.having("raised") if "%" in (attrs.get("x") or "")]
    assert len(page.having("m")) == 1


def test_many_spans_and_events_make_a_page_of_limited_size() -> None:
    spans, events, reports = pipeline()
    times = 20_000 // len(spans) + 1
    many = [replace(s, call=n, began=s.began + n * 9, ended=s.ended + n * 9) for n in range(times) for s in spans]
    faults = [replace(e, at=e.at + n * 9) for n in range(times) for e in events]
    text = timeline_html(many, faults, [replace(reports[0], call=n) for n in range(times)])
    page = Page(text)
    assert len(page.having("s")) == SPANS
    assert f"Only the last {SPANS} of {len(many)} spans are drawn" in text
    assert f"Events (the last {EVENTS} of {len(faults)})" in text
    assert f"The last 6 of {times} losses" in text
    assert len(text) < 3_000_000


@pytest.mark.parametrize(
    ("start", "end", "names"),
    [
        (0.0, 0.01, ["0 ms", "1 ms", "2 ms"]),
        (9.0, 10.0, ["9.0 s", "9.1 s", "9.2 s"]),
        (9.0001, 9.0002, ["9.00010 s", "9.00011 s", "9.00012 s"]),
        (0.0, 100.0, ["0 s", "10 s", "20 s"]),
        (10.0, 3600.0, ["10 min", "20 min", "30 min"]),
    ],
)
def test_ticks_are_round_moments_with_names(start: float, end: float, names: list[str]) -> None:
    found = ticks(start, end, 11)
    assert [name for _, name in found][:3] == names
    assert len(found) <= 12
    assert all(start <= moment <= end for moment, _ in found)


def test_the_page_replaces_an_existing_file(tmp_path: Path) -> None:
    target = tmp_path / "timeline.html"
    target.write_text("old")
    write_timeline(target, *pipeline())
    assert target.read_text() == timeline_html(*pipeline())
    assert os.listdir(tmp_path) == ["timeline.html"]


def test_a_name_without_directory_is_written_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_timeline("t.html", [], [], [])
    assert (tmp_path / "t.html").exists()


def test_invalid_paths_are_refused(tmp_path: Path) -> None:
    names: list[Any] = ["", tmp_path, tmp_path / "no" / "t.html", "a\0b", 5, None, b"t.html"]
    for name in names:
        with pytest.raises(UsageError):
            write_timeline(name, [], [], [])
    assert os.listdir(tmp_path) == []


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match="free some space"):
        write_timeline(tmp_path / "t.html", [], [], [])
    assert os.listdir(tmp_path) == []
