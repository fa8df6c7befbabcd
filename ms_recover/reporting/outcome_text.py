"""The outcomes of a plan, of a copy and of a seal as text for an operator."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence

from ms_recover.model.backup import BackupOutcome
from ms_recover.model.outcome import Outcome
from ms_recover.model.rank_local import RESUME_CHOICE, borrowed_text, own_values
from ms_recover.model.sealing import SealedStep
from ms_recover.model.texts import list_some, many
from ms_recover.reporting.figures import work_line
from ms_recover.reporting.plan_text import given_up_lines, going_back, outvoted_lines
from ms_recover.reporting.tables import one_line, page, section, size_text

_MOST_NAMED = 8


def outcome_text(
    outcome: Outcome, width: int | None, seconds: float | None = None, *, warnings: Sequence[str] = ()
) -> str:
    """Return the outcome of a plan: the answer first, then the plan's warnings, and each action.

    Last come the bytes written in so many seconds.
    """
    back = "" if outcome.partial else going_back(outcome.given_up, outcome.step)
    lines = [outcome.root, f"{_headline(outcome)}{back}"]
    borrowed = _borrowed_lines(outcome)
    lines += [line for line in (f"WARNING: {warning}" for warning in warnings) if line not in borrowed]
    rows = [
        (str(result.rank), result.status, f"{result.source} -> {result.target}", result.error or result.digest or "")
        for result in outcome.results
    ]
    dropped = [(str(result.rank), text) for result in outcome.results for text in result.dropped]
    lines += section("", ("rank", "status", "slice", "digest or error"), rows, width)
    title = "Sources that proved damaged and were passed over; run the command again to repair them"
    lines += section(title, ("for rank", "source"), dropped, width, right=("for rank",))
    lines += outvoted_lines(((one.rank, one.target, one.set_aside) for one in outcome.results), width)
    if any(one.set_aside is not None for one in outcome.results):
        command = shlex.join(["recover-ckpt", "plan", outcome.root])
        lines.append(f"{command} names the commands that take them back or remove them")
    lines += given_up_lines(outcome.given_up, None if outcome.partial else outcome.step, width)
    if outcome.set_aside:
        lines += ["", f"Slices that were given up, renamed: {list_some(outcome.set_aside, _MOST_NAMED)}"]
    if outcome.group_files:
        lines += ["", f"Rank lists written again: {', '.join(outcome.group_files)}"]
    if outcome.strategy_files:
        written = list_some(outcome.strategy_files, _MOST_NAMED)
        lines += ["", f"Strategy files written again: {written}"]
    if outcome.documents:
        lines += ["", f"Documents of MindFormers written again: {', '.join(outcome.documents)}"]
    if outcome.meta_files:
        written = list_some(outcome.meta_files, _MOST_NAMED)
        lines += ["", f"{written}: MindFormers resumes from step {outcome.step}"]
    lines += borrowed
    lines += [f"error: {error}" for error in outcome.errors]
    if seconds is not None and outcome.results:
        total = sum(result.bytes for result in outcome.results)
        lines += ["", work_line("Written", total, seconds)]
    return page(lines)


def _borrowed_lines(outcome: Outcome) -> list[str]:
    lent = [one for one in outcome.results if one.borrowed and one.status in ("copied", "composed", "already there")]
    texts = [
        f"rank {one.rank}: {borrowed_text(one.borrowed, [] if one.source_rank is None else [one.source_rank])}"
        for one in lent[:_MOST_NAMED]
    ]
    texts += [f"and {len(lent) - _MOST_NAMED} more ranks likewise"] if len(lent) > _MOST_NAMED else []
    if any(own_values(one.borrowed) for one in lent):
        texts.append(RESUME_CHOICE)
    return ["", *(f"WARNING: {text}" for text in texts)] if texts else []


def _headline(outcome: Outcome) -> str:
    failed = sum(result.status == "failed" for result in outcome.results)
    written = [result for result in outcome.results if result.status in ("copied", "composed")]
    if outcome.errors and not failed:
        count = len(outcome.errors)
        return (
            f"FAILED: {_held(outcome)}, but {count} thing{'s' * (count > 1)} beside them failed; "
            "remove the causes named below and run the command again"
        )
    if failed:
        return (
            f"FAILED: {failed} of {many(len(outcome.results), 'slice')} could not be recovered, the others are whole; "
            "remove the causes named below and run the command again"
        )
    if outcome.partial:
        return (
            f"PARTIAL: the surviving parameters of {many(len(outcome.results), 'slice')} of step {outcome.step} are "
            f"written beside {'it; it is not whole' if len(outcome.results) == 1 else 'them; none of them is whole'}"
        )
    kept, renamed = sum(one.set_aside is not None for one in outcome.results), len(outcome.set_aside)
    aside = f"; {kept} that {'were' if kept > 1 else 'was'} replaced set aside" if kept else ""
    aside += f"; {renamed} slice{'s' * (renamed > 1)} of steps that were given up set aside" if renamed else ""
    if not written:
        return f"DONE: every rank already had its slice of step {outcome.step}{aside}"
    total = size_text(sum(result.bytes for result in written))
    how = " and ".join(f"{count} {status}" for status, count in Counter(one.status for one in written).items())
    read_back = ", each read back and compared" if outcome.verified else ""
    return f"DONE: every rank has its slice of step {outcome.step}; {how} ({total}){read_back}{aside}"


def _held(outcome: Outcome) -> str:
    parts = f"the surviving parameters of {many(len(outcome.results), 'slice')} of step {outcome.step} are written"
    return parts if outcome.partial else f"every rank has its slice of step {outcome.step}"


def backup_text(outcome: BackupOutcome, width: int | None) -> str:
    """Return what was copied, or with a dry run would be, and what to do with it."""
    counted = f"{outcome.files} files, {outcome.objects} different contents, {size_text(outcome.bytes)}: "
    lines = [f"step {outcome.step} of {outcome.root} is in {outcome.url}", f"{counted}{_sent(outcome)}"]
    if outcome.dry_run:
        lines = [f"step {outcome.step} of {outcome.root} can go to {outcome.url}", f"{counted}{_to_send(outcome)}"]
    else:
        lines.append(f"bring it back with: {shlex.join(['recover-ckpt', 'apply', 'ROOT', '--from', outcome.url])}")
    title = "Slices that do not hold what their manifests say: their bytes came from replicas"
    lines += section(title, ("slice", "why"), [(one.path, one.reason) for one in outcome.passed_over], width)
    if outcome.passed_over:
        lines.append(f"repair them with: {shlex.join(['recover-ckpt', 'apply', outcome.root])}")
    return page(lines)


def _sent(outcome: BackupOutcome) -> str:
    sent = f"{outcome.uploaded} sent, {size_text(outcome.uploaded_bytes)}" if outcome.uploaded else "all were there"
    if not outcome.verified:
        return f"{sent}; not read back"
    if outcome.read_back == outcome.objects:
        return f"{sent}; all read back"
    return f"{sent}; read back" if outcome.uploaded else f"{sent}; compared by size, --verify reads them"


def _to_send(outcome: BackupOutcome) -> str:
    if not outcome.uploaded:
        return "all are there, nothing would be sent"
    return f"{outcome.uploaded} would be sent, {size_text(outcome.uploaded_bytes)}; nothing was written"


def sealed_line(found: SealedStep, when: str) -> str:
    """Return the line about a step that was sealed at a time, which is given as text."""
    line = (
        f"{when} step {found.step}: {len(found.sealed)} manifests written "
        f"({size_text(found.bytes)} read in {found.seconds:.1f} s)"
    )
    if found.wrong:
        reasons = [f"rank {one.rank} {one.status}: {one.path}: {one.reason}" for one in found.wrong]
        line += f"; {len(found.wrong)} slices are not sound and got none: {list_some(reasons, separator='; ')}"
    return one_line(line)
