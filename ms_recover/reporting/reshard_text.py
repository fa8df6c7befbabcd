"""A reshard as text for an operator: its plan, and what became of it."""

from __future__ import annotations

from collections import Counter

from ms_recover.model.reshard import ReshardOutcome, ReshardPlan
from ms_recover.model.texts import list_some, many, name_some
from ms_recover.planning.reshard.actions import bytes_read
from ms_recover.reporting.figures import work_line
from ms_recover.reporting.pieces import region_text
from ms_recover.reporting.tables import first_rows, note_lines, page, section, size_text

_MOST_ROWS = 32


def reshard_plan_text(plan: ReshardPlan, width: int | None) -> str:
    """Return a plan: the answer first, then what is missing, who is read, and what is written."""
    lines = [f"{plan.root}: {many(plan.world_size, 'rank')}, step {plan.step}", _answer(plan)]
    lines += [f"WARNING: {text}" for text in _warnings(plan.left_out, plan.every_warning)]
    lines += [f"DISPUTED: {text}" for text in plan.disagreements]
    missing = [(one.parameter, region_text(one.region), size_text(one.bytes), one.reason) for one in plan.missing]
    lines += section(
        "What nobody holds",
        ("parameter", "region", "bytes", "why"),
        first_rows(missing, _MOST_ROWS, 1),
        width,
        right=("bytes",),
    )
    reads = bytes_read(plan)
    sources = [
        (str(plan.sources[number].replica.rank), plan.sources[number].replica.path, size_text(count))
        for number, count in sorted(reads.items())
    ]
    title = f"Read from {len(sources)} of {len(plan.sources)} sound slices"
    lines += section(
        title, ("rank", "slice", "bytes"), first_rows(sources, _MOST_ROWS, 1), width, right=("rank", "bytes")
    )
    files = [
        (str(file.rank), file.target, str(len(plan.parts_of(file))), size_text(plan.bytes_of(file)))
        for file in plan.files[:_MOST_ROWS]
    ]
    title = f"Written as {plan.form}"
    lines += section(
        title,
        ("rank", "file", "parameters", "bytes"),
        first_rows(files, _MOST_ROWS, 1, len(plan.files)),
        width,
        right=("rank", "parameters", "bytes"),
    )
    casts = plan.casts
    if casts:
        how = f"Cast to {next(iter(casts.values()))}, rounded to the nearest: {name_some(list(casts))}"
        lines += ["", f"{how}. Optimizer states and single values keep their type"]
    lines += note_lines(plan.notes, width)
    return page(lines)


def reshard_outcome_text(outcome: ReshardOutcome, width: int | None, seconds: float | None = None) -> str:
    """Return what became of each file, the answer first."""
    lines = [outcome.output, _headline(outcome)]
    lines += [f"WARNING: {text}" for text in _warnings(outcome.left_out, outcome.warnings)]
    rows = [
        (str(one.rank), one.status, one.target, one.error or one.digest or "")
        for one in sorted(outcome.results, key=lambda one: one.status != "failed")
    ]
    lines += section("", ("rank", "status", "file", "digest or error"), first_rows(rows, _MOST_ROWS, 2), width)
    dropped = [(str(one.rank), text) for one in outcome.results for text in one.dropped]
    title = "Sources that proved damaged and were passed over"
    lines += section(title, ("for rank", "source"), first_rows(dropped, _MOST_ROWS, 1), width, right=("for rank",))
    if outcome.documents:
        lines += ["", f"Beside them: {list_some(outcome.documents)}"]
    if outcome.compared:
        text = f"{outcome.compared:,} regions, {size_text(outcome.compared_bytes)}"
        lines += ["", f"Cut back in memory and compared with the source: {text}"]
    lines += [f"error: {error}" for error in outcome.errors]
    if seconds is not None and outcome.results and not outcome.dry_run:
        lines += ["", work_line("Written", sum(one.bytes for one in outcome.results), seconds)]
    return page(lines)


def _answer(plan: ReshardPlan) -> str:
    total = size_text(sum(plan.bytes_of(file) for file in plan.files))
    what = "one checkpoint" if plan.full else many(plan.ranks, "rank")
    files = "1 file" if len(plan.files) == 1 else f"{len(plan.files)} files"
    if plan.complete:
        return f"RESHARDABLE to {what}: {files}, {total}"
    gone = sum(one.bytes for one in plan.missing)
    names = list(dict.fromkeys(one.parameter for one in plan.missing))
    if not names:
        return f"UNRECOVERABLE as {what}: replicas differ, and nothing settles which are right"
    named = name_some(names)
    how = "--format safetensors --partial" if plan.form == "mindformers" else "--partial"
    return f"UNRECOVERABLE as {what}: of {named} nobody holds all ({size_text(gone)}); {how} writes the rest"


def _headline(outcome: ReshardOutcome) -> str:
    failed = sum(one.status == "failed" for one in outcome.results)
    if failed or outcome.errors:
        return (
            f"FAILED: {failed} of {len(outcome.results)} files could not be written; remove the causes named below and "
            "run the command again"
        )
    if outcome.dry_run:
        planned = [one.bytes for one in outcome.results if one.status == "planned"]
        there = len(outcome.results) - len(planned)
        more = f", {there} are there" if there else ""
        documents = f" and {len(outcome.documents)} documents" if outcome.documents else ""
        files = "1 file" if len(planned) == 1 else f"{len(planned)} files"
        how = f"{files}{documents} would be written, {size_text(sum(planned))}{more}"
        return f"DRY RUN: step {outcome.step} can be cut anew{_in_part(outcome)}: {how}; nothing was written"
    counts = Counter(one.status for one in outcome.results)
    how = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    if outcome.partial:
        return f"PARTIAL: what is left of step {outcome.step} is written ({how}); files marked .partial are not whole"
    return f"DONE: step {outcome.step} is cut anew ({how})"


def _in_part(outcome: ReshardOutcome) -> str:
    return " in part" if outcome.partial else ""


def _warnings(left_out: tuple[str, ...], others: tuple[str, ...]) -> list[str]:
    if not left_out:
        return list(others)
    names = name_some(left_out)
    ask = "is the strategy file of each of its stages there?"
    return [f"left out, because the target does not name them: {names}; {ask}", *others]
