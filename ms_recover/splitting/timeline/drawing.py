"""The drawing of a timeline: lanes of devices with chunks, outages and events, as SVG (pure).

Horizontal positions are percentages: the page zooms by changing the drawing's width, and no text is stretched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor

from ms_recover.model.texts import ranks_text
from ms_recover.reporting.tables import one_line
from ms_recover.splitting import summary
from ms_recover.splitting.activity import (
    Outage,
    busy_times,
    chunk_positions,
    forward_extents,
    group_events,
    outages,
    redone_spans,
)
from ms_recover.splitting.events import Event, ForwardReport, Span

SPANS = 4000
"""Number of spans drawn, the last ones: browsers still move them smoothly, in about 1.5 MB."""
TICK_STEPS = [float(f"{m}e{e}") for e in range(-6, 2) for m in (1, 2, 5)]
TICK_STEPS += [60.0 * m for m in (1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 10080)]
"""Seconds between ticks of the axis: 1 us to 50 s, then 1 min to a week."""
_HUES = 16
_TOP = 56
_LANE = 58
_STRIP = 18
_BOX = 26
"""Heights in pixels: the space above the lanes, a lane, the marks in it, the chunks in it."""
_NEAR = 0.004
"""Events of a kind that are closer than this share of the drawing's width are one mark."""
_PIXELS = 1000
_CHARACTER = 6.4
"""Width of the drawing and of a character before the page's script measures them."""


class Markup(str):
    """Text that is markup already: `element`, `joined` and templates do not escape it."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return it as templates ask for markup."""
        return str(self)


def element(name: str, *children: str, **attributes: object) -> Markup:
    """Return an element; children and attributes are escaped, children of type `Markup` excepted.

    In names of attributes an underscore stands for a hyphen, and one at the end is left out: ``class_``, ``data_at``.
    """
    named = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    if not children:
        return Markup(f"<{name}{named}/>")
    return Markup(f"<{name}{named}>{joined(children)}</{name}>")


def joined(children: Iterable[str]) -> Markup:
    """Return children one after the other; those that are no `Markup` are escaped."""
    return Markup("".join(child if isinstance(child, Markup) else escape(child) for child in children))


class View:
    """The content of a drawing: the last `SPANS` spans, and the faults meanwhile; all are in order of time."""

    def __init__(self, spans: list[Span], events: list[Event]) -> None:
        self.spans = spans[-SPANS:]
        faults = [event for event in events if event.kind != "ready"]
        times = [span.began for span in self.spans]
        if len(self.spans) == len(spans):
            times += [event.at for event in faults]
        first = min(times, default=0.0)
        last = max([first, *(span.ended for span in self.spans), *(event.at for event in faults)])
        margin = max(last - first, 1e-3) * 0.012  # marks at the very begin or end would be cut
        self.start = max(first - margin, 0.0) if first >= 0 else first - margin
        """Time at the left edge."""
        self.length = last + margin - self.start
        """Seconds from the left edge to the right one."""
        self.events = [event for event in faults if event.at >= first]
        """Events that get a mark."""
        devices = {span.device for span in self.spans} | {event.device for event in events if event.device is not None}
        self.devices = sorted(devices)
        """From top to bottom."""
        self.outages = outages(events)
        self.colours = {
            chunk: position * _HUES // count if count < _HUES else position % _HUES
            for chunk, (position, count) in chunk_positions(self.spans).items()
        }
        """The hue of each chunk of each forward."""
        self.redone = redone_spans(self.spans, self.events)
        """Indexes of the spans that repeat a chunk."""
        self.busy = busy_times(self.spans)

    @property
    def height(self) -> int:
        """Height of the drawing in pixels."""
        return _TOP + _LANE * max(len(self.devices), 1)

    def x(self, moment: float) -> float:
        """Return the horizontal position of a moment, from 0 to 1."""
        return min(max((moment - self.start) / self.length, 0.0), 1.0)


def draw_forwards(view: View, reports: Sequence[ForwardReport]) -> Markup:
    """Return the bands of the forwards, above the lanes."""
    known = {report.call: report for report in reports}
    bands = []
    for call, (began, ended) in sorted(forward_extents(view.spans).items()):
        title = f"forward {call}: no report: it raised, or still runs"
        name = f"forward {call}"
        kind = "band"
        if call in known:
            report = known[call]
            title = summary.forward_text(report)
            name += f" · {summary.seconds_text(report.seconds)}"
            kind += " gaps" if report.missing else " hurt" if report.lost else ""
        bar = _Bar(began=began, ended=ended, y=28, height=20, kind=kind, title=title, label=name)
        bands.append(_draw_bar(view, bar))
    return joined(bands)


def draw_lanes(view: View) -> Markup:
    """Return the lane of each device: its outages, chunks and events."""
    drawn = []
    for index, device in enumerate(view.devices):
        top = _TOP + index * _LANE
        drawn.append(element("rect", x=0, y=top, width="100%", height=_LANE, class_=f"lane{index % 2}"))
        drawn += [_outage(view, outage, top + _STRIP) for outage in view.outages.get(device, ())]
        own = [(number, span) for number, span in enumerate(view.spans) if span.device == device]
        several = len({span.part for _, span in own}) > 1
        drawn += [_span(view, number, span, top + _STRIP, several) for number, span in own]
        events = [event for event in view.events if event.device == device]
        drawn += _marks(view, events, top + 9, top, top + _LANE - 6)
    return joined(drawn)


def draw_common_events(view: View) -> Markup:
    """Return the marks of events that concern no single device."""
    events = [event for event in view.events if event.device is None]
    return joined(_marks(view, events, 38, _TOP, view.height))


def draw_names(view: View) -> Markup:
    """Return the name of each lane with the device's parts and its busy share."""
    drawn = []
    for index, device in enumerate(view.devices):
        parts = {span.part for span in view.spans if span.device == device}
        share = f" · {view.busy.share(device)} busy" if view.busy.window > 0 else ""
        work = f"part {ranks_text(parts)}{share}" if parts else "no chunk"
        y = _TOP + index * _LANE
        drawn.append(element("text", f"device {device}", x=6, y=y + 28, class_="b"))
        drawn.append(element("text", work, x=6, y=y + 43, class_="dim"))
    return joined(drawn)


def draw_ticks(view: View) -> Markup:
    """Return the axis."""
    drawn = []
    for moment, name in ticks(view.start, view.start + view.length, _PIXELS // 90):
        x = _percent(view.x(moment))
        drawn.append(element("line", x1=x, x2=x, y1=18, y2=view.height, class_="t"))
        drawn.append(element("text", name, x=x, dx=3, y=14, class_="dim"))
    return joined(drawn)


def ticks(start: float, end: float, most: int) -> list[tuple[float, str]]:
    """Return about `most` round moments at most, with their names, for an axis of seconds."""
    step = next((step for step in TICK_STEPS if (end - start) / step <= most), TICK_STEPS[-1])
    decimals = next((places for places in range(7) if step * 10**places >= 0.999), 6)
    found = []
    for number in range(ceil(start / step), min(floor(end / step), ceil(start / step) + 4 * most) + 1):
        moment = number * step
        if step >= 60:
            name = f"{moment / 60:.0f} min"
        else:
            name = f"{moment * 1e3:.{max(decimals - 3, 0)}f} ms" if end < 1 else f"{moment:.{decimals}f} s"
        found.append((moment, name))
    return found


def _outage(view: View, outage: Outage, y: int) -> Markup:
    loss, back = outage
    until = view.start + view.length if back is None else back.at
    if until <= view.start:
        return Markup()
    took = "not back" if back is None else summary.seconds_text(until - loss.at)
    title = f"device {loss.device} down from {loss.at:.3f} s: {took}"
    label = f"down {took}" if back else "down"
    bar = _Bar(began=loss.at, ended=until, y=y, kind="down", title=title, label=label, label_kind="red")
    return _draw_bar(view, bar)


def _span(view: View, number: int, span: Span, y: int, several: bool) -> Markup:
    rows = summary.rows_text(span.rows)
    again = number in view.redone
    kinds = [f"h{view.colours[span.call, span.rows]}", "chunk"]
    kinds += ["again"] if again else []
    kinds += [] if span.outcome == "done" else [span.outcome]
    bar = _Bar(
        began=span.began,
        ended=span.ended,
        y=y,
        kind=" ".join(kinds),
        title=summary.span_text(span, again),
        label=f"p{span.part} {rows}" if several else rows,
        hatched=span.outcome == "lost",
    )
    return _draw_bar(view, bar, class_="s", data_k=f"{span.call}-{rows}")


def _marks(view: View, events: Sequence[Event], y: int, top: int, bottom: int) -> list[Markup]:
    """Return the marks of events: one for all of a kind and moment, the next one beside it instead of over it."""
    drawn = []
    taken = -99.0
    last_line = ""
    for group in group_events(events, _NEAR * view.length):
        kind = group[0].kind
        x = view.x(group[0].at)
        shift = max(taken + 16 - x * _PIXELS, 0)  # the script computes this again after a zoom
        if shift > 50:  # in a crowd a mark over another is better than one far from its place
            shift = 0.0
        taken = x * _PIXELS + shift + (14 if len(group) > 1 else 0)
        place = _percent(x)
        title = "\n".join(f"{event.at:.3f} s: {one_line(str(event).strip())}" for event in group[:12])
        more = f"\nand {len(group) - 12} more" if len(group) > 12 else ""
        count = Markup(f"&#215;{len(group)}") if len(group) > 1 else ""
        line = element("line", x1=place, x2=place, y1=top, y2=bottom) if place != last_line else Markup()
        sign = element(
            "g",
            element("use", href=f"#e-{kind}", x=place, y=y),
            element("text", count, x=place, dx=9, y=y + 4, class_="n"),
            class_="p",
            transform=f"translate({shift:.1f})",
        )
        drawn.append(element("g", element("title", title + more), line, sign, class_=f"m m-{kind}"))
        last_line = place
    return drawn


def _percent(share: float) -> str:
    return f"{share * 100:.4f}".rstrip("0").rstrip(".") + "%"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A box with a title and a label."""

    began: float
    ended: float
    y: int
    height: int = _BOX
    kind: str
    title: str
    label: str
    label_kind: str = ""
    hatched: bool = False


def _draw_bar(view: View, bar: _Bar, **attributes: str) -> Markup:
    """Return a box, whose label is hidden if it does not fit; the script decides after a zoom."""
    x = view.x(bar.began)
    width = view.x(bar.ended) - x
    place = {"x": _percent(x), "width": _percent(width), "y": bar.y, "height": bar.height}
    fits = width * _PIXELS >= len(bar.label) * _CHARACTER + 6
    classes = " ".join(filter(None, ("l", bar.label_kind, "" if fits else "off")))
    return element(
        "g",
        element("title", bar.title),
        element("rect", **place, class_=bar.kind),
        element("rect", **place, class_="hatch") if bar.hatched else Markup(),
        element(
            "text",
            bar.label,
            x=place["x"],
            dx=4,
            y=bar.y + bar.height // 2 + 4,
            data_w=f"{width:.6f}",
            class_=classes,
        ),
        **attributes,
    )
