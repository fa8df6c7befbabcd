"""Plans as versioned JSON: what ``plan --json`` prints and ``apply PLAN`` reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, get_args

from ms_recover.errors import FormatError
from ms_recover.model.action_json import (
    compose_from_json,
    compose_to_json,
    copy_from_json,
    copy_to_json,
    missing_from_json,
    missing_to_json,
)
from ms_recover.model.actions import CopyAction
from ms_recover.model.inventory import Note
from ms_recover.model.json_values import MAX_RANKS, as_kind, choice, count, get, inside, text_or_none
from ms_recover.model.plan import PLAN_VERSION, Action, GroupWrite, Plan, RankVerdict, RejectedStep
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence, RankState, Verdict

_EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)
_STATES: tuple[RankState, ...] = get_args(RankState)
_VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return `plan` as plain JSON values; the same plan gives the same object."""
    return {
        "version": PLAN_VERSION,
        "root": plan.root,
        "world_size": plan.world_size,
        "world_size_from": plan.world_size_from,
        "world_size_guessed": plan.world_size_guessed,
        "step": plan.step.to_json() if plan.step else None,
        "considered": plan.considered.to_json() if plan.considered else None,
        "recoverable": plan.recoverable,
        "run_id": plan.run_id,
        "disagreements": list(plan.disagreements),
        "actions": [
            copy_to_json(action) if isinstance(action, CopyAction) else compose_to_json(action)
            for action in plan.actions
        ],
        "partials": [compose_to_json(action) for action in plan.partials],
        "group_files": [
            {"rank": write.rank, "target": write.target, "restore_ranks": list(write.restore_ranks)}
            for write in plan.group_files
        ],
        "ranks": [
            {
                "rank": verdict.rank,
                "state": verdict.state,
                "verdict": verdict.verdict,
                "reason": verdict.reason,
                "path": verdict.path,
                "source_rank": verdict.source_rank,
                "source": verdict.source,
                "evidence": verdict.evidence,
                "missing": [missing_to_json(region) for region in verdict.missing],
                "bytes": verdict.bytes,
                "missing_share": _share(verdict),
            }
            for verdict in plan.ranks
        ],
        "rejected_steps": [
            {**rejected.step.to_json(), "reason": rejected.reason, "another_run": rejected.another_run}
            for rejected in plan.rejected_steps
        ],
        "warnings": list(plan.warnings),
        "notes": [{"path": note.path, "reason": note.reason} for note in plan.notes],
    }


def plan_from_json(text: str, where: str) -> Plan:
    """Read a plan back.

    Parameters
    ----------
    text : str
        JSON as `plan_to_json` makes it.
    where : str
        Path for error messages.

    Raises
    ------
    FormatError
        When the text is not a plan of this version, or names a path outside its root.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{where} is not JSON ({error}); make a plan with: recover-ckpt plan ROOT -o plan.json"
        ) from None
    if not isinstance(data, dict) or "actions" not in data or "version" not in data:
        raise FormatError(f"{where} is not a recovery plan; make one with: recover-ckpt plan ROOT -o plan.json")
    if data["version"] != PLAN_VERSION:
        raise FormatError(
            f"{where} is a plan of version {data['version']!r}, this tool reads {PLAN_VERSION}: plan again"
        )
    try:
        return _plan(data)
    except (KeyError, TypeError, ValueError) as error:
        detail = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"{where} is not a plan that can be trusted ({detail}): plan again") from None


def _plan(data: Mapping[str, Any]) -> Plan:
    step, considered = data["step"], data["considered"]
    plan = Plan(
        root=get(data, "root", str),
        world_size=count(data, "world_size"),
        world_size_from=get(data, "world_size_from", str),
        step=_step(as_kind(step, dict)) if step is not None else None,
        actions=tuple(_action(as_kind(item, dict)) for item in get(data, "actions", list)),
        group_files=tuple(_group_write(as_kind(item, dict)) for item in get(data, "group_files", list)),
        ranks=tuple(_verdict(as_kind(item, dict)) for item in get(data, "ranks", list)),
        rejected_steps=tuple(
            RejectedStep(_step(as_kind(item, dict)), get(item, "reason", str), item.get("another_run") is True)
            for item in get(data, "rejected_steps", list)
        ),
        notes=tuple(Note(get(item, "path", str), get(item, "reason", str)) for item in get(data, "notes", list)),
        run_id=text_or_none(data, "run_id"),
        disagreements=tuple(as_kind(text, str) for text in get(data, "disagreements", list)),
        considered=_step(as_kind(considered, dict)) if considered is not None else None,
        world_size_guessed=data.get("world_size_guessed") is True,
        warnings=tuple(as_kind(text, str) for text in data.get("warnings", [])),
        partials=tuple(compose_from_json(as_kind(item, dict)) for item in get(data, "partials", list)),
    )
    targets = [action.target for action in (*plan.actions, *plan.partials)]
    targets += [write.target for write in plan.group_files]
    if len(set(targets)) != len(targets):
        raise ValueError("two actions have one target")
    for action in plan.actions:
        sources = [action.source] if isinstance(action, CopyAction) else [one.path for one in action.sources]
        if any(source in targets and source != action.target for source in sources):
            raise ValueError("an action's source is another's target")
    if plan.step is None and plan.actions:
        raise ValueError("it has actions but no step")
    return plan


def _action(data: Mapping[str, Any]) -> Action:
    if data["kind"] not in ("copy", "compose"):
        raise ValueError(f"unknown action {data['kind']!r}")
    return copy_from_json(data) if data["kind"] == "copy" else compose_from_json(data)


def _share(verdict: RankVerdict) -> float | None:
    """Return the share of a slice's bytes that nobody holds."""
    if verdict.bytes is None:
        return None
    return sum(region.bytes for region in verdict.missing) / verdict.bytes if verdict.bytes else 0.0


def _group_write(data: Mapping[str, Any]) -> GroupWrite:
    ranks = tuple(as_kind(rank, int) for rank in get(data, "restore_ranks", list))
    rank = count(data, "rank")
    if rank not in ranks or any(not 0 <= other < MAX_RANKS for other in ranks):
        raise ValueError(f"the rank list of rank {rank} is {list(ranks)}")
    return GroupWrite(rank, inside(data, "target"), ranks)


def _verdict(data: Mapping[str, Any]) -> RankVerdict:
    source_rank = data["source_rank"]
    return RankVerdict(
        rank=count(data, "rank"),
        state=choice(data, "state", _STATES),
        verdict=choice(data, "verdict", _VERDICTS),
        reason=get(data, "reason", str),
        path=None if data["path"] is None else inside(data, "path"),
        source_rank=None if source_rank is None else count(data, "source_rank"),
        source=None if data["source"] is None else inside(data, "source"),
        evidence=None if data["evidence"] is None else choice(data, "evidence", _EVIDENCE),
        missing=tuple(missing_from_json(as_kind(item, dict)) for item in get(data, "missing", list)),
        bytes=None if data["bytes"] is None else count(data, "bytes", 1 << 63),
    )


def _step(data: Mapping[str, Any]) -> Step:
    return Step(count(data, "epoch", 1 << 63), count(data, "step", 1 << 63))
