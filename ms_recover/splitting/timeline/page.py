"""The timeline as one HTML file: it loads nothing, and forbids the browser to, as `render_page` says."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ms_recover.errors import UsageError
from ms_recover.reporting.page.templates import render_page
from ms_recover.reporting.tables import one_line
from ms_recover.splitting import summary
from ms_recover.splitting.events import Event, ForwardReport, Span
from ms_recover.splitting.timeline import drawing
from ms_recover.splitting.timeline.drawing import Markup, View, element, joined
from ms_recover.stores.atomic import write_small

EVENTS = 1000
"""Number of rows in the table of events, the last ones."""
_LOSSES = 6


def write_timeline(
    path: str | os.PathLike[str], spans: Sequence[Span], events: Sequence[Event], reports: Sequence[ForwardReport]
) -> None:
    """Write the page of `timeline_html` whole or not at all; an existing file is replaced.

    Raises UsageError when `path` is no path, empty, a directory, or in a directory that does not exist.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError(f"invalid name {name!r} of a timeline: give one such as timeline.html")
    if os.path.isdir(name):
        raise UsageError(f"{name} is a directory: name a file in it, such as {os.path.join(name, 'timeline.html')}")
    directory = os.path.dirname(os.path.abspath(name))
    if not os.path.isdir(directory):
        raise UsageError(f"{name}: the directory {directory} does not exist: make it, or name another")
    write_small(name, timeline_html(spans, events, reports).encode())


def timeline_html(spans: Sequence[Span], events: Sequence[Event], reports: Sequence[ForwardReport]) -> str:
    """Return a page that draws the work and the faults of the devices.

    The last `ms_recover.splitting.timeline.drawing.SPANS` spans are drawn, and a forward from its first span to its
    last. Events meanwhile are marked, the last `EVENTS` are in the table.
    """
    events = sorted(events, key=lambda event: event.at)
    view = View(sorted(spans, key=lambda span: (span.began, span.device)), events)
    return render_page(
        __package__ or "",
        "page.html",
        styles=("page.css",),
        scripts=("page.js",),
        notes=" ".join(_notes(view, spans, reports)),
        losses=_losses(events),
        drawn=_chart(view, reports) if view.devices else None,
        events=_table(events),
    )


def _notes(view: View, spans: Sequence[Span], reports: Sequence[ForwardReport]) -> list[str]:
    done = sum(span.outcome == "done" for span in spans)
    notes = [f"{summary.totals(reports)}; {summary.counted(done, 'span')} done."]
    if len(spans) > len(view.spans):
        notes.append(
            f"Only the last {len(view.spans)} of {len(spans)} spans are drawn, from {view.start:.3f} s on; "
            "figures beside the lanes are of these."
        )
    undrawn = len(reports) - len({span.call for span in view.spans} & {report.call for report in reports})
    if undrawn:
        notes.append(f"{summary.counted(undrawn, 'forward')} without a span here cannot be placed.")
    return notes


def _losses(events: Sequence[Event]) -> Markup:
    """Return the losses of devices, with cause and duration: the first question of a reader."""
    found = summary.loss_texts(events)
    if not found:
        return element("p", "No device was lost.")
    items = [
        element("li", element("b", f"Device {loss.device} lost"), f" {words}", data_at=repr(loss.at))
        for loss, words in found[-_LOSSES:]
    ]
    omitted = element("p", f"The last {len(items)} of {len(found)} losses:") if len(found) > len(items) else Markup()
    return joined([omitted, element("ul", *items)])


def _chart(view: View, reports: Sequence[ForwardReport]) -> dict[str, object]:
    return {
        "height": view.height,
        "names": drawing.draw_names(view),
        "start": repr(view.start),
        "length": repr(view.length),
        "steps": " ".join(map(repr, drawing.TICK_STEPS)),
        "ticks": drawing.draw_ticks(view),
        "forwards": drawing.draw_forwards(view, reports),
        "lanes": drawing.draw_lanes(view),
        "common": drawing.draw_common_events(view),
    }


def _table(events: Sequence[Event]) -> Markup:
    shown = events[-EVENTS:]
    heading = "Events" if events else "No events"
    heading += f" (the last {len(shown)} of {len(events)})" if len(shown) < len(events) else ""
    columns = ("at", "what", "device", "part", "rows", "took", "cause", "words")
    head = element("thead", element("tr", *(element("th", column, scope="col") for column in columns)))
    return joined([element("h2", heading), element("table", head, element("tbody", Markup("\n"), *map(_row, shown)))])


def _row(event: Event) -> Markup:
    at, *others = (element("td", one_line(cell)) for cell in summary.event_cells(event))
    sign = element("svg", element("use", href=f"#e-{event.kind}", x=8, y=8), width=16, height=16)
    row = element("tr", at, element("td", sign, event.kind), *others, data_at=repr(event.at), class_=f"e-{event.kind}")
    return Markup(row + "\n")
