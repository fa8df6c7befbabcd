"""Plans as versioned JSON: ``plan --json`` prints it and ``apply PLAN`` reads it back; see docs/plan.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from ms_recover.bounded_json import decode_object
from ms_recover.errors import FormatError
from ms_recover.file_names import WeightKind
from ms_recover.formats.action_json import (
    ComposeFields,
    CopyFields,
    MissingFields,
    PartialFields,
    StateFields,
    compose_fields,
    copy_fields,
    read_compose,
    read_copy,
)
from ms_recover.formats.codec import (
    UNSET,
    AbsolutePath,
    Count,
    Fields,
    FileName,
    Path,
    Rank,
    Size,
    StepFields,
    UnsetType,
    convert,
    field,
    fill,
    make,
    make_with,
    to_json,
)
from ms_recover.formats.documents import decode_document, encode_document
from ms_recover.formats.plan_paths import check_names
from ms_recover.formats.record import record
from ms_recover.model.actions import CopyAction, FileState
from ms_recover.model.compose import MissingRegion
from ms_recover.model.explanation import Explanation
from ms_recover.model.inventory import Note
from ms_recover.model.places import Obstacle, ObstacleKind
from ms_recover.model.plan import (
    PLAN_VERSION,
    Action,
    DocumentWrite,
    GivenUpSlice,
    GroupWrite,
    MetaWrite,
    Plan,
    RankVerdict,
    RejectedStep,
    StrategyWrite,
    waves_of,
)
from ms_recover.model.printable import printable
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence, RankState, Verdict

MAX_SIZE = 1 << 30
"""Longest plan that is read, in bytes."""
_HALF = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_MOST_BRACKETS = 1 << 25
_MOST_COMMAS = 1 << 27


class NoteFields(Fields):
    """A file or directory that is reported and not used, and why."""

    path: str
    reason: str


class GroupWriteFields(Fields):
    """A ``group_info.pb`` that is written because the rank's directory had lost it."""

    rank: Rank
    target: Path
    restore_ranks: tuple[Rank, ...]


class StrategyWriteFields(Fields):
    """A strategy file that is written because the rank's directory had lost it: a copy of another rank's."""

    rank: Rank
    target: Path
    source_rank: Rank
    source: Path
    digest: str


class DocumentWriteFields(Fields):
    """A document of MindFormers that is written after everything else, because it is missing, damaged or wrong."""

    target: Path
    text: str
    replaces: StateFields | None
    reason: str
    sources: tuple[str, ...]
    unknown: tuple[str, ...]
    assumed: tuple[str, ...]


class PartFields(Fields):
    """The state of one file of a rank, and the plan for it: its model file, or its optimizer file."""

    kind: WeightKind | None = field(name="part")
    state: RankState
    verdict: Verdict
    reason: str
    path: Path | None
    source_rank: Rank | None
    source: Path | None
    evidence: Evidence | None
    missing: tuple[MissingFields, ...]
    bytes: Size | None


class MetaWriteFields(Fields):
    """A ``meta.json`` of MindFormers that is written so that it resumes from the planned step."""

    rank: Rank
    target: Path
    file: FileName
    replaces: str | None
    reason: str


class GivenUpFields(Fields):
    """A slice of a step that is given up, renamed with what lies beside it so that a training can resume."""

    rank: Rank
    path: Path
    state: StateFields | None
    reason: str


class ObstacleFields(Fields):
    """What keeps a file from being written where it belongs, and what to do."""

    rank: Rank | None
    path: Path
    kind: ObstacleKind
    reason: str


class RankFields(Fields):
    """The state of one rank at one step, and the plan for it."""

    rank: Rank
    state: RankState
    verdict: Verdict
    reason: str
    path: Path | None
    source_rank: Rank | None
    source: Path | None
    evidence: Evidence | None
    missing: tuple[MissingFields, ...]
    bytes: Size | None
    missing_share: float | None = None
    parts: tuple[PartFields, ...] | UnsetType = UNSET


class RejectedFields(StepFields):
    """A step newer than the planned one, and why it cannot be recovered."""

    reason: str
    another_run: bool = False
    ranks: tuple[Rank, ...] = ()
    may_be_newer: bool | UnsetType = UNSET
    another_experiment: bool | UnsetType = UNSET


class PlanFields(Fields, kw_only=True):
    """A recovery plan."""

    version: Literal[2]
    root: str
    world_size: Rank
    world_size_from: str
    world_size_guessed: bool = False
    step: StepFields | None
    considered: StepFields | None
    recoverable: bool
    run_id: str | None
    disagreements: tuple[str, ...]
    actions: tuple[CopyFields | ComposeFields, ...]
    partials: tuple[PartialFields, ...]
    group_files: tuple[GroupWriteFields, ...]
    ranks: tuple[RankFields, ...]
    rejected_steps: tuple[RejectedFields, ...]
    warnings: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()
    notes: tuple[NoteFields, ...]
    documents: tuple[DocumentWriteFields, ...] | UnsetType = UNSET
    meta_files: tuple[MetaWriteFields, ...] | UnsetType = UNSET
    strategy_files: tuple[StrategyWriteFields, ...] | UnsetType = UNSET
    cumulative_step: Count | UnsetType = UNSET
    set_aside: tuple[GivenUpFields, ...] | UnsetType = UNSET
    follow: tuple[AbsolutePath, ...] | UnsetType = UNSET
    obstacles: tuple[ObstacleFields, ...] | UnsetType = UNSET


def plan_to_json(plan: Plan, explanation: Explanation | None = None) -> dict[str, Any]:
    """Return `plan`, and the explanation of one rank where there is one, as plain JSON values."""
    actions = tuple(
        copy_fields(action) if isinstance(action, CopyAction) else compose_fields(action, ComposeFields)
        for action in plan.actions
    )
    fields = fill(
        PlanFields,
        plan,
        version=PLAN_VERSION,
        actions=actions,
        partials=tuple(compose_fields(action, PartialFields) for action in plan.partials),
        ranks=tuple(_rank_fields(verdict) for verdict in plan.ranks),
        rejected_steps=tuple(fill(RejectedFields, one.step, one) for one in plan.rejected_steps),
        documents=tuple(map(_document_fields, plan.documents)) if _is_of_iteration(plan) else UNSET,
    )
    return to_json(fields) | ({"explanation": record(explanation)} if explanation is not None else {})


def plan_from_json(text: str, where: str) -> Plan:
    """Read a plan back; `where` is for messages.

    Raises
    ------
    FormatError
        When the text is not a plan of this version, names a path outside its root, or one of another rank or step.
    """
    again = "make a plan with: recover-ckpt plan ROOT -o plan.json"
    try:
        encoded = text.encode()
        if len(encoded) > MAX_SIZE:
            raise FormatError(f"it is longer than {MAX_SIZE} bytes")
        data = decode_object(encoded, brackets=_MOST_BRACKETS, commas=_MOST_COMMAS, fractions=True)
    except UnicodeEncodeError:
        raise FormatError(f"{where} is not text; {again}") from None
    except FormatError as error:
        raise FormatError(f"{where} is not a recovery plan: {error}; {again}") from None
    if "actions" not in data or "version" not in data:
        raise FormatError(f"{where} is not a recovery plan; {again}")
    if (names := _no_names(data)) is not None:
        raise FormatError(f"{where} is not a plan that can be trusted ({names}): plan again")
    if data["version"] != PLAN_VERSION:
        raise FormatError(
            f"{where} is a plan of version {data['version']!r}, this tool reads {PLAN_VERSION}: plan again"
        )
    try:
        plan = _plan(convert(data, PlanFields))
        _check(plan)
    except ValueError as error:
        raise FormatError(f"{where} is not a plan that can be trusted ({error}): plan again") from None
    check_names(plan, where)
    return plan


def _no_names(data: Mapping[str, Any]) -> str | None:
    """Return why some text of a plan can be no path: a null character in the root, or half a character anywhere.

    Bytes of a name that are no UTF-8 are the halves U+DC80 to U+DCFF.
    """
    root = data.get("root")
    if isinstance(root, str) and ("\0" in root or not root):
        return f"root is '{printable(root)}', which is no path"
    waiting: list[object] = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and (half := _HALF.search(value)) is not None:
            return f"a text has U+{ord(half[0]):04X}, half of a character: '{printable(value)}'"
    return None


def _plan(fields: PlanFields) -> Plan:
    return make_with(
        Plan,
        fields,
        step=_step(fields.step),
        considered=_step(fields.considered),
        actions=tuple(read_copy(one) if isinstance(one, CopyFields) else read_compose(one) for one in fields.actions),
        partials=tuple(read_compose(one) for one in fields.partials),
        group_files=make(tuple[GroupWrite, ...], fields.group_files),
        ranks=tuple(_verdict(one) for one in fields.ranks),
        documents=tuple(_document(one) for one in fields.documents or ()),
        meta_files=make(tuple[MetaWrite, ...], fields.meta_files or ()),
        strategy_files=make(tuple[StrategyWrite, ...], fields.strategy_files or ()),
        set_aside=make(tuple[GivenUpSlice, ...], fields.set_aside or ()),
        obstacles=make(tuple[Obstacle, ...], fields.obstacles or ()),
        rejected_steps=tuple(
            make_with(RejectedStep, one, step=Step(one.epoch, one.step)) for one in fields.rejected_steps
        ),
        notes=make(tuple[Note, ...], fields.notes),
    )


def _rank_fields(verdict: RankVerdict) -> RankFields:
    parts = tuple(fill(PartFields, one) for one in verdict.by_kind) or UNSET
    return fill(RankFields, verdict, missing_share=_missing_share(verdict), parts=parts)


def _is_of_iteration(plan: Plan) -> bool:
    return plan.considered is not None and plan.considered.is_iteration


def _verdict(fields: RankFields) -> RankVerdict:
    rank = fields.rank
    parts = tuple(
        make_with(RankVerdict, one, rank=rank, by_kind=(), missing=make(tuple[MissingRegion, ...], one.missing))
        for one in fields.parts or ()
    )
    missing = make(tuple[MissingRegion, ...], fields.missing)
    return make_with(RankVerdict, fields, kind=None, by_kind=parts, missing=missing)


def _document_fields(write: DocumentWrite) -> DocumentWriteFields:
    return fill(DocumentWriteFields, write, text=encode_document(write.value).decode())


def _document(fields: DocumentWriteFields) -> DocumentWrite:
    try:
        value = decode_document(fields.target, fields.text.encode())
    except (FormatError, UnicodeEncodeError) as error:
        raise ValueError(str(error)) from None
    replaces = None if fields.replaces is None else make(FileState, fields.replaces)
    return make_with(DocumentWrite, fields, value=value, replaces=replaces)


def _step(fields: StepFields | None) -> Step | None:
    return None if fields is None else Step(fields.epoch, fields.step)


def _check(plan: Plan) -> None:
    """Refuse a plan whose parts contradict each other."""
    every: tuple[Action, ...] = (*plan.actions, *plan.partials)
    small = [write.target for write in plan.group_files] + [write.target for write in plan.meta_files]
    small += [write.target for write in plan.documents] + [write.target for write in plan.strategy_files]
    targets = [action.target for action in every] + small
    written = set(targets)
    if len(written) != len(targets):
        raise ValueError("two actions have one target")
    for wave in waves_of(plan.actions):
        replaced = {action.target for action in wave} | set(small)
        for action in wave:
            if any(one.path in replaced and one.path != action.target for one in action.replicas):
                raise ValueError(f"a source of {action.target!r} is the target of another action, and needs its target")
    if (plan.meta_files or plan.set_aside) and plan.step is None:
        raise ValueError("it writes meta.json or sets slices aside, but has no step")
    if any(action.set_aside is not None and action.replaces is None for action in every):
        raise ValueError("an action sets a slice aside and replaces none")
    if len({one.path for one in plan.set_aside}) != len(plan.set_aside):
        raise ValueError("it sets a slice aside twice")
    if every and (plan.step if plan.actions else plan.considered) is None:
        raise ValueError("it has actions but no step")
    for write in plan.group_files:
        if write.rank not in write.restore_ranks:
            raise ValueError(f"the rank list of rank {write.rank} is {list(write.restore_ranks)}")


def _missing_share(verdict: RankVerdict) -> float | None:
    """Return the share of a slice's bytes that nobody holds."""
    if verdict.bytes is None:
        return None
    return sum(region.bytes for region in verdict.missing) / verdict.bytes if verdict.bytes else 0.0
