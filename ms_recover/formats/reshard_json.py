"""What ``recover-ckpt reshard`` prints with ``--json``, and saves of a plan; nothing reads it back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from ms_recover.formats.codec import Count, Digest, Extent, Fields, Rank, Size, StepFields, fill, to_json
from ms_recover.formats.plan_json import RejectedFields, rejected_fields
from ms_recover.model.reshard import OutputFormat, ReshardOutcome, ReshardPlan


class ReshardSourceFields(Fields):
    """A slice that bytes are taken from."""

    rank: Rank
    path: str
    bytes: Size
    digest: Digest | None


class ReshardFileFields(Fields):
    """A file to write: the ranks with the same contents, and what it holds."""

    rank: Rank
    path: str
    parameters: Count
    bytes: Size
    group: tuple[Rank, ...]
    partial: bool


class GoneFields(Fields):
    """A region of a whole parameter that nobody holds."""

    parameter: str
    region: tuple[Extent, ...]
    bytes: Size
    reason: str


class ReshardPlanFields(Fields):
    """How the slices of a step are cut anew."""

    version: Literal[1]
    root: str
    output: str
    format: OutputFormat
    step: StepFields
    run_id: str | None
    world_size: Rank
    target_ranks: Rank
    full: bool
    complete: bool
    sources: tuple[ReshardSourceFields, ...]
    files: tuple[ReshardFileFields, ...]
    missing: tuple[GoneFields, ...]
    disagreements: tuple[str, ...]
    left_out: tuple[str, ...]
    own_values: tuple[str, ...]
    cast: dict[str, str]
    rejected_steps: tuple[RejectedFields, ...]
    warnings: tuple[str, ...]


class ReshardResultFields(Fields):
    """What became of one file."""

    rank: Rank
    path: str
    status: Literal["written", "already there", "failed", "planned"]
    bytes: Size
    digest: Digest | None
    sources: tuple[str, ...]
    error: str | None
    dropped: tuple[str, ...]


class ReshardOutcomeFields(Fields):
    """What a reshard did."""

    version: Literal[1]
    root: str
    output: str
    step: StepFields
    results: tuple[ReshardResultFields, ...]
    documents: tuple[str, ...]
    compared: Count
    compared_bytes: Size
    partial: bool
    left_out: tuple[str, ...]
    warnings: tuple[str, ...]
    errors: tuple[str, ...]
    exit_code: Count
    dry_run: bool


def reshard_plan_to_json(plan: ReshardPlan, reads: Mapping[int, int]) -> dict[str, Any]:
    """Return a plan as JSON values; `reads` has the bytes that are taken from each source, by its number."""
    sources = tuple(
        ReshardSourceFields(one.replica.rank, one.replica.path, reads[number], one.replica.digest)
        for number, one in enumerate(plan.sources)
        if number in reads
    )
    files = tuple(
        ReshardFileFields(
            file.rank, file.target, len(plan.parts_of(file)), plan.bytes_of(file), file.group, plan.is_partial(file)
        )
        for file in plan.files
    )
    return to_json(
        fill(
            ReshardPlanFields,
            plan,
            version=1,
            format=plan.form,
            step=StepFields(plan.step.epoch, plan.step.step),
            target_ranks=plan.ranks,
            sources=sources,
            files=files,
            missing=tuple(GoneFields(one.parameter, one.region, one.bytes, one.reason) for one in plan.missing),
            own_values=plan.own,
            cast=dict(plan.casts),
            rejected_steps=rejected_fields(plan.rejected_steps),
        )
    )


def reshard_outcome_to_json(outcome: ReshardOutcome) -> dict[str, Any]:
    """Return the outcome of a reshard as JSON values."""
    return to_json(
        fill(
            ReshardOutcomeFields,
            outcome,
            version=1,
            step=StepFields(outcome.step.epoch, outcome.step.step),
            results=tuple(fill(ReshardResultFields, one, path=one.target) for one in outcome.results),
        )
    )
