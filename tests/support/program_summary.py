"""What random programs show together: shares of the verdicts, and whether they are what was promised. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LEAST_EXACT = 0.75
"""Part of the programs that can be judged which must be exact."""
MOST_UNDESERVED = 0.02
"""Part of the exact ones that may get a warning which they do not deserve."""

ENOUGH = 100
"""Programs from which on shares say something."""

Found = Mapping[str, Any]


def summary_of(found: Sequence[Found]) -> list[str]:
    """Return a table of the verdicts with their causes."""
    kinds = Counter(one["verdict"] for one in found)
    judged = len(found) - kinds["not judged"]
    lines = [f"{len(found)} programs, {judged} judged"]
    for kind in ("exact", "refused", "warned", "silent", "not judged"):
        part = f" ({kinds[kind] / judged:.0%})" if judged and kind != "not judged" else ""
        lines.append(f"{kind}: {kinds[kind]}{part}")
        if kind != "exact":
            lines += _by_cause([one for one in found if one["verdict"] == kind])
    lines.append(f"undeserved: {len(_undeserved(found))} warnings, {len(_refused_without(found))} refusals")
    for one in (*_undeserved(found), *_refused_without(found)):
        lines.append(f"    {one['number']}: {one['undeserved'][0][:240]}")
    return lines


def problems_of(found: Sequence[Found], before: Mapping[str, str] | None = None) -> list[str]:
    """Return what is not as it must be.

    `before` has the programs that an earlier version resumed exactly, the digest of each by its number.
    """
    kinds = Counter(one["verdict"] for one in found)
    judged = len(found) - kinds["not judged"]
    problems = [f"SILENT: {one['number']}: {one['why'][:240]}" for one in found if one["verdict"] == "silent"]
    problems += [
        f"REFUSED WITHOUT A CAUSE: {one['number']}: {one['undeserved'][0][:240]}" for one in _refused_without(found)
    ]
    if judged >= ENOUGH and kinds["exact"] < LEAST_EXACT * judged:
        problems.append(f"TOO FEW EXACT: {kinds['exact']} of {judged}")
    if judged >= ENOUGH and len(_undeserved(found)) > MOST_UNDESERVED * kinds["exact"]:
        problems.append(f"TOO MANY UNDESERVED WARNINGS: {len(_undeserved(found))} of {kinds['exact']} exact ones")
    for one in found:
        was = (before or {}).get(str(one["number"]))
        if was is not None and was != one["digest"]:
            problems.append(f"ANOTHER PROGRAM: {one['number']}: the list of exact ones is of an earlier generator")
        elif was is not None and one["verdict"] not in ("exact", "not judged"):
            problems.append(f"NO LONGER EXACT: {one['number']}: {one['verdict']}: {one['why'][:240]}")
    return problems


def exact_of(found: Iterable[Found]) -> dict[str, str]:
    """Return the programs that were resumed exactly, the digest of each by its number."""
    return {str(one["number"]): one["digest"] for one in found if one["verdict"] == "exact"}


def _undeserved(found: Iterable[Found]) -> list[Found]:
    return [one for one in found if one["verdict"] == "exact" and one["undeserved"]]


def _refused_without(found: Iterable[Found]) -> list[Found]:
    return [one for one in found if one["verdict"] == "refused" and one["undeserved"]]


def _by_cause(found: Iterable[Found]) -> list[str]:
    """Return a line for each cause; a program with several has its number in several."""
    numbers: dict[str, list[int]] = {}
    for one in found:
        is_mark = one["why"] == ", ".join(one.get("marks", ()))
        names = one["marks"] if is_mark else [one["why"].partition(":")[0]]
        for name in names:
            numbers.setdefault(name, []).append(one["number"])
    ordered = sorted(numbers.items(), key=lambda pair: (-len(pair[1]), pair[0]))
    return [f"    {len(which)} {why[:160]}: {', '.join(map(str, which[:8]))}" for why, which in ordered]
