"""The report of a tree as one page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ms_recover.model.inventory import Inventory
from ms_recover.model.plan import Plan, RankVerdict
from ms_recover.model.report import Report
from ms_recover.model.texts import list_some, many, name_ranks
from ms_recover.model.topology import UNKNOWN, Topology
from ms_recover.model.verdicts import Answer, Verdict
from ms_recover.reporting.page.data import report_data
from ms_recover.reporting.page.losses import audit_content, history_content
from ms_recover.reporting.page.next_step import LOOKS, next_step
from ms_recover.reporting.page.templates import json_block, render_page
from ms_recover.reporting.pieces import lost_block_row, lost_blocks
from ms_recover.reporting.plan_text import by_reason, headline_lines, why_text
from ms_recover.reporting.rank_map import UNKNOWN_HOST
from ms_recover.reporting.tables import size_text

MOST_ROWS = 100
"""Rows of a table; the search has the other ranks."""
_MOST_HOSTS = 3
_FEW_ROWS = 32
_IN_WORDS: Mapping[Answer, str] = {"UNHEALTHY": "only by choice", "BLOCKED": "once the way is clear"}
_NUMBER = re.compile("[0-9]+(?:, [0-9]+)*")


def report_html(report: Report, *, made: str, version: str, refused: bool = False) -> str:
    """Return the page.

    Parameters
    ----------
    made : str
        When it was made, as a reader takes it.
    version : str
        Of ms_recover.
    refused : bool
        The plan goes back behind a newer step, which ``--require-newest`` forbids.
    """
    plan, topology = report.plan, report.topology
    first, *others = headline_lines(plan, refused)
    answer: Answer = "REFUSED" if refused else plan.answer
    return render_page(
        __package__ or "",
        "report.html",
        styles=("report.css",),
        scripts=("facts.js", "drawing.js", "report.js"),
        data=json_block(report_data(report)),
        root=plan.root,
        made=made,
        version=version,
        kind=LOOKS[answer],
        word=answer,
        headline=first.removeprefix(answer).lstrip(": "),
        more_lines=[line.strip() for line in others],
        world=_world(plan),
        tiles=_tiles(report, refused),
        next=next_step(report, answer),
        warnings=plan.warnings,
        hints=plan.hints,
        hosts=topology.summary(plan.world_size) if topology is not None else "",
        steps=_step_rows(report),
        why_not=by_reason((str(one.step), one.reason) for one in plan.rejected_steps),
        quick=report.quick,
        steps_left_out=report.steps_left_out,
        **_plan_content(plan, report.inventory, topology),
        audit=audit_content(report.audit),
        history=history_content(report.history, report.steps),
        missing=report.missing,
    )


def _world(plan: Plan) -> str:
    by = "" if plan.world_size_from == "as given" else "by "
    least = "at least " if plan.world_size_guessed else ""
    return f"{least}{many(plan.world_size, 'rank')}, {by}{plan.world_size_from}"


def _tiles(report: Report, refused: bool) -> list[dict[str, object]]:
    """Return the answers that an operator needs first."""
    plan = report.plan
    return [
        {"name": "What is lost", "text": _lost(plan), "lines": _lost_lines(report)},
        {"name": "Recoverable", "text": _recoverable(plan, refused), "lines": _how_lines(plan)},
        {"name": "At step", "text": str(plan.step) if plan.step is not None else "none", "lines": _step_lines(plan)},
    ]


def _lost(plan: Plan) -> str:
    gone = [one for one in plan.ranks if one.state != "ok"]
    if gone:
        return f"{len(gone):,} slice{'s' * (len(gone) > 1)} of {plan.world_size:,}"
    known = " that is known" if plan.world_size_guessed else ""
    return "the newest step" if plan.given_up and plan.step is not None else f"nothing{known}"


def _lost_lines(report: Report) -> list[str]:
    plan, topology = report.plan, report.topology
    lines = []
    for state in ("lost", "missing", "damaged", "unreadable"):
        ranks = [one.rank for one in plan.ranks if one.state == state]
        if ranks:
            lines.append(f"{state}: {name_ranks(ranks)}")
    hosts = _worst_hosts([one.rank for one in plan.ranks if one.state != "ok"], topology)
    lines += [f"on {hosts}"] if hosts else []
    for one in plan.given_up[:1]:
        if one.ranks and one.step != plan.considered:
            lines.append(f"step {one.step}: {name_ranks(one.ranks)}")
            hosts = _worst_hosts(one.ranks, topology)
            lines += [f"on {hosts}"] if hosts else []
    return lines or ["Every rank has its slice."]


def _worst_hosts(ranks: Iterable[int], topology: Topology | None) -> str:
    if topology is None:
        return ""
    sizes = Counter(topology.domains[0])
    hit = Counter(map(topology.host_of, ranks))
    lost = hit.pop(UNKNOWN, 0)
    if len(hit) > _MOST_HOSTS:
        whole = sum(count == sizes[host] for host, count in hit.items())
        found = f"{len(hit):,} hosts, {f'{whole:,}' if whole else 'none'} of them wholly: {list_some(hit, _MOST_HOSTS)}"
        return found + (f"; and {lost:,} on hosts unknown" if lost else "")
    texts = [
        f"{host} (all {count})" if count == sizes[host] > 1 else f"{host} ({count} of {sizes[host]})"
        for host, count in hit.items()
    ]
    texts += [f"hosts unknown ({lost})"] if lost else []
    return list_some(texts, _MOST_HOSTS + 1)


def _recoverable(plan: Plan, refused: bool) -> str:
    if refused:
        return "refused"
    if plan.disagreements:
        return "undecided"
    if plan.answer in _IN_WORDS:
        return _IN_WORDS[plan.answer]
    if plan.step is None:
        return "no"
    if plan.answer == "UNCERTAIN" and not plan.given_up:
        return "as far as is known"
    return "yes" if plan.changes_anything or plan.given_up else "nothing to do"


def _how_lines(plan: Plan) -> list[str]:
    bad = [one.rank for one in plan.ranks if one.verdict == "unrecoverable"]
    if bad:
        others = sum(one.verdict in ("copy", "compose") for one in plan.ranks)
        have = [f"{others:,} others that are lost have one"] if others else []
        return [f"no source for {name_ranks(bad)}", *have]
    lines = []
    for kind, verb in (("copy", "copied from a replica"), ("compose", "put together from several ranks")):
        count = sum(part.verdict == kind for one in plan.ranks for part in one.files)
        if count:
            lines.append(f"{count:,} slice{'s' * (count > 1)} {verb}")
    if plan.bytes_to_copy:
        lines.append(f"{size_text(plan.bytes_to_copy)} to read and write")
    small = len(plan.group_files) + len(plan.strategy_files) + len(plan.meta_files) + len(plan.documents)
    if small:
        lines.append(f"{small:,} small file{'s' * (small > 1)} to write")
    return lines or ["Every rank keeps its slice."]


def _step_lines(plan: Plan) -> list[str]:
    if plan.step is None:
        return [f"the newest, {plan.considered}, is shown"]
    if not plan.given_up:
        return ["the newest"]
    newer = [str(one.step) for one in plan.given_up]
    return [f"given up: {list_some(newer, 3)}", "reasons below, under Steps"]


def _step_rows(report: Report) -> list[dict[str, object]]:
    """Return a row a step: counts of what is there, and whether it can be had."""
    rows = []
    for judged in report.steps:
        counts = Counter("sound" if one.state == "ok" else one.state for one in judged.ranks)
        verdicts = Counter(one.verdict for one in judged.ranks)
        rows.append(
            {
                "step": str(judged.step),
                "planned": judged.step == report.plan.step,
                "answer": _answer(judged.recoverable, verdicts),
                "counts": ", ".join(f"{count:,} {state}" for state, count in counts.items()),
            }
        )
    return rows


def _answer(recoverable: bool, verdicts: Mapping[Verdict, int]) -> str:
    if not recoverable:
        return f"no: {verdicts['unrecoverable']:,} without a source" if verdicts["unrecoverable"] else "no"
    work = verdicts["copy"] + verdicts["compose"]
    return f"yes: {work:,} from others" if work else "whole"


def _plan_content(plan: Plan, inventory: Inventory, topology: Topology | None) -> dict[str, Any]:
    """Return the tables of the plan, and of files that are damaged."""
    changed = [one for one in plan.ranks if one.verdict != "keep"]
    regions = [lost_block_row(one) for one in lost_blocks(changed)]
    writes = [(write.target, "rank list") for write in plan.group_files]
    writes += [(write.target, f"strategy file, from {write.source}") for write in plan.strategy_files]
    writes += [(write.target, f"meta.json: {write.reason}") for write in plan.meta_files]
    writes += [(write.target, "; ".join([write.reason, *write.sources])) for write in plan.documents]
    writes += [(one.set_aside, f"{one.target}, kept") for one in plan.actions if one.set_aside is not None]
    writes += [(one.path, f"set aside: {one.reason}") for one in plan.set_aside]
    damaged = [(file.rank, file.path, file.problem) for file in inventory.slices if file.problem is not None]
    damaged += [(rank, note.path, note.reason) for rank, note in inventory.denied]
    return {
        "damaged": damaged[:MOST_ROWS],
        "damaged_more": max(len(damaged) - MOST_ROWS, 0),
        "plan_rows": _each_reason_once(
            (row for one in changed[:MOST_ROWS] for row in _rank_rows(one, topology)), large=len(changed) > _FEW_ROWS
        ),
        "plan_more": max(len(changed) - MOST_ROWS, 0),
        "kept": len(plan.ranks) - len(changed),
        "regions": regions[:MOST_ROWS],
        "regions_more": max(len(regions) - MOST_ROWS, 0),
        "writes": writes[:MOST_ROWS],
        "writes_more": max(len(writes) - MOST_ROWS, 0),
        "notes": plan.notes[:MOST_ROWS],
        "notes_more": max(len(plan.notes) - MOST_ROWS, 0),
    }


def _each_reason_once(rows: Iterable[dict[str, object]], *, large: bool) -> list[dict[str, object]]:
    """Return rows of which those with the reason of an earlier one name that one's rank.

    In a large table reasons are the same if they differ in numbers alone, of ranks and groups: the map has each.
    """
    first: dict[str, tuple[object, object]] = {}
    found = []
    for row in rows:
        why = str(row["why"])
        rank, known = first.setdefault(_NUMBER.sub("0", why) if large else why, (row["rank"], why))
        own = "" if why == known else ", for its own ranks"
        found.append(row if rank == row["rank"] else {**row, "why": f"as rank {rank}{own}"})
    return found


def _rank_rows(one: RankVerdict, topology: Topology | None) -> list[dict[str, object]]:
    host = "" if topology is None else topology.host_of(one.rank) or UNKNOWN_HOST
    return [
        {
            "rank": one.rank,
            "host": host,
            "state": part.state,
            "verdict": part.verdict,
            "path": part.path or "",
            "source": part.source or "",
            "evidence": part.evidence or "",
            "why": why_text(part),
        }
        for part in one.files
        if part.verdict != "keep"
    ]
