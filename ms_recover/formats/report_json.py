"""What scan, verify, apply, complete and serve print with ``--json``; nothing reads it back.

The types state the members and their order; docs/schemas/ is made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from ms_recover.file_names import WeightKind
from ms_recover.formats.codec import (
    UNSET,
    Count,
    Digest,
    Epoch,
    Fields,
    Meta,
    Rank,
    Size,
    StepFields,
    UnsetType,
    field,
    fill,
    to_json,
    unless_empty,
)
from ms_recover.formats.plan_json import NoteFields, RejectedFields, rejected_fields
from ms_recover.model.backup import BACKUP_VERSION, BackupOutcome
from ms_recover.model.inventory import INVENTORY_VERSION, Inventory
from ms_recover.model.iterations import Document, Iteration
from ms_recover.model.listening import Started
from ms_recover.model.outcome import OUTCOME_VERSION, ActionResult, Outcome
from ms_recover.model.sealing import SEALED_STEP_VERSION, SealedStep
from ms_recover.model.steps import CountedBy, Position
from ms_recover.model.verdicts import ActionStatus, Evidence, SliceStatus
from ms_recover.model.verification import VERIFICATION_VERSION, Verification


class _SlicePathFields(Fields):
    rank: Rank
    epoch: Epoch
    step: Count
    path: str


class FoundSliceFields(_SlicePathFields):
    """A slice in a tree."""

    bytes: Size
    parameters: Count
    crc: bool
    encryption: str | None
    manifest: bool
    problem: str | None
    denied: bool
    kind: WeightKind | UnsetType = field(name="part", default=UNSET)


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


class DeniedFields(Fields):
    """A rank's directory that the operating system refused to read, and why."""

    rank: Rank
    path: str
    reason: str


class OrphanFields(_SlicePathFields):
    """A manifest whose slice is gone: the path of that slice, and why the manifest cannot be read."""

    problem: str | None
    kind: WeightKind | UnsetType = field(name="part", default=UNSET)


class DocumentFields(Fields):
    """A document of MindFormers: whether it is there, and why it cannot be read."""

    path: str
    there: bool
    problem: str | None


class TrackerFields(DocumentFields):
    """The document that names the newest whole iteration."""

    iteration: Count | None


class IterationFields(StepFields):
    """The directory of an iteration, and the documents in it."""

    directory: str
    metadata: DocumentFields
    common: DocumentFields


class PositionFields(StepFields):
    """The steps that were trained when the slices of a prefix and step were saved, and what states them."""

    prefix: str
    cumulative_step: Count
    stated_by: CountedBy


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
    denied: tuple[DeniedFields, ...]
    orphans: tuple[OrphanFields, ...]
    iterations: tuple[IterationFields, ...] | UnsetType = UNSET
    tracker: TrackerFields | UnsetType = UNSET
    positions: tuple[PositionFields, ...] | UnsetType = UNSET


class CheckedSliceFields(_SlicePathFields):
    """The worth of one slice, its ground, and why."""

    status: SliceStatus
    evidence: Evidence
    reason: str


class MissingRanksFields(StepFields):
    """The ranks that have no slice of a step."""

    ranks: tuple[Rank, ...]


class VerificationFields(Fields):
    """The result of verifying a tree."""

    version: Literal[1]
    root: str
    ok: bool
    slices: tuple[CheckedSliceFields, ...]
    disagreements: tuple[str, ...]
    missing: tuple[MissingRanksFields, ...]
    documents: tuple[NoteFields, ...] | UnsetType = UNSET
    states: tuple[NoteFields, ...] | UnsetType = UNSET


class SealedStepFields(Fields):
    """A step that was sealed while its tree was watched: the paths sealed, and the slices that are not sound."""

    version: Literal[1]
    root: str
    epoch: Epoch
    step: Count
    ok: bool
    sealed: tuple[str, ...]
    wrong: tuple[CheckedSliceFields, ...]
    bytes: Size
    seconds: float


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
    borrowed: tuple[str, ...] | UnsetType = UNSET
    set_aside: str | UnsetType = UNSET


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
    documents: tuple[str, ...] | UnsetType = UNSET
    meta_files: tuple[str, ...] | UnsetType = UNSET
    strategy_files: tuple[str, ...] | UnsetType = UNSET
    set_aside: tuple[str, ...] | UnsetType = UNSET


class BackupFields(Fields):
    """The result of backing up a step."""

    version: Literal[1]
    root: str
    url: str
    step: StepFields
    index: str
    files: Count
    objects: Count
    bytes: Count
    uploaded: Count
    uploaded_bytes: Count
    verified: bool
    read_back: Count
    dry_run: bool
    passed_over: tuple[NoteFields, ...] | UnsetType = UNSET


class StartedFields(Fields, tag_field="event", tag="started"):
    """The first line of ``serve --json``: the port is open."""

    version: Literal[1]
    root: str
    address: str
    port: Annotated[int, Meta(ge=1, lt=1 << 16)]
    tls: bool
    token: bool
    token_file: str | None
    pid: Count


class StoppedFields(Fields, tag_field="event", tag="stopped"):
    """The last line of ``serve --json``: no client for the seconds of ``--idle``, or a signal."""

    version: Literal[1]
    reason: Literal["idle", "signal"]


ServingFields = StartedFields | StoppedFields


def inventory_to_json(inventory: Inventory, positions: Sequence[Position] = ()) -> dict[str, Any]:
    """Return the object that ``scan --json`` prints; `positions` are those of the steps, where they are known."""
    slices = tuple(
        fill(
            FoundSliceFields,
            file.step,
            file,
            bytes=file.size,
            parameters=len(file.parameters),
            crc=file.crc is not None,
            manifest=file.manifest is not None,
            problem=file.problem or file.manifest_problem,
            kind=unless_empty(file.kind),
        )
        for file in inventory.slices
    )
    group_files = tuple(
        fill(GroupFileFields, file, restore_ranks=file.info.restore_ranks if file.info else None)
        for file in inventory.group_files
    )
    strategy_files = tuple(
        fill(StrategyFileFields, file, layouts=len(file.strategy.layouts)) for file in inventory.strategy_files
    )
    return to_json(
        fill(
            InventoryFields,
            inventory,
            version=INVENTORY_VERSION,
            slices=slices,
            group_files=group_files,
            strategy_files=strategy_files,
            denied=tuple(fill(DeniedFields, note, rank=rank) for rank, note in inventory.denied),
            orphans=tuple(
                fill(OrphanFields, orphan.step, orphan, kind=unless_empty(orphan.kind)) for orphan in inventory.orphans
            ),
            iterations=unless_empty(tuple(_iteration_fields(one) for one in inventory.iterations)),
            tracker=_tracker_fields(inventory.tracker),
            positions=unless_empty(tuple(fill(PositionFields, one.step, one) for one in positions)),
        )
    )


def _iteration_fields(one: Iteration) -> IterationFields:
    documents = {
        name: _document_fields(document) for name, document in (("metadata", one.metadata), ("common", one.common))
    }
    return fill(IterationFields, one.step, one, **documents)


def _document_fields(document: Document[Any]) -> DocumentFields:
    return fill(DocumentFields, document, there=document.state is not None)


def _tracker_fields(tracker: Document[int] | None) -> TrackerFields | UnsetType:
    if tracker is None:
        return UNSET
    return fill(TrackerFields, tracker, there=tracker.state is not None, iteration=tracker.value)


def verification_to_json(found: Verification) -> dict[str, Any]:
    """Return the object that ``verify --json`` prints."""
    slices = tuple(fill(CheckedSliceFields, check.step, check) for check in found.checks)
    missing = tuple(fill(MissingRanksFields, step, ranks=ranks) for step, ranks in found.missing)
    fields = fill(VerificationFields, found, version=VERIFICATION_VERSION, ok=found.ok, slices=slices, missing=missing)
    if not any(check.step.is_iteration for check in found.checks):
        fields.documents = UNSET
    if not found.states:
        fields.states = UNSET
    return to_json(fields)


def sealed_step_to_json(found: SealedStep) -> dict[str, Any]:
    """Return the object that ``seal --watch --json`` prints for a step, in one line."""
    wrong = tuple(fill(CheckedSliceFields, check.step, check) for check in found.wrong)
    return to_json(fill(SealedStepFields, found.step, found, version=SEALED_STEP_VERSION, ok=not wrong, wrong=wrong))


def backup_to_json(outcome: BackupOutcome) -> dict[str, Any]:
    """Return the object that ``copy --json`` prints."""
    passed_over = unless_empty(outcome.passed_over)
    return to_json(fill(BackupFields, outcome, version=BACKUP_VERSION, passed_over=passed_over))


def outcome_to_json(outcome: Outcome) -> dict[str, Any]:
    """Return the object that ``apply --json`` prints."""
    rejected = rejected_fields(outcome.rejected_steps)
    ok = outcome.exit_code == 0
    metas = outcome.meta_files or UNSET
    fields = fill(
        OutcomeFields,
        outcome,
        version=OUTCOME_VERSION,
        ok=ok,
        results=tuple(map(_result_fields, outcome.results)),
        rejected_steps=rejected,
        meta_files=metas,
        strategy_files=outcome.strategy_files or UNSET,
        set_aside=outcome.set_aside or UNSET,
    )
    if not outcome.step.is_iteration:
        fields.documents = UNSET
    return to_json(fields)


def result_to_json(result: ActionResult) -> dict[str, Any]:
    """Return the object that ``complete --json`` prints."""
    return to_json(_result_fields(result))


def _result_fields(result: ActionResult) -> ResultFields:
    return fill(ResultFields, result, borrowed=unless_empty(result.borrowed), set_aside=unless_empty(result.set_aside))


def started_to_json(started: Started) -> dict[str, Any]:
    """Return the object that ``serve --json`` prints when it accepts clients."""
    return to_json(fill(StartedFields, started, version=1))


def stopped_to_json(reason: Literal["idle", "signal"]) -> dict[str, Any]:
    """Return the object that ``serve --json`` prints at its end."""
    return to_json(StoppedFields(version=1, reason=reason))
