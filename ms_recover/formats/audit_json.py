"""What ``recover-ckpt audit`` prints with ``--json``; nothing reads it back."""

from __future__ import annotations

from typing import Annotated, Any

from ms_recover.formats.codec import Count, Fields, Meta, Rank, Size, StepFields, fill, to_json
from ms_recover.model.audit import Audit, Finding, FindingKind, LevelAudit, Loss, Losses
from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology

BigCount = Count | Annotated[str, Meta(pattern="^[0-9]{19,4000}$")]
"""A number; its digits where it is too large for most readers of JSON."""

_LARGEST = (1 << 63) - 1
_MOST_SETS = 1000


class SourceFields(Fields):
    """A host that gives bytes."""

    host: str
    bytes: Size


class LossFields(Fields):
    """The loss of some domains at once; `step` is that of the plan then, null when there is none."""

    domains: tuple[str, ...]
    ranks: tuple[Rank, ...]
    fatal: bool
    step: StepFields | None
    reason: str
    bytes: Size
    sources: tuple[SourceFields, ...]
    seconds: float | None


class LossesFields(Fields):
    """All losses of so many domains at once; null where they could not be counted."""

    lost: Count
    possible: BigCount
    fatal: BigCount | None
    newest: BigCount | None
    probability: float | None


class LevelFields(Fields):
    """The losses of domains of one level; `minimal` are fatal although no part of them is."""

    level: str
    domains: Count
    survived: Count
    smallest_fatal: Count | None
    smallest_fatal_count: BigCount | None
    minimal: tuple[tuple[str, ...], ...]
    minimal_count: Count | None
    losses: tuple[LossesFields, ...]
    singles: tuple[LossFields, ...]


class BlockClassFields(Fields):
    """Parameters that are cut alike; fewest and most copies, and hosts that hold one."""

    stage: Count | None
    names: tuple[str, ...]
    parameters: Count
    blocks: Count
    bytes: Size | None
    copies: tuple[Count, Count]
    hosts: tuple[Count, Count]
    single_copy_bytes: Size | None
    source: str


class TopologyFields(Fields):
    """Where ranks live: for each level the domain of each rank."""

    levels: tuple[str, ...]
    domains: tuple[tuple[str, ...], ...]
    source: str


class FindingFields(Fields):
    """What makes losses fatal, and the one setting that mends it."""

    kind: FindingKind
    text: str
    mend: str
    topology: TopologyFields | None


class GateFields(Fields):
    """The losses that had to be survived; `passed` is null where nothing says it."""

    survive: str
    passed: bool | None


class AuditFields(Fields):
    """What losses would cost; `step` is null where no step can be recovered even now."""

    version: int
    root: str
    headline: str
    step: StepFields | None
    before_first_checkpoint: bool
    why: str
    disputed: bool
    world_size: Rank
    evidence: str
    hosts_known: bool
    topology: TopologyFields
    gate: GateFields | None
    levels: tuple[LevelFields, ...]
    pairs: tuple[LossFields, ...]
    chosen: tuple[LossFields, ...]
    blocks: tuple[BlockClassFields, ...]
    single_copy_bytes: Size | None
    fatal_ranks: tuple[tuple[Rank, ...], ...]
    findings: tuple[FindingFields, ...]


def audit_to_json(audit: Audit, gate: tuple[str, bool | None] | None = None) -> dict[str, Any]:
    """Return an audit as JSON values, with the losses that had to be survived and whether they are."""
    return to_json(
        fill(
            AuditFields,
            audit,
            version=1,
            step=_step(audit.step),
            before_first_checkpoint=audit.before,
            topology=_topology(audit.topology),
            gate=GateFields(*gate) if gate is not None else None,
            levels=tuple(map(_level, audit.levels)),
            pairs=tuple(map(_loss, audit.pairs)),
            chosen=tuple(map(_loss, audit.chosen)),
            blocks=tuple(fill(BlockClassFields, one) for one in audit.blocks),
            fatal_ranks=tuple(tuple(sorted(one)) for one in audit.fatal_ranks[:_MOST_SETS]),
            findings=tuple(map(_finding, audit.findings)),
        )
    )


def _step(step: Step | None) -> StepFields | None:
    return StepFields(step.epoch, step.step) if step is not None else None


def _loss(loss: Loss) -> LossFields:
    sources = tuple(SourceFields(host, count) for host, count in loss.sources)
    return fill(LossFields, loss, step=_step(loss.step), sources=sources)


def _big(count: int | None) -> int | str | None:
    return str(count) if count is not None and count > _LARGEST else count


def _losses(one: Losses) -> LossesFields:
    probability = float(one.probability) if one.probability is not None else None
    return fill(
        LossesFields,
        lost=one.count,
        possible=_big(one.possible),
        fatal=_big(one.fatal),
        newest=_big(one.newest),
        probability=probability,
    )


def _level(level: LevelAudit) -> LevelFields:
    return fill(
        LevelFields,
        level,
        level=level.name,
        domains=len(level.domains),
        smallest_fatal=level.smallest,
        smallest_fatal_count=_big(level.smallest_count),
        losses=tuple(map(_losses, level.losses)),
        singles=tuple(map(_loss, level.singles)),
    )


def _topology(topology: Topology) -> TopologyFields:
    return TopologyFields(topology.levels, topology.domains, topology.source)


def _finding(finding: Finding) -> FindingFields:
    topology = _topology(finding.topology) if finding.topology is not None else None
    return FindingFields(finding.kind, finding.text, finding.mend, topology)
