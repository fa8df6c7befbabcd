"""What scan, verify, apply, complete, inspect and ``plan --explain`` print with ``--json``; nothing reads it back.

The types here state the members and their order; docs/schemas/ is made of them.
"""

from __future__ import annotations

from typing import Any, Literal

from ms_recover.formats.codec import UNSET, Count, Digest, Extent, Fields, Rank, Size, UnsetType, to_json
from ms_recover.formats.plan_json import (
    NoteFields,
    PlanFields,
    RejectedFields,
    StepFields,
    plan_to_json,
    rejected_fields,
)
from ms_recover.model.explanation import Explanation
from ms_recover.model.inspection import Inspection
from ms_recover.model.inventory import INVENTORY_VERSION, Inventory
from ms_recover.model.outcome import OUTCOME_VERSION, ActionResult, Outcome
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout
from ms_recover.model.verdicts import ActionStatus, Evidence, SliceStatus
from ms_recover.model.verification import VERIFICATION_VERSION, Verification


class FoundSliceFields(Fields):
    """A slice in a tree."""

    rank: Rank
    epoch: Count
    step: Count
    path: str
    bytes: Size
    parameters: Count
    crc: bool
    encryption: str | None
    manifest: bool
    problem: str | None


class GroupFileFields(Fields):
    """A ``group_info.pb`` in a tree."""

    rank: Rank | None
    path: str
    restore_ranks: tuple[Rank, ...] | None
    problem: str | None


class StrategyFileFields(Fields):
    """A strategy file in a tree."""

    rank: Rank
    path: str
    stages: tuple[Count, ...]
    devices_per_stage: Count
    layouts: Count


class InventoryFields(Fields):
    """The slices, steps and rank lists of a tree."""

    version: Literal[1]
    root: str
    ranks: tuple[Rank, ...]
    steps: tuple[StepFields, ...]
    slices: tuple[FoundSliceFields, ...]
    group_files: tuple[GroupFileFields, ...]
    strategy_files: tuple[StrategyFileFields, ...]
    notes: tuple[NoteFields, ...]


class CheckedSliceFields(Fields):
    """The worth of one slice, its ground, and why."""

    rank: Rank
    epoch: Count
    step: Count
    path: str
    status: SliceStatus
    evidence: Evidence
    reason: str


class MissingRanksFields(Fields):
    """The ranks that have no slice of a step."""

    epoch: Count
    step: Count
    ranks: tuple[Rank, ...]


class VerificationFields(Fields):
    """The result of verifying a tree."""

    version: Literal[1]
    root: str
    ok: bool
    slices: tuple[CheckedSliceFields, ...]
    disagreements: tuple[str, ...]
    missing: tuple[MissingRanksFields, ...]


class ResultFields(Fields):
    """The end of one action."""

    rank: Rank
    source_rank: Rank | None
    source: str
    target: str
    status: ActionStatus
    bytes: Size
    digest: Digest | None
    error: str | None
    dropped: tuple[str, ...]


class OutcomeFields(Fields):
    """The result of applying a plan."""

    version: Literal[1]
    root: str
    step: StepFields
    verified: bool
    partial: bool
    ok: bool
    results: tuple[ResultFields, ...]
    group_files: tuple[str, ...]
    errors: tuple[str, ...]
    rejected_steps: tuple[RejectedFields, ...]


class ListedParameterFields(Fields):
    """A parameter of a slice."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
    bytes: Size
    pieces: Count


class RankGroupFields(Fields):
    """A communication group."""

    name: str
    ranks: tuple[Rank, ...]


class LayoutFields(Fields):
    """How one parameter is cut over the device matrix."""

    parameter: str
    device_matrix: tuple[Count, ...]
    tensor_map: tuple[tuple[Count, ...], ...]
    tensor_shape: tuple[Count, ...] | None
    opt_shard_step: int
    opt_shard_size: int
    split_shape: tuple[Count, ...]
    indices_offset: tuple[int, ...]
    field: Count
    parts: Count
    copies: Count


class InspectionFields(Fields):
    """The contents of one file: members that its kind does not have are left out."""

    kind: str
    path: str
    problems: tuple[str, ...]
    bytes: Size | UnsetType = UNSET
    crc: bool | UnsetType = UNSET
    encryption: str | UnsetType | None = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    parameters: tuple[ListedParameterFields, ...] | UnsetType = UNSET
    restore_ranks: tuple[Rank, ...] | UnsetType = UNSET
    groups: tuple[RankGroupFields, ...] | UnsetType = UNSET
    stages: tuple[Count, ...] | UnsetType = UNSET
    save_count: int | UnsetType = UNSET
    operators: Count | UnsetType = UNSET
    devices_per_stage: Count | UnsetType = UNSET
    layouts: tuple[LayoutFields, ...] | UnsetType = UNSET


class MissingPartFields(Fields):
    """A part of a parameter that no sound slice holds, and why."""

    region: tuple[Extent, ...]
    bytes: Size
    reason: str


class ExplainedFields(Fields):
    """The holders of one parameter's region, and the choice among them."""

    name: str
    dtype: str
    shape: tuple[Count, ...]
    bytes: Size
    region: tuple[Extent, ...] | None
    holders: tuple[Rank, ...]
    chosen: tuple[Rank, ...]
    missing: tuple[MissingPartFields, ...]
    note: str


class ExplanationFields(Fields):
    """One rank's slice, parameter by parameter."""

    rank: Rank
    step: StepFields
    layouts: str | None
    problem: str | None
    parameters: tuple[ExplainedFields, ...]


class ExplainedPlanFields(PlanFields, kw_only=True):
    """A recovery plan, with ``--explain`` one rank's slice parameter by parameter as well."""

    explanation: ExplanationFields | UnsetType = UNSET


def inventory_to_json(inventory: Inventory) -> dict[str, Any]:
    """Return the object that ``scan --json`` prints."""
    return _members(
        InventoryFields(
            version=INVENTORY_VERSION,
            root=inventory.root,
            ranks=inventory.ranks,
            steps=tuple(_step(step) for step in inventory.steps),
            slices=tuple(
                FoundSliceFields(
                    rank=file.rank,
                    epoch=file.step.epoch,
                    step=file.step.step,
                    path=file.path,
                    bytes=file.size,
                    parameters=len(file.parameters),
                    crc=file.crc is not None,
                    encryption=file.encryption,
                    manifest=file.manifest is not None,
                    problem=file.problem or file.manifest_problem,
                )
                for file in inventory.slices
            ),
            group_files=tuple(
                GroupFileFields(file.rank, file.path, file.info.restore_ranks if file.info else None, file.problem)
                for file in inventory.group_files
            ),
            strategy_files=tuple(
                StrategyFileFields(
                    file.rank, file.path, file.stages, file.devices_per_stage, len(file.strategy.layouts)
                )
                for file in inventory.strategy_files
            ),
            notes=tuple(NoteFields(note.path, note.reason) for note in inventory.notes),
        )
    )


def verification_to_json(found: Verification) -> dict[str, Any]:
    """Return the object that ``verify --json`` prints."""
    return _members(
        VerificationFields(
            version=VERIFICATION_VERSION,
            root=found.root,
            ok=not found.wrong,
            slices=tuple(
                CheckedSliceFields(
                    rank=check.rank,
                    epoch=check.step.epoch,
                    step=check.step.step,
                    path=check.path,
                    status=check.status,
                    evidence=check.evidence,
                    reason=check.reason,
                )
                for check in found.checks
            ),
            disagreements=found.disagreements,
            missing=tuple(MissingRanksFields(step.epoch, step.step, ranks) for step, ranks in found.missing),
        )
    )


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return the object that ``apply --json`` prints."""
    return _members(
        OutcomeFields(
            version=OUTCOME_VERSION,
            root=outcome.root,
            step=_step(outcome.step),
            verified=outcome.verified,
            partial=outcome.partial,
            ok=outcome.exit_code == 0,
            results=tuple(_result(result) for result in outcome.results),
            group_files=outcome.group_files,
            errors=outcome.errors,
            rejected_steps=tuple(rejected_fields(rejected) for rejected in outcome.rejected_steps),
        )
    )


def result_to_json(result: ActionResult) -> dict[str, Any]:
    """Return the object that ``complete --json`` prints."""
    return _members(_result(result))


def inspection_to_json(found: Inspection) -> dict[str, Any]:
    """Return the object that ``inspect --json`` prints."""
    header, info, strategy = found.header, found.group_info, found.strategy
    fields = InspectionFields(found.kind, found.path, found.problems)
    if header is not None:
        fields.bytes = header.size
        fields.crc = header.crc is not None
        fields.encryption = header.encryption
        fields.metadata = dict(header.metadata)
        fields.parameters = tuple(
            ListedParameterFields(one.name, one.dtype, one.shape, one.nbytes, len(pieces))
            for one, pieces in zip(header.parameters, header.contents, strict=True)
        )
    if info is not None:
        fields.restore_ranks = info.restore_ranks
        fields.groups = tuple(RankGroupFields(group.name, group.ranks) for group in info.groups)
    if strategy is not None:
        fields.stages = strategy.stages
        fields.save_count = strategy.save_count
        fields.operators = strategy.operators
        fields.devices_per_stage = strategy.devices_per_stage
        fields.layouts = tuple(_layout(layout) for layout in strategy.layouts)
    return _members(fields)


def explained_plan_to_json(plan: Plan, explanation: Explanation | None) -> dict[str, Any]:
    """Return the object that ``plan --json`` prints, with the explanation of one rank where there is one."""
    data = plan_to_json(plan)
    return data if explanation is None else {**data, "explanation": _explanation_to_json(explanation)}


def _explanation_to_json(explanation: Explanation) -> dict[str, Any]:
    return _members(
        ExplanationFields(
            rank=explanation.rank,
            step=_step(explanation.step),
            layouts=explanation.layouts,
            problem=explanation.problem,
            parameters=tuple(
                ExplainedFields(
                    name=item.parameter.name,
                    dtype=item.parameter.dtype,
                    shape=item.parameter.shape,
                    bytes=item.parameter.nbytes,
                    region=item.region,
                    holders=item.holders,
                    chosen=item.chosen,
                    missing=tuple(MissingPartFields(gone.region, gone.bytes, gone.reason) for gone in item.missing),
                    note=item.note,
                )
                for item in explanation.parameters
            ),
        )
    )


def _members(fields: Fields) -> dict[str, Any]:
    data: dict[str, Any] = to_json(fields)
    return data


def _step(step: Step) -> StepFields:
    return StepFields(step.epoch, step.step)


def _result(result: ActionResult) -> ResultFields:
    return ResultFields(
        rank=result.rank,
        source_rank=result.source_rank,
        source=result.source,
        target=result.target,
        status=result.status,
        bytes=result.bytes,
        digest=result.digest,
        error=result.error,
        dropped=result.dropped,
    )


def _layout(layout: Layout) -> LayoutFields:
    return LayoutFields(
        parameter=layout.parameter,
        device_matrix=layout.device_matrix,
        tensor_map=layout.tensor_map,
        tensor_shape=layout.tensor_shape or None,
        opt_shard_step=layout.opt_shard_step,
        opt_shard_size=layout.opt_shard_size,
        split_shape=layout.split_shape,
        indices_offset=layout.indices_offset,
        field=layout.field,
        parts=layout.parts,
        copies=layout.copies,
    )
