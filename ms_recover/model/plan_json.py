"""Plans as versioned JSON: what ``plan --json`` prints and ``apply PLAN`` reads back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from ms_recover.errors import FormatError
from ms_recover.model.inventory import Note
from ms_recover.model.plan import (
    PLAN_VERSION,
    CopyAction,
    FileState,
    GroupWrite,
    Plan,
    RankVerdict,
    RejectedStep,
    Replica,
)
from ms_recover.model.steps import Step

_T = TypeVar("_T")
_MAX_RANKS = 1 << 24


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Return `plan` as plain JSON values; the same plan gives the same object."""
    return {
        "version": PLAN_VERSION,
        "root": plan.root,
        "world_size": plan.world_size,
        "world_size_from": plan.world_size_from,
        "step": plan.step.to_json() if plan.step else None,
        "recoverable": plan.recoverable,
        "run_id": plan.run_id,
        "disagreements": list(plan.disagreements),
        "actions": [
            {
                "kind": "copy",
                "rank": action.rank,
                "source_rank": action.source_rank,
                "source": action.source,
                "target": action.target,
                "bytes": action.source_state.bytes,
                "source_mtime_ns": action.source_state.mtime_ns,
                "source_digest": action.replica.digest,
                "replaces": _state_to_json(action.replaces),
                "reason": action.reason,
                "evidence": action.evidence,
                "group": list(action.group),
                "alternatives": [
                    {
                        "rank": replica.rank,
                        "path": replica.path,
                        "bytes": replica.state.bytes,
                        "mtime_ns": replica.state.mtime_ns,
                        "digest": replica.digest,
                    }
                    for replica in action.alternatives
                ],
                "borrowed": list(action.borrowed),
            }
            for action in plan.actions
        ],
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
            }
            for verdict in plan.ranks
        ],
        "rejected_steps": [{**rejected.step.to_json(), "reason": rejected.reason} for rejected in plan.rejected_steps],
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
    step = data["step"]
    plan = Plan(
        root=_get(data, "root", str),
        world_size=_count(data, "world_size"),
        world_size_from=_get(data, "world_size_from", str),
        step=_step(_as(step, dict)) if step is not None else None,
        actions=tuple(_action(_as(item, dict)) for item in _get(data, "actions", list)),
        group_files=tuple(_group_write(_as(item, dict)) for item in _get(data, "group_files", list)),
        ranks=tuple(_verdict(_as(item, dict)) for item in _get(data, "ranks", list)),
        rejected_steps=tuple(
            RejectedStep(_step(_as(item, dict)), _get(item, "reason", str))
            for item in _get(data, "rejected_steps", list)
        ),
        notes=tuple(Note(_get(item, "path", str), _get(item, "reason", str)) for item in _get(data, "notes", list)),
        run_id=_text_or_none(data, "run_id"),
        disagreements=tuple(_as(text, str) for text in _get(data, "disagreements", list)),
    )
    targets = [action.target for action in plan.actions] + [write.target for write in plan.group_files]
    if len(set(targets)) != len(targets):
        raise ValueError("two actions have one target")
    if {action.target for action in plan.actions} & {action.source for action in plan.actions}:
        raise ValueError("an action's source is another's target")
    if plan.step is None and plan.actions:
        raise ValueError("it has actions but no step")
    return plan


def _action(data: Mapping[str, Any]) -> CopyAction:
    if data["kind"] != "copy":
        raise ValueError(f"unknown action {data['kind']!r}")
    replaces = data["replaces"]
    state = FileState(_count(data, "bytes", 1 << 63), _get(data, "source_mtime_ns", int))
    source = Replica(_count(data, "source_rank"), _inside(data, "source"), state, _text_or_none(data, "source_digest"))
    group = tuple(_as(rank, int) for rank in _get(data, "group", list))
    if _count(data, "rank") not in group or source.rank not in group:
        raise ValueError(f"rank {data['rank']} is to copy from rank {source.rank} in the group {list(group)}")
    return CopyAction(
        rank=_count(data, "rank"),
        replica=source,
        target=_inside(data, "target"),
        replaces=None
        if replaces is None
        else FileState(_count(_as(replaces, dict), "bytes", 1 << 63), _get(replaces, "mtime_ns", int)),
        reason=_get(data, "reason", str),
        evidence=_get(data, "evidence", str),
        group=group,
        alternatives=tuple(_replica(_as(item, dict)) for item in _get(data, "alternatives", list)),
        borrowed=tuple(_as(name, str) for name in _get(data, "borrowed", list)),
    )


def _replica(data: Mapping[str, Any]) -> Replica:
    state = FileState(_count(data, "bytes", 1 << 63), _get(data, "mtime_ns", int))
    return Replica(_count(data, "rank"), _inside(data, "path"), state, _text_or_none(data, "digest"))


def _group_write(data: Mapping[str, Any]) -> GroupWrite:
    ranks = tuple(_as(rank, int) for rank in _get(data, "restore_ranks", list))
    rank = _count(data, "rank")
    if rank not in ranks or any(not 0 <= other < _MAX_RANKS for other in ranks):
        raise ValueError(f"the rank list of rank {rank} is {list(ranks)}")
    return GroupWrite(rank, _inside(data, "target"), ranks)


def _verdict(data: Mapping[str, Any]) -> RankVerdict:
    source_rank = data["source_rank"]
    return RankVerdict(
        rank=_count(data, "rank"),
        state=_get(data, "state", str),
        verdict=_get(data, "verdict", str),
        reason=_get(data, "reason", str),
        path=None if data["path"] is None else _inside(data, "path"),
        source_rank=None if source_rank is None else _count(data, "source_rank"),
        source=None if data["source"] is None else _inside(data, "source"),
        evidence=_text_or_none(data, "evidence"),
    )


def _step(data: Mapping[str, Any]) -> Step:
    return Step(_count(data, "epoch", 1 << 63), _count(data, "step", 1 << 63))


def _text_or_none(data: Mapping[str, Any], key: str) -> str | None:
    return None if data[key] is None else _get(data, key, str)


def _state_to_json(state: FileState | None) -> dict[str, int] | None:
    return None if state is None else {"bytes": state.bytes, "mtime_ns": state.mtime_ns}


def _as(value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not of type {kind.__name__}")
    return value


def _get(data: Mapping[str, Any], key: str, kind: type[_T]) -> _T:
    try:
        return _as(data[key], kind)
    except TypeError as error:
        raise TypeError(f"{key}: {error}") from None


def _count(data: Mapping[str, Any], key: str, below: int = _MAX_RANKS) -> int:
    value = _get(data, key, int)
    if not 0 <= value < below:
        raise ValueError(f"{key} is {value}")
    return value


def _inside(data: Mapping[str, Any], key: str) -> str:
    """Return a path that stays below the root, whatever the file says."""
    path = _get(data, key, str)
    parts = path.split("/")
    if path.startswith("/") or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{key} {path!r} is not a path below the root")
    return path
