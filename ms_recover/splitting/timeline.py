"""A page that draws which device worked on which chunk when, and what failed.

The page is one file of HTML, SVG and a few lines of script; it loads nothing, and says so to the browser (CSP).
Horizontal places are percentages, so that a zoom is a change of the drawing's width and no text is stretched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ms_recover.errors import UsageError
from ms_recover.reporting.tables import one_line, ranks_text
from ms_recover.splitting import summary
from ms_recover.splitting.events import Event, EventKind, ForwardReport, Span
from ms_recover.storage.atomic import write_small

SPANS = 4000
"""Spans drawn, the last ones: what browsers still move smoothly, about 1.5 MB."""
EVENTS = 1000
"""Rows of the table of events, the last ones."""
TITLE = "Timeline of a split model"
_HUES = 16
_STRIP, _BOX, _LANE, _TOP = 18, 26, 58, 56
"""Heights in pixels: a lane's marks, its spans, a whole lane, and what is above the lanes."""
_NEAR = 0.004
"""Events of one kind that are closer than this part of the drawing are one mark."""
_PIXELS, _CHARACTER = 1000, 6.4
"""Width of the drawing and of a character that the page begins with; the script goes by the real one."""

_SIGNS: dict[EventKind, tuple[str, str, str]] = {
    "lost": ("#d62828", "M-3,-3L3,3M3,-3L-3,3", "device lost"),
    "recovered": ("#2a9d4a", "M-3.4,.2L-1,2.8L3.4,-2.6", "recovered"),
    "retired": ("#7f1d1d", "M-3.6,0H3.6", "retired"),
    "moved": ("#2563eb", "M-3.6,0H3.2M.6,-2.8L3.4,0L.6,2.8", "part moved here"),
    "redone": ("#c47f00", "M3,-1.6A3.4,3.4 0 1 0 3.3,1.3M3.4,-3.9V-1.3H.8", "chunk to be redone"),
    "dropped": ("#a21caf", "M0,-3.6V2.8M-2.8,.4L0,3.2L2.8,.4", "chunk dropped"),
    "repaired": ("#0d9488", "M-3.6,0H3.6M0,-3.6V3.6", "slice repaired"),
    "reset": ("#475569", "M0,-3.8V0M-2.4,-2.5A3.5,3.5 0 1 0 2.4,-2.5", "all devices reset"),
    "ready": ("#94a3b8", "M-1.2,0H1.2", "ready"),
}
"""Colour, path and words of each kind of event; ready is no fault and only in the table."""


def write_timeline(
    path: str | os.PathLike[str],
    spans: Sequence[Span],
    events: Sequence[Event],
    reports: Sequence[ForwardReport],
    title: str = TITLE,
) -> None:
    """Write the page of `timeline_html` whole or not at all; what lies at `path` is replaced.

    Raises
    ------
    UsageError
        When `path` cannot be meant: empty, a directory, or in a directory that is not there.
    StorageError
        When it cannot be written.
    """
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise UsageError(f"{name!r} is no name for a timeline: give one such as timeline.html")
    if os.path.isdir(name):
        raise UsageError(f"{name} is a directory: name a file in it, such as {os.path.join(name, 'timeline.html')}")
    directory = os.path.dirname(os.path.abspath(name))
    if not os.path.isdir(directory):
        raise UsageError(f"{name}: there is no directory {directory}: make it, or name another")
    write_small(name, timeline_html(spans, events, reports, title).encode())


def timeline_html(
    spans: Sequence[Span], events: Sequence[Event], reports: Sequence[ForwardReport], title: str = TITLE
) -> str:
    """Return a page that draws what the devices did.

    Parameters
    ----------
    spans : sequence of Span
        The last `SPANS` are drawn.
    events : sequence of Event
        Those of the time that is drawn are marked, the last `EVENTS` are in the table.
    reports : sequence of ForwardReport
        A forward is drawn from its first span to its last: when it began is known from nothing else.
    title : str
    """
    events = sorted(events, key=lambda event: event.at)
    view = _View.over(sorted(spans, key=lambda span: (span.began, span.device)), events)
    notes = [
        f"{summary.totals(reports)}; {summary.counted(sum(span.outcome == 'done' for span in spans), 'span')} done."
    ]
    if len(spans) > len(view.spans):
        notes.append(
            f"Only the last {len(view.spans)} of {len(spans)} spans are drawn, from {view.start:.3f} s on; "
            "figures beside the lanes are of these."
        )
    bands = _bands(view, reports)
    undrawn = len(reports) - len({span.call for span in view.spans} & {report.call for report in reports})
    if undrawn:
        notes.append(f"{summary.counted(undrawn, 'forward')} without a span here cannot be placed.")
    height = _TOP + _LANE * max(len(view.lanes), 1)
    everywhere = "".join(_marks(view, [event for event in view.marked if event.device is None], 38, _TOP, height))
    lanes, labels = (
        "".join(draw(view, at, device) for at, device in enumerate(view.lanes)) for draw in (_lane, _label)
    )
    drawing = (
        f'<div id="chart"><svg id="names" width="128" height="{height}"><text x="6" y="14" class="dim">time</text>'
        f'<text x="6" y="42" class="dim">forwards</text>{labels}</svg>'
        f'<div id="scroll" tabindex="0"><svg id="plot" width="100%" height="{height}" data-start="{view.start!r}" '
        f'data-length="{view.length!r}" role="img" aria-label="Timeline">{_PATTERN}'
        f'<g id="ticks">{_ticks(view, height)}</g>{bands}{lanes}{everywhere}</svg></div></div>'
    )
    heading = escape(one_line(title))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{heading}</title><style>{_STYLE}</style></head>\n<body>{_symbols()}<h1>{heading}</h1>"
        f"<p>{escape(' '.join(notes))}</p>\n{_story(events)}\n{_legend()}\n"
        f"{drawing if view.lanes else '<p>Nothing to draw yet.</p>'}\n{_table(events)}"
        f'<div id="tip" hidden></div>\n<script>{_SCRIPT}</script></body></html>\n'
    )


@dataclass(frozen=True)
class _View:
    """What is drawn, and where."""

    spans: list[Span]
    marked: list[Event]
    lanes: list[int]
    outages: dict[int, list[tuple[Event, Event | None]]]
    """Per device, losses with what ended each: nothing, when it lasts to this day."""
    start: float
    length: float
    colours: dict[tuple[int, tuple[int, int]], int]
    again: set[int]
    """Which of the spans are of chunks that were redone."""

    @classmethod
    def over(cls, spans: list[Span], events: list[Event]) -> _View:
        drawn = spans[-SPANS:]
        faults = [event for event in events if event.kind != "ready"]
        times = [span.began for span in drawn]
        if len(drawn) == len(spans):
            times += [event.at for event in faults]
        start = min(times, default=0.0)
        end = max([start, *(span.ended for span in drawn), *(event.at for event in faults)])
        marked = [event for event in faults if event.at >= start]
        chunks = summary.chunk_places(drawn)
        colours = {key: at * _HUES // of if of < _HUES else at % _HUES for key, (at, of) in chunks.items()}
        devices = {span.device for span in drawn} | {event.device for event in events if event.device is not None}
        # Room at both ends: marks at the very begin or end would be cut.
        margin = max(end - start, 1e-3) * 0.012
        begin = max(start - margin, 0.0) if start >= 0 else start - margin
        again = summary.redone_spans(drawn, marked)
        return cls(drawn, marked, sorted(devices), summary.outages(events), begin, end + margin - begin, colours, again)

    def at(self, moment: float) -> float:
        return min(max((moment - self.start) / self.length, 0.0), 1.0)


def _story(events: Sequence[Event]) -> str:
    """Say first what a reader wants to know first: what was lost, why, and for how long."""
    found = summary.losses(events)
    if not found:
        return "<p>No device was lost.</p>"
    lines = [
        f'<li data-at="{loss.at!r}"><b>Device {loss.device} lost</b> {escape(words)}</li>' for loss, words in found[-6:]
    ]
    more = f"<p>The last {len(lines)} of {len(found)} losses:</p>" if len(found) > len(lines) else ""
    return f"{more}<ul>{''.join(lines)}</ul>"


def _bands(view: _View, reports: Sequence[ForwardReport]) -> str:
    known = {report.call: report for report in reports}
    parts = []
    for call, (begin, end) in sorted(summary.extents(view.spans).items()):
        title, name, kind = f"forward {call}: no report: it raised, or still runs", f"forward {call}", "band"
        if call in known:
            report = known[call]
            title, name = summary.forward_words(report), f"{name} · {summary.seconds_text(report.seconds)}"
            kind += " gaps" if report.missing else " hurt" if report.lost else ""
        x, width = view.at(begin), view.at(end) - view.at(begin)
        shapes = f"{_rect(x, width, 28, 20, kind)}{_text(x, width, 42, name)}"
        parts.append(f"<g><title>{escape(title)}</title>{shapes}</g>")
    return "".join(parts)


def _lane(view: _View, index: int, device: int) -> str:
    top = _TOP + index * _LANE
    parts = [f'<rect x="0" y="{top}" width="100%" height="{_LANE}" class="lane{index % 2}"/>']
    end = view.start + view.length
    for loss, back in view.outages.get(device, ()):
        until = end if back is None else back.at
        if until <= view.start:
            continue
        x = view.at(loss.at)
        width = view.at(until) - x
        took = "not back" if back is None else summary.seconds_text(until - loss.at)
        title = f"device {device} down from {loss.at:.3f} s: {took}"
        parts.append(
            f"<g><title>{escape(title)}</title>{_rect(x, width, top + _STRIP, _BOX, 'down')}"
            f"{_text(x, width, top + _STRIP + 17, f'down {took}' if back else 'down', 'red')}</g>"
        )
    own = [(number, span) for number, span in enumerate(view.spans) if span.device == device]
    several = len({span.part for _, span in own}) > 1
    parts += [_span(view, number, span, top + _STRIP, several) for number, span in own]
    events = [event for event in view.marked if event.device == device]
    parts += _marks(view, events, top + 9, top, top + _LANE - 6)
    return "".join(parts)


def _span(view: _View, number: int, span: Span, y: int, several: bool) -> str:
    rows = summary.rows_text(span.rows)
    again = number in view.again
    colour = view.colours[span.call, span.rows]
    x, width = view.at(span.began), view.at(span.ended) - view.at(span.began)
    kind = f"h{colour}{' again' if again else ''}{'' if span.outcome == 'done' else ' ' + span.outcome}"
    over = _rect(x, width, y, _BOX, "hatch") if span.outcome == "lost" else ""
    label = _text(x, width, y + 17, f"p{span.part} {rows}" if several else rows)
    return (
        f'<g class="s" data-k="{span.call}-{rows}"><title>{escape(summary.span_words(span, again))}</title>'
        f"{_rect(x, width, y, _BOX, kind)}{over}{label}</g>"
    )


def _marks(view: _View, events: Sequence[Event], y: int, top: int, bottom: int) -> list[str]:
    """Draw marks; those of one kind and moment are one, what would hide another stands beside it."""
    parts, taken, lined = [], -99.0, ""
    for group in summary.together(events, _NEAR * view.length):
        kind, x = group[0].kind, view.at(group[0].at)
        shift = max(taken + 16 - x * _PIXELS, 0)  # the script does this again when the drawing is zoomed
        shift *= shift <= 50  # where there are many, better above one another than far from their place
        taken = x * _PIXELS + shift + (14 if len(group) > 1 else 0)
        number, place = f"&#215;{len(group)}" if len(group) > 1 else "", _percent(x)
        title = "\n".join(f"{event.at:.3f} s: {one_line(str(event).strip())}" for event in group[:12])
        more = f"\nand {len(group) - 12} more" if len(group) > 12 else ""
        line = f'<line x1="{place}" x2="{place}" y1="{top}" y2="{bottom}" stroke="{_SIGNS[kind][0]}"/>'
        parts.append(
            f'<g class="m"><title>{escape(title + more)}</title>{line if place != lined else ""}'
            f'<g class="p" transform="translate({shift:.1f})"><use href="#e-{kind}" x="{place}" y="{y}"/>'
            f'<text x="{place}" dx="9" y="{y + 4}" class="n">{number}</text></g></g>'
        )
        lined = place
    return parts


def _label(view: _View, index: int, device: int) -> str:
    own = [span for span in view.spans if span.device == device]
    parts = ranks_text({span.part for span in own})
    busy, window = summary.busy(view.spans)
    share = f" · {busy.get(device, 0.0) / window:.0%} busy" if window > 0 else ""
    y = _TOP + index * _LANE
    return (
        f'<text x="6" y="{y + 28}" class="b">device {device}</text>'
        f'<text x="6" y="{y + 43}" class="dim">{f"part {parts}{share}" if own else "no chunk"}</text>'
    )


def _ticks(view: _View, height: int) -> str:
    parts = []
    for moment, words in summary.ticks(view.start, view.start + view.length, _PIXELS // 90):
        x = _percent(view.at(moment))
        line = f'<line x1="{x}" x2="{x}" y1="18" y2="{height}" class="t"/>'
        parts.append(f'{line}<text x="{x}" dx="3" y="14" class="dim">{words}</text>')
    return "".join(parts)


def _percent(part: float) -> str:
    return f"{part * 100:.4f}".rstrip("0").rstrip(".") + "%"


def _rect(x: float, width: float, y: int, height: int, kind: str) -> str:
    return f'<rect x="{_percent(x)}" width="{_percent(width)}" y="{y}" height="{height}" class="{kind}"/>'


def _text(x: float, width: float, y: int, words: str, kind: str = "") -> str:
    """Return a label, hidden where it does not fit; the script looks again when the drawing is zoomed."""
    wide = width * _PIXELS >= len(words) * _CHARACTER + 6
    classes = " ".join(word for word in ("l", kind, "" if wide else "off") if word)
    return f'<text x="{_percent(x)}" dx="4" y="{y}" data-w="{width:.6f}" class="{classes}">{escape(words)}</text>'


def _symbols() -> str:
    signs = "".join(
        f'<g id="e-{kind}"><circle r="7" fill="{colour}"/><path d="{path}" fill="none" stroke="#fff" '
        'stroke-width="1.7" stroke-linecap="round" stroke-linejoin="round"/></g>'
        for kind, (colour, path, _) in _SIGNS.items()
    )
    return f'<svg width="0" height="0" style="position:absolute"><defs>{signs}</defs></svg>'


def _sign(kind: EventKind) -> str:
    return f'<svg width="16" height="16"><use href="#e-{kind}" x="8" y="8"/></svg>'


def _legend() -> str:
    boxes = {"h6": "a chunk; one colour, one chunk", "h6 again": "redone", "h6 lost": "lost with its device"}
    boxes |= {"h6 raised": "raised", "down": "device down"}
    over = '<rect x="1" y="2" width="24" height="12" class="hatch"/>'
    items = [
        f'<span><svg width="26" height="16"><rect x="1" y="2" width="24" height="12" class="{kind}"/>'
        f"{over if kind == 'h6 lost' else ''}</svg>{words}</span>"
        for kind, words in boxes.items()
    ]
    items += [f"<span>{_sign(kind)}{words}</span>" for kind, (_, _, words) in _SIGNS.items() if kind != "ready"]
    return (
        f'<div id="legend">{"".join(items)}<span class="dim">0:7 = rows 0 to 6</span></div><div id="zoom">'
        '<button data-z="2">zoom in</button><button data-z="0.5">zoom out</button><button data-z="0">fit</button>'
        '<span class="dim">Ctrl + wheel zooms too; a click on an event goes there; point at a chunk to follow it '
        "through the parts; times are seconds since the splitter was made</span></div>"
    )


def _table(events: Sequence[Event]) -> str:
    shown = events[-EVENTS:]
    rows = []
    for event in shown:
        texts = [escape(one_line(cell)) for cell in summary.event_cells(event)]
        texts.insert(1, _sign(event.kind) + event.kind)
        rows.append(f'<tr data-at="{event.at!r}" class="e-{event.kind}"><td>{"<td>".join(texts)}')
    heading = "Events" if events else "No events"
    heading += f" (the last {len(shown)} of {len(events)})" if len(shown) < len(events) else ""
    columns = "<th>".join(("at", "what", "device", "part", "rows", "took", "cause", "words"))
    return f"<h2>{heading}</h2>\n<table><thead><tr><th>{columns}</thead>\n<tbody>{chr(10).join(rows)}</tbody></table>\n"


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
_PATTERN = (
    '<defs><pattern id="hatching" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="3" height="7" fill="#d62828" fill-opacity=".75"/></pattern></defs>'
)
_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#667080;--line:#d8dde3;--lane:#f5f7f9;--l:80%;--e:55%;
--red:#d62828;--down:#fde3e3;--band:#e6eaf0;--hurt:#ffe2b8;--gaps:#f6c6ee}
@media(prefers-color-scheme:dark){:root{--bg:#14171b;--fg:#e6e9ed;--dim:#939dab;--line:#2c323a;--lane:#1a1e23;--l:32%;
--e:50%;--red:#ff6b6b;--down:#43191b;--band:#272d36;--hurt:#5a4015;--gaps:#561c50}}body{margin:18px 22px;
background:var(--bg);color:var(--fg);font:14px/1.45 system-ui,sans-serif}h1{font-size:20px;margin:0 0 4px}
h2{font-size:16px;margin:22px 0 6px}p{margin:4px 0;color:var(--dim)}ul{margin:8px 0;padding:8px 12px 8px 28px;
border-left:4px solid var(--red);background:var(--lane)}#legend,#zoom{display:flex;flex-wrap:wrap;gap:3px 14px;
margin:8px 0;align-items:center;font-size:13px}#legend span{display:inline-flex;gap:5px;align-items:center}
#zoom button{font:inherit}#chart{display:flex;border:1px solid var(--line)}#names{flex:none;
border-right:1px solid var(--line)}#scroll{overflow-x:auto;flex:1;min-width:0}svg{display:block}
text{font:12px system-ui,sans-serif;fill:var(--fg)}.dim{color:var(--dim)}text.dim{fill:var(--dim);font-size:11px}
text.b{font-weight:600;font-size:13px}text.n{font-size:11px;font-weight:600}text.l{font-size:11px;pointer-events:none}
text.red{fill:var(--red);font-weight:600}text.off{display:none}.t{stroke:var(--line)}.lane0{fill:var(--lane);
fill-opacity:.6}.lane1{fill:none}.m line{stroke-width:1.6}[class^=h]{fill:hsl(var(--h) 62% calc(var(--l) - var(--d)));
stroke:hsl(var(--h) 45% var(--e));stroke-width:.7}rect.again{stroke:#c47f00;stroke-width:2.2}
rect.raised{stroke:var(--red);stroke-width:2.4;stroke-dasharray:4 2}rect.lost{stroke:var(--red);stroke-width:1.8}
rect.hatch{fill:url(#hatching);pointer-events:none;stroke:none}.down{fill:var(--down);stroke:var(--red);
stroke-width:.8;stroke-dasharray:3 3}.band{fill:var(--band);stroke:var(--line)}.hurt{fill:var(--hurt)}
.gaps{fill:var(--gaps)}.follow .s:not(.on){opacity:.22}table{border-collapse:collapse;font-size:13px}
th,td{text-align:left;padding:2px 14px 2px 0;border-bottom:1px solid var(--line);vertical-align:top}
td:first-child,th:first-child{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
td svg{display:inline-block;vertical-align:-3px;margin-right:5px}td:last-child{overflow-wrap:anywhere}
tr[data-at],li[data-at]{cursor:pointer}tbody tr:hover,li:hover{background:var(--lane)}.e-lost td{color:var(--red)}
#tip{position:fixed;max-width:460px;padding:6px 9px;background:var(--fg);color:var(--bg);border-radius:4px;
font-size:12px;white-space:pre-line;pointer-events:none;z-index:2}
"""
# From yellow over green and blue to pink: red is for faults. Light and dark in turn tell neighbours apart.
_STYLE += "".join(f".h{n}{{--h:{48 + n * 17};--d:{n % 2 * 9}%}}" for n in range(_HUES))
_SCRIPT = """
(function(){function $(i){return document.getElementById(i)}function all(q,f){document.querySelectorAll(q).forEach(f)}
var plot=$('plot'),box=$('scroll'),tip=$('tip'),marks=$('ticks'),steps=STEPS,z=1;if(!plot)return;
var t0=+plot.dataset.start,len=+plot.dataset.length,high=+plot.getAttribute('height');
function wide(){return plot.getBoundingClientRect().width}
function add(name,set,text){var e=document.createElementNS('http://www.w3.org/2000/svg',name);
 for(var k in set)e.setAttribute(k,set[k]);if(text)e.textContent=text;marks.appendChild(e)}
function name(t,s){if(s>=60)return Math.round(t/60)+' min';var d=0;while(d<6&&s*Math.pow(10,d)<.999)d++;
 return t0+len<1?(t*1e3).toFixed(Math.max(d-3,0))+' ms':t.toFixed(d)+' s'}
function draw(){var w=wide(),s=steps.find(function(s){return s/len*w>=90})||steps[steps.length-1];marks.textContent='';
 for(var n=Math.ceil(t0/s),i=0;n*s<=t0+len&&i<2000;n++,i++){var x=(n*s-t0)/len*100+'%';
  add('line',{x1:x,x2:x,y1:18,y2:high,'class':'t'});add('text',{x:x,dx:3,y:14,'class':'dim'},name(n*s,s))}
 all('text.l',function(e){e.classList.toggle('off',e.dataset.w*w<e.textContent.length*6.4+6)});
 var last={};all('g.p',function(g){var u=g.firstChild,y=u.getAttribute('y'),x=parseFloat(u.getAttribute('x'))*w/100,
  d=Math.max((y in last?last[y]:-99)+16-x,0);if(d>50)d=0;last[y]=x+d+(g.textContent?14:0);
  g.setAttribute('transform','translate('+d+')')})}
function zoom(to,part,px){z=Math.min(Math.max(to,1),64);plot.style.width=z*100+'%';draw();box.scrollLeft=part*wide()-px}
all('button',function(b){b.onclick=function(){var px=box.clientWidth/2;
 zoom(z*+b.dataset.z,(box.scrollLeft+px)/wide(),px)}});
box.addEventListener('wheel',function(e){if(!e.ctrlKey)return;e.preventDefault();
 var px=e.clientX-box.getBoundingClientRect().left;
 zoom(z*(e.deltaY<0?1.25:.8),(box.scrollLeft+px)/wide(),px)},{passive:false});
all('[data-at]',function(r){r.onclick=function(){zoom(Math.max(z,4),(r.dataset.at-t0)/len,box.clientWidth/2);
 box.scrollIntoView({block:'nearest'})}});
document.addEventListener('mouseover',function(e){var g=e.target.closest('#plot g:not(.p)');
 var own=g&&g.querySelector('title');plot.classList.remove('follow');all('.on',function(o){o.classList.remove('on')});
 if(own){g.dataset.tip=own.textContent;own.remove()}
 tip.hidden=!(g&&g.dataset.tip);if(tip.hidden)return;tip.textContent=g.dataset.tip;if(!g.dataset.k)return;
 plot.classList.add('follow');all('[data-k="'+g.dataset.k+'"]',function(o){o.classList.add('on')})});
document.addEventListener('mousemove',function(e){if(tip.hidden)return;
 tip.style.left=Math.max(0,Math.min(e.clientX+14,innerWidth-tip.offsetWidth-8))+'px';
 tip.style.top=Math.max(0,Math.min(e.clientY+16,innerHeight-tip.offsetHeight-8))+'px'});
addEventListener('resize',draw);draw()})();
""".replace("STEPS", str(summary.STEPS))
