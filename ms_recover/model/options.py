"""Options of the verbs, each as one value that travels whole."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.axes import DEFAULT_ORDER, Axes
from ms_recover.model.steps import Step


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOptions:
    """How a tree is laid out."""

    pattern: str | None = None
    """Where slices lie below the root, with ``{rank} {prefix} {epoch} {step}``; None for the usual layouts."""
    group_info: tuple[str, ...] = ()
    """``group_info.pb`` files that are not beside the slices; ``{rank}`` stands for the owner."""
    strategy: tuple[str, ...] = ()
    """Strategy files that are not beside the slices, likewise; without ``{rank}`` a file is of the stage it names."""
    crc: bool = True
    """Check the CRC-32 of slices that carry one."""
    headers: bool = True
    """Open each slice for its header. Without, a slice is as its manifest says, and nothing is known of one without."""
    may_be_empty: bool = False
    """A root without any rank's directory is no error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """What the operator decides about a plan."""

    step: Step | None = None
    """Consider this step only; by default the newest recoverable one."""
    clean: bool = False
    """Consider only steps at which all ranks that hold the same agreed, by the digests of their manifests: see
    `ms_recover.model.history`. Not with `step`.
    """
    lost: frozenset[int] = frozenset()
    """Ranks whose slices count as gone, whatever lies there."""
    world_size: int | None = None
    """Number of ranks; by default derived from manifests, strategy files, rank lists and files."""
    groups: tuple[frozenset[int], ...] = ()
    """The operator's word: each group of ranks holds the same slice, where no file says it."""
    axes: Axes | None = None
    """The operator's word in another form: the sizes of the parallel axes, from which the groups follow."""
    order: tuple[str, ...] = DEFAULT_ORDER
    """Of `axes`, the one that neighbouring ranks differ in first."""
    optimizer_shards: int = 0
    """With `axes`: into how many shards MindSpore's optimizer parallel cuts what replicas hold; 0 for none, -1 for as
    many as there are replicas.
    """
    run: str | None = None
    """The run to recover, by its id, or an experiment by the prefix that its program gave; where no manifest names any,
    by the prefix of slices. By default the run that was started last. Runs come with those that they go on from.
    """
    experiments: tuple[str, ...] = ()
    """The prefixes that the program gave its savers: only runs of these experiments are considered, unless `run` names
    another one. Empty where they are not known.
    """
    newest: bool = False
    """Where a step was saved by several runs, take that which most ranks have, of equals the one modified last."""
    tolerate: tuple[str, ...] = ()
    """Shell patterns of parameters that may differ between replicas, beside the known ones."""
    quick: bool = False
    """Judge by headers and manifests; do not compare replicas by contents."""
    ranks: frozenset[int] | None = None
    """Only these ranks need a slice, because the others are recovered elsewhere; None for all."""
    follow: tuple[str, ...] = ()
    """Directories of this host out of the root: where a link in the tree leads below one of them, files are written
    there.
    """
    require_newest: bool = False
    """Refuse to go back behind a newer step that was given up: planning raises OlderStepError instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """What an audit is about, beside the plan."""

    losses: int = 2
    """Domains that are lost at once, up to which losses are counted."""
    bandwidth: float | None = None
    """Bytes a second that a host sends or receives."""


DEFAULT_AUDIT = AuditOptions()
DEFAULT_SCAN = ScanOptions()
DEFAULT_PLAN = PlanOptions()
