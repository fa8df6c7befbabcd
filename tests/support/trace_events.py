"""The rules of Chrome's "Trace Event Format" for the events that a timeline has, as faults of a file."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

NEEDED = {"X": {"dur"}, "i": {"s"}, "b": {"id", "cat"}, "e": {"id", "cat"}, "M": {"args"}}
NANOSECOND = 0.0011
"""In microseconds; begin and duration are rounded to it, each by itself."""


def faults_of_trace(text: str) -> list[str]:
    """Return the faults of a file in the JSON object format, each with its event."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    trace = json.loads(text, parse_constant=refuse)
    events: list[dict[str, Any]] = trace["traceEvents"]
    faults = [] if trace.get("displayTimeUnit") in ("ms", "ns") else ["displayTimeUnit"]
    for event in events:
        faults += [f"{fault}: {event}" for fault in _faults(event)]
    if faults:
        return faults
    named = {(event["pid"], event["tid"]) for event in events if event["ph"] == "M" and event["name"] == "thread_name"}
    faults += [f"no name of its thread: {event}" for event in events if (event["pid"], event["tid"]) not in named]
    return faults + _unnested(events) + _unpaired(events)


def _faults(event: dict[str, Any]) -> list[str]:
    faults = [f"no {key}" for key in ("name", "ph", "ts", "pid", "tid") if key not in event]
    if faults or event["ph"] not in NEEDED:
        return faults or ["another phase"]
    faults += [f"no {key}" for key in NEEDED[event["ph"]] - event.keys()]
    faults += [f"{key} is no number" for key in ("pid", "tid") if type(event[key]) is not int]
    faults += [
        f"{key} is no time"
        for key in ("ts", "dur")
        if key in event and not (type(event[key]) in (int, float) and event[key] >= 0)
    ]
    if not isinstance(event["name"], str) or not isinstance(event.get("args", {}), dict):
        faults.append("name or args")
    if event["ph"] == "i" and event["s"] not in ("g", "p", "t"):
        faults.append("no scope")
    if event["ph"] == "M" and not isinstance(event["args"].get("name"), str):
        faults.append("no name in args")
    return faults


def _unnested(events: list[dict[str, Any]]) -> list[str]:
    """Complete events of a thread must lie within each other, or apart: a viewer stacks them."""
    faults = []
    threads: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    for of_thread in threads.values():
        ends: list[float] = []
        for event in sorted(of_thread, key=lambda one: (one["ts"], -one["dur"])):
            while ends and ends[-1] <= event["ts"] + NANOSECOND:
                ends.pop()
            if ends and event["ts"] + event["dur"] > ends[-1] + NANOSECOND:
                faults.append(f"overlaps another of its thread: {event}")
            ends.append(event["ts"] + event["dur"])
    return faults


def _unpaired(events: list[dict[str, Any]]) -> list[str]:
    """An end needs a begin of its category, id and name before it; each begins once."""
    begun: dict[tuple[str, str, str], float] = {}
    faults = []
    for event in events:
        if event["ph"] not in ("b", "e"):
            continue
        key = event["cat"], event["id"], event["name"]
        if event["ph"] == "b" and key in begun:
            faults.append(f"begins twice: {event}")
        elif event["ph"] == "b":
            begun[key] = event["ts"]
        elif key not in begun or event["ts"] < begun.pop(key):
            faults.append(f"ends what has not begun: {event}")
    return faults
