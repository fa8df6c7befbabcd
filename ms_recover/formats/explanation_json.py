"""What ``plan --json`` prints: the plan, and with ``--explain`` one rank's slice parameter by parameter."""

from __future__ import annotations

from typing import Any

from ms_recover.formats.codec import UNSET, Count, Extent, Fields, Rank, Size, UnsetType, fill, to_json
from ms_recover.formats.plan_json import PlanFields, StepFields, plan_to_json
from ms_recover.model.explanation import Explanation
from ms_recover.model.plan import Plan


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


def explained_plan_to_json(plan: Plan, explanation: Explanation | None) -> dict[str, Any]:
    """Return the object that ``plan --json`` prints, with the explanation of one rank where there is one."""
    data = plan_to_json(plan)
    if explanation is None:
        return data
    parameters = tuple(
        fill(
            ExplainedFields,
            item,
            name=item.parameter.name,
            dtype=item.parameter.dtype,
            shape=item.parameter.shape,
            bytes=item.parameter.nbytes,
            missing=tuple(fill(MissingPartFields, gone) for gone in item.missing),
        )
        for item in explanation.parameters
    )
    return {**data, "explanation": to_json(fill(ExplanationFields, explanation, parameters=parameters))}
