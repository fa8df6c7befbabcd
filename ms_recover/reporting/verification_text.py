"""The result of verifying a tree as text for an operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from ms_recover.model.texts import many, name_ranks, ranks_text
from ms_recover.model.verdicts import Evidence
from ms_recover.model.verification import SliceCheck, Verification
from ms_recover.reporting.figures import work_line
from ms_recover.reporting.tables import page, section, table_lines

_COMPARED: tuple[Evidence, ...] = ("manifest", "vote", "layout")


def verification_text(found: Verification, width: int | None, read: int | None = None, seconds: float = 0.0) -> str:
    """Return a verification: the answer first, then wrong slices, then the ranks of each step.

    The last line says how many bytes were `read` in how many `seconds`.
    """
    lines = [found.root, _headline(found)]
    rows = [(str(check.rank), check.status, check.path, check.reason) for check in found.wrong]
    lines += section("", ("rank", "status", "slice", "why"), rows, width)
    if found.disagreements:
        lines += ["", "Ranks that should hold the same slice hold different contents, and no evidence settles it:"]
        lines += [f"  {text}" for text in found.disagreements]
    documents = [(note.path, note.reason) for note in found.documents]
    lines += section(
        "Documents of MindFormers that are wrong; plan and apply write them again", ("path", "why"), documents, width
    )
    states = [(note.path, note.reason) for note in found.states]
    lines += section(
        "State files that are wrong: a resume from there begins random generators and callbacks anew, and says so",
        ("path", "why"),
        states,
        width,
    )
    end = ["", work_line("Read", read, seconds)] if read is not None else []
    return page([*lines, "", *_step_table(found, width), *end])


def _headline(found: Verification) -> str:
    if found.states and not found.wrong and not found.documents:
        count = len(found.states)
        return f"WRONG: {count} state file{'s' * (count > 1)} beside the slices; {_headline(replace(found, states=()))}"
    if found.documents and not found.wrong:
        count = len(found.documents)
        return (
            f"WRONG: {count} document{'s' * (count > 1)} beside the slices; {_headline(replace(found, documents=()))}"
        )
    if found.wrong:
        counts = Counter(check.status for check in found.wrong)
        kinds = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
        return f"WRONG: {len(found.wrong)} of {many(len(found.checks), 'slice')}: {kinds}"
    unproven = _not_compared(found.checks)
    if not unproven:
        return f"SOUND: {_all(len(found.checks))}"
    ranks = name_ranks(sorted({check.rank for check in unproven}))
    if len(unproven) == len(found.checks):
        return (
            f"NOT COMPARED: the structure of {_all(len(unproven))} is sound, and there is no manifest or replica "
            f"to compare their contents with (structure only): {ranks}"
        )
    were = "was" if len(unproven) == 1 else "were"
    return f"SOUND where compared; {many(len(unproven), 'slice')} {were} not compared (structure only): {ranks}"


def _all(count: int) -> str:
    return "the only slice" if count == 1 else f"all {count} slices"


def _not_compared(checks: Iterable[SliceCheck]) -> list[SliceCheck]:
    return [check for check in checks if check.status == "sound" and check.evidence == "structure"]


def _step_table(found: Verification, width: int | None) -> list[str]:
    absent = {one.step: one.ranks for one in found.missing}
    rows = []
    for step in sorted({check.step for check in found.checks} | absent.keys(), reverse=True):
        checks = [check for check in found.checks if check.step == step]
        missing = {check.rank for check in checks if check.status == "missing"} | set(absent.get(step, ()))
        rows.append(
            (
                str(step),
                _sound(checks),
                ranks_text({check.rank for check in _not_compared(checks)}),
                ranks_text({check.rank for check in checks if check.status not in ("sound", "missing")}),
                ranks_text(missing),
            )
        )
    return table_lines(("step", "sound", "structure only", "wrong", "missing"), rows, width)


def _sound(checks: Sequence[SliceCheck]) -> str:
    """Return the ranks with sound slices, by the evidence for them."""
    by = {
        evidence: {check.rank for check in checks if check.status == "sound" and check.evidence == evidence}
        for evidence in _COMPARED
    }
    return "; ".join(f"{ranks_text(ranks)} by {evidence}" for evidence, ranks in by.items() if ranks)
