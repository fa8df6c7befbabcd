"""What ``history --json`` prints; nothing reads it back."""

from __future__ import annotations

from typing import Any

from ms_recover.file_names import WeightKind
from ms_recover.formats.codec import UNSET, Count, Fields, Moment, Rank, StepFields, UnsetType, field, fill, to_json
from ms_recover.formats.manifest_json import RunStepFields
from ms_recover.model.history import HISTORY_VERSION, History, HistoryRun, StepState, ValueKind
from ms_recover.model.steps import Step

Ranks = tuple[Rank, ...]


class HistoryRunFields(Fields):
    """A run that saved slices in the tree; the history is about those that are `followed`, up to `until`."""

    run_id: str
    started: Moment | None
    resumed_from: RunStepFields | None
    first: StepFields | None
    last: StepFields | None
    followed: bool
    until: StepFields | None


class HistoryStepFields(StepFields, kw_only=True):
    """One step of the run."""

    run_id: str
    state: StepState
    ranks: Count
    missing: Ranks
    parameters: tuple[str, ...]
    reason: str


class DisagreementFields(Fields):
    """A parameter of which ranks that hold the same had different values; `outvoted` is empty for a tie."""

    parameter: str
    first: StepFields
    last: StepFields
    steps: Count
    agreed_until: StepFields | None
    ranks: Ranks
    sides: tuple[Ranks, ...]
    outvoted: Ranks
    later: Ranks
    suspects: Ranks
    recorded: bool
    source: str
    kind: WeightKind | UnsetType = field(name="part", default=UNSET)


class OwnValuesFields(Fields):
    """A parameter of which ranks have values of their own."""

    parameter: str
    first: StepFields
    ranks: Ranks
    recorded: bool


class StoppedFields(Fields):
    """A parameter that changed, and then no more."""

    parameter: str
    since: StepFields
    steps: Count
    ranks: Ranks
    elements: Count
    everywhere: bool


class OddValuesFields(Fields):
    """A parameter with NaN or Inf, that became all zero, or whose bytes are not those of the manifest."""

    parameter: str
    kind: ValueKind
    first: StepFields
    last: StepFields
    ranks: Ranks
    count: Count
    steps: Count


class HistoryFields(Fields):
    """The history of a run by its manifests."""

    version: int
    root: str
    ok: bool
    world_size: Count
    run_id: str | None
    clean: StepFields | None
    clean_reason: str
    newest: StepFields | None
    runs: tuple[HistoryRunFields, ...]
    steps: tuple[HistoryStepFields, ...]
    disagreements: tuple[DisagreementFields, ...]
    own: tuple[OwnValuesFields, ...]
    stopped: tuple[StoppedFields, ...]
    frozen: tuple[str, ...]
    alone: Ranks
    read: bool
    read_bytes: Count
    values: tuple[OddValuesFields, ...]
    zeros: tuple[str, ...]
    unread: tuple[str, ...]
    notes: tuple[str, ...]


def history_to_json(found: History) -> dict[str, Any]:
    """Return the object that ``history --json`` prints."""
    return to_json(
        fill(
            HistoryFields,
            found,
            version=HISTORY_VERSION,
            ok=not found.wrong,
            clean=_step(found.clean),
            newest=_step(found.newest),
            runs=tuple(map(_run, found.runs)),
            steps=tuple(fill(HistoryStepFields, one.step, one, step=one.step.step) for one in found.steps),
            disagreements=tuple(
                fill(
                    DisagreementFields,
                    one,
                    first=_step(one.first),
                    last=_step(one.last),
                    agreed_until=_step(one.agreed_until),
                    kind=one.kind or UNSET,
                )
                for one in found.disagreements
            ),
            own=tuple(fill(OwnValuesFields, one, first=_step(one.first)) for one in found.own),
            stopped=tuple(fill(StoppedFields, one, since=_step(one.since)) for one in found.stopped),
            values=tuple(
                fill(OddValuesFields, one, first=_step(one.first), last=_step(one.last)) for one in found.values
            ),
        )
    )


def _step(step: Step | None) -> StepFields | None:
    return None if step is None else fill(StepFields, step)


def _run(one: HistoryRun) -> HistoryRunFields:
    before = one.resumed_from
    return fill(
        HistoryRunFields,
        one,
        resumed_from=fill(RunStepFields, before.step, before) if before is not None else None,
        first=_step(one.first),
        last=_step(one.last),
        until=_step(one.until),
    )
