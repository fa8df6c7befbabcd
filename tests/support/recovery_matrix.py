"""The recovery matrix: one row a kind of damage and place, one column a kind of evidence.

docs/recovery-matrix.csv holds the rows, which the fault campaign writes and compares. docs/recovery-matrix.md shows
figures of these rows between two markers; they are counted from the CSV, so the page can be checked without a campaign.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
TABLE = DOCS / "recovery-matrix.csv"
PAGE = DOCS / "recovery-matrix.md"

REPAIRED = "repaired"
REPLACED = "recovered from another replica"
COMPOSED = "recovered from parts of several slices"
FELL_BACK = "fell back to older step"
UNHARMED = "unharmed"
UNDETECTED = "undetected"
NOT_HERE = "n/a"
RECOVERED = (REPAIRED, REPLACED, COMPOSED)
MEANINGS = {
    REPAIRED: "a peer gave the rank its slice of the newest step back",
    REPLACED: "the damage was found; the damaged and the lost slice were copied from an intact one",
    COMPOSED: "the slice was composed of parts that layouts and manifests prove",
    UNHARMED: "the bytes of the newest step were right, and were kept or used",
    FELL_BACK: "the newest step cannot be proven; every rank has its slice of the step before",
    "refused (exit 1)": "nothing was recovered: reading or writing failed",
    "refused (exit 3)": "nothing was recovered: an input is missing or malformed",
    "refused (exit 4)": "nothing was recovered: some slice has no source",
    "refused (exit 5)": "nothing was recovered: replicas differ, and nothing settles it",
    UNDETECTED: "wrong bytes were kept or copied; the reasons are below",
}

EVIDENCES = ("saved with manifests", "sealed afterwards", "no manifests")
HEAD = ("place", "family", "kind", *EVIDENCES, "why undetected")
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of damage at one place.

    Parameters
    ----------
    place : str
        Title of the place, such as "The only source of a lost rank is struck".
    family : str
        Title of the family of damage.
    kind : str
        Name of the damage.
    outcomes : tuple of str
        One for each of `EVIDENCES`.
    why : str
        Reason why nothing can detect it; empty where no outcome is "undetected".
    """

    place: str
    family: str
    kind: str
    outcomes: tuple[str, ...]
    why: str = ""


def to_csv(rows: Iterable[Row]) -> str:
    """Return the rows as CSV, with a head."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(HEAD)
    writer.writerows((row.place, row.family, row.kind, *row.outcomes, row.why) for row in rows)
    return text.getvalue()


def from_csv(text: str) -> list[Row]:
    """Return the rows of a CSV that `to_csv` made."""
    head, *lines = csv.reader(io.StringIO(text))
    assert tuple(head) == HEAD, head
    return [
        Row(place=place, family=family, kind=kind, outcomes=tuple(outcomes), why=why)
        for place, family, kind, *outcomes, why in lines
    ]


def cells_with(outcomes: Collection[str], rows: Iterable[Row]) -> set[tuple[str, str, str]]:
    """Return place, kind and evidence of the cells with one of these outcomes."""
    return {
        (row.place, row.kind, evidence)
        for row in rows
        for evidence, found in zip(EVIDENCES, row.outcomes, strict=True)
        if found in outcomes
    }


def losses(before: Collection[Row], now: Collection[Row]) -> set[tuple[str, str, str]]:
    """Return the cells that were recovered before and are not now, or repaired before and otherwise recovered now."""
    gone = cells_with(RECOVERED, before) - cells_with(RECOVERED, now)
    return gone | (cells_with([REPAIRED], before) - cells_with([REPAIRED], now))


def figures(rows: Iterable[Row]) -> str:
    """Return the generated part of the page: how often each outcome occurs, and why some damage is not detected."""
    rows = list(rows)
    counts = [Counter(row.outcomes[column] for row in rows) for column in range(len(EVIDENCES))]
    happened = set().union(*counts) - {NOT_HERE}
    outcomes = [*MEANINGS, *sorted(happened - set(MEANINGS))]
    cases = [sum(count.values()) - count[NOT_HERE] for count in counts]
    lines = [f"| outcome | meaning | {' | '.join(EVIDENCES)} |", "| --- | --- | --- | --- | --- |"]
    lines += [_line(outcome, MEANINGS.get(outcome, ""), [count[outcome] for count in counts]) for outcome in outcomes]
    lines += [_line("all cases", "", cases), "", "Nothing can detect these cases:", ""]
    reasons = Counter({row.why: 0 for row in rows if row.why})
    for row in rows:
        reasons[row.why] += row.outcomes.count(UNDETECTED)
    lines += [f"- {count}: {reason}" for reason, count in reasons.items() if count]
    return "\n".join(lines)


def _line(outcome: str, meaning: str, counts: Iterable[int]) -> str:
    return f"| {outcome} | {meaning} | {' | '.join(map(str, counts))} |"


def with_figures(page: str, rows: Iterable[Row]) -> str:
    """Return the page with its generated part made anew."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{figures(rows)}\n{END}{after}"
