"""The sections of a report about what losses would cost, and about the run's history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ms_recover.model.audit import Audit, BlockClass, LevelAudit, Loss
from ms_recover.model.history import History
from ms_recover.model.report import JudgedStep
from ms_recover.model.texts import list_some, ranks_text
from ms_recover.model.topology import Topology
from ms_recover.reporting.tables import size_text

_MOST_ROWS = 50
_MOST_STEPS = 200
_MOST_NAMED = 8


def audit_content(audit: Audit | None) -> dict[str, Any] | None:
    """Return the tables about losses; None without an audit."""
    if audit is None:
        return None
    losses = [loss for level in audit.levels for loss in level.fatal]
    losses += [loss for loss in (*audit.pairs, *audit.chosen) if loss.fatal]
    older = [loss for level in audit.levels for loss in level.singles if not loss.fatal and loss.step != audit.step]
    return {
        "headline": audit.headline,
        "step": str(audit.step) if audit.step is not None else "",
        "evidence": audit.evidence,
        "source": audit.topology.source,
        "hosts_known": audit.hosts_known,
        "levels": [_level(level) for level in audit.levels],
        "losses": [_loss(loss) for loss in [*losses, *older][:_MOST_ROWS]],
        "losses_more": max(len(losses) + len(older) - _MOST_ROWS, 0),
        "blocks": [_block(one) for one in audit.blocks[:_MOST_ROWS]],
        "single": "" if not audit.single_copy_bytes else size_text(audit.single_copy_bytes),
        "findings": [{"text": one.text, "mend": one.mend, "places": _places(one.topology)} for one in audit.findings],
    }


def _level(level: LevelAudit) -> dict[str, object]:
    worst = [loss for loss in level.singles if not loss.fatal]
    most = max((loss.bytes for loss in worst), default=0)
    slowest = max((loss.seconds for loss in worst if loss.seconds is not None), default=None)
    return {
        "name": level.name,
        "domains": f"{len(level.domains):,}",
        "survived": "none" if not level.survived else f"any {level.survived:,}",
        "bad": not level.survived,
        "smallest": _smallest(level),
        "minimal": "; ".join(" + ".join(names) for names in level.minimal[:3]),
        "probability": ", ".join(
            f"{one.count} lost: {_share(one.fatal, one.possible)}" for one in level.losses if one.fatal is not None
        ),
        "cost": (size_text(most) if most else "") + (f", {slowest:,.0f} s" if slowest else ""),
    }


def _smallest(level: LevelAudit) -> str:
    if level.smallest is None:
        return "no loss is fatal" if level.losses and all(one.survived for one in level.losses) else "not known"
    count = f" ({level.smallest_count:,} such)" if level.smallest_count is not None else ""
    return f"{level.smallest:,}{count}"


def _share(fatal: int, possible: int) -> str:
    if not fatal:
        return "0"
    share = fatal / possible
    return f"{fatal:,} of {possible:,} ({share:.2%})" if share >= 0.0001 else f"{fatal:,} of {possible:,}"


def _loss(loss: Loss) -> dict[str, object]:
    return {
        "level": loss.level,
        "domains": " + ".join(loss.domains),
        "ranks": _ranks(loss.ranks),
        "step": "fatal" if loss.fatal else f"back to {loss.step}",
        "fatal": loss.fatal,
        "why": loss.reason,
    }


def _block(one: BlockClass) -> dict[str, object]:
    names = list_some(one.names, 3) if one.names else "whole slices"
    more = f" and {one.parameters - len(one.names):,} more" if one.parameters > len(one.names) > 0 else ""
    return {
        "names": names + more,
        "stage": "" if one.stage is None else one.stage,
        "blocks": f"{one.blocks:,}",
        "copies": _span(one.copies),
        "hosts": _span(one.hosts),
        "bytes": "" if one.bytes is None else size_text(one.bytes),
        "single": size_text(one.single_copy_bytes) if one.single_copy_bytes else "",
        "weak": one.copies[0] < 2,
        "source": one.source,
    }


def _span(ends: tuple[int, int]) -> str:
    return f"{ends[0]:,}" if ends[0] == ends[1] else f"{ends[0]:,} to {ends[1]:,}"


def _places(topology: Topology | None) -> list[tuple[str, str]]:
    """Return the hosts of a placement with their ranks."""
    if topology is None:
        return []
    hosts: dict[str, list[int]] = {}
    for rank, host in enumerate(topology.domains[0]):
        hosts.setdefault(host, []).append(rank)
    return [(host, _ranks(tuple(ranks))) for host, ranks in list(hosts.items())[:_MOST_ROWS]]


def _clean_lines(history: History, judged: Sequence[JudgedStep]) -> list[str]:
    """Return in words which step is the last clean one that every rank can have; others were clean, and are gone."""
    if history.clean is None:
        return [f"No clean step: {history.clean_reason}"]
    gone = {one.step for one in judged if not one.recoverable}
    clean = [one.step for one in reversed(history.steps) if one.state == "clean"]
    had = next((step for step in clean if step not in gone), None)
    newest = history.newest
    lost = [step for step in clean[: clean.index(had) if had is not None else None] if step in gone]
    note = f"Replicas agreed at {list_some(lost, 3)} as well, which not every rank can have." if lost else ""
    if had is None:
        return [f"No clean step can be had. {note}"]
    if had == newest:
        return [f"Last clean step: {had}, the newest."]
    advice = "recover-ckpt plan --clean takes the clean one"
    return [f"Last clean step that every rank can have: {had}; the newest is {newest}: {advice}. {note}".rstrip()]


def history_content(history: History | None, judged: Sequence[JudgedStep] = ()) -> dict[str, Any] | None:
    """Return the tables about the history; None without one. Steps that were judged are clean if they can be had."""
    if history is None:
        return None
    steps = history.steps[::-1]
    return {
        "wrong": not history.ok,
        "clean_lines": _clean_lines(history, judged),
        "steps": [(str(one.step), one.state, one.reason) for one in steps[:_MOST_STEPS]],
        "steps_more": max(len(steps) - _MOST_STEPS, 0),
        "disagreements": [
            {
                "parameter": one.parameter,
                "first": str(one.first),
                "last": str(one.last),
                "agreed": str(one.agreed_until) if one.agreed_until is not None else "never seen",
                "who": f"rank {_ranks(one.outvoted)}" if one.outvoted else "a tie",
                "sides": " against ".join(_ranks(side) for side in one.sides),
            }
            for one in history.disagreements[:_MOST_ROWS]
        ],
        "disagreements_more": max(len(history.disagreements) - _MOST_ROWS, 0),
        "values": [
            (one.parameter, one.kind, f"{one.first} to {one.last}", _ranks(one.ranks))
            for one in history.values[:_MOST_ROWS]
        ],
        "stopped": [
            (one.parameter, str(one.since), f"{one.steps:,}", _ranks(one.ranks)) for one in history.stopped[:_MOST_ROWS]
        ],
        "notes": history.notes,
    }


def _ranks(ranks: tuple[int, ...]) -> str:
    pieces = ranks_text(ranks).split(", ")
    return ", ".join(pieces[:_MOST_NAMED]) + (f" and more ({len(ranks):,})" if len(pieces) > _MOST_NAMED else "")
