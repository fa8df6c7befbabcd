"""The history of a run: at which steps replicas agreed, by the digests in manifests; and what became of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ms_recover.file_names import WeightKind
from ms_recover.model.manifest import RunStep
from ms_recover.model.steps import Step
from ms_recover.model.units import Count, Moment, Rank

StepState = Literal["clean", "uncompared", "disagreed"]
"""``clean``: all ranks that hold the same agreed, none missing; ``uncompared``: nothing differs, but some ranks' values
were not there to be compared; ``disagreed``: some parameter differs that never may."""

ValueKind = Literal["nan", "inf", "zero", "damaged"]
"""``zero``: every element is zero; ``damaged``: the bytes on the disk are not those that the manifest states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRun:
    """A run that saved slices in the tree."""

    run_id: str
    """Empty for slices that no manifest with a run id describes."""
    started: Moment | None = None
    """In milliseconds since 1970 in UTC, None where manifests do not state it."""
    resumed_from: RunStep | None = None
    """The step of another run that it goes on from."""
    first: Step | None = None
    last: Step | None = None
    """Its oldest and newest step in the tree, None where only slices that were set aside are left of it."""
    followed: bool = True
    """The history is about it: it is the chosen run, or one that this goes on from."""
    until: Step | None = None
    """Of a run that is followed, the step from which the next one went on: its later steps are no part of the history.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryStep:
    """One step of the run, and whether ranks that hold the same had the same values then."""

    RECORD = "*step run_id state ranks missing parameters reason"

    step: Step
    run_id: str
    state: StepState
    ranks: Count
    """Ranks of which a manifest was there, own values and recovered slices included."""
    missing: tuple[Rank, ...] = ()
    """Ranks that other steps have values of, and this one does not: no manifest, or a slice recovered from others."""
    parameters: tuple[str, ...] = ()
    """Those that differ, sorted."""
    reason: str = ""
    """Why it is not clean; empty for a clean one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A parameter of which ranks that hold the same had different values, from one step on."""

    RECORD = "parameter first last steps agreed_until ranks sides outvoted later suspects recorded source part?=kind"

    parameter: str
    first: Step
    """The first step at which they differ."""
    last: Step
    """The newest step at which they differ."""
    steps: Count
    """At how many steps they differ."""
    agreed_until: Step | None
    """The newest step before `first` at which they agreed; None when no step before shows them."""
    sides: tuple[tuple[Rank, ...], ...]
    """The ranks by their values at `first`: those with equal values together, most first."""
    outvoted: tuple[Rank, ...]
    """The ranks that more than half of the others contradict; empty where the vote is a tie."""
    later: tuple[Rank, ...] = ()
    """Ranks that joined no majority at later steps only."""
    suspects: tuple[Rank, ...] = ()
    """In a tie, the ranks of one side that were outvoted in other parameters by then; empty where there are none."""
    recorded: bool = False
    """Training noticed it, and records the parameter as rank-local."""
    source: str = ""
    """What states that these ranks hold the same."""
    kind: WeightKind | None = None
    """In a tree of iterations, of which file it is a parameter."""

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """All ranks that hold it, ascending."""
        return tuple(sorted(rank for side in self.sides for rank in side))


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnValues:
    """A parameter of which ranks have values of their own, as manifests record or its name says: no disagreement."""

    parameter: str
    first: Step
    """The first step at which they differ."""
    ranks: tuple[Rank, ...]
    recorded: bool
    """Manifests record it as rank-local; otherwise it may differ by its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """A parameter that changed from step to step, and then no more."""

    parameter: str
    since: Step
    """The first step with the value that it kept to the newest one."""
    steps: Count
    """Steps with that value."""
    ranks: tuple[Rank, ...]
    """Ranks on which it stopped."""
    elements: Count
    """Elements on one rank; a single one is mostly a counter, a rate or a scale."""
    everywhere: bool = True
    """On every rank that has it; otherwise it still changes on others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OddValues:
    """A parameter of a rank that has NaN or Inf, became all zero, or is not what its manifest states; by reading it."""

    parameter: str
    kind: ValueKind
    first: Step
    last: Step
    ranks: tuple[Rank, ...]
    """Ranks with such a value at `first`."""
    count: Count
    """Most such elements in one rank's slice."""
    steps: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What manifests state about a run, step by step."""

    RECORD = (
        "version root ok world_size run_id clean clean_reason newest runs steps disagreements own stopped frozen alone "
        "read read_bytes values zeros unread notes"
    )

    version: ClassVar[int] = 1

    root: str
    world_size: Count
    run_id: str | None
    """The run that is followed; None where no manifest names one."""
    steps: tuple[HistoryStep, ...]
    """Oldest first, in the order in which they were trained."""
    clean: Step | None
    """The last clean step: the newest at which all ranks that hold the same agreed."""
    clean_reason: str
    """Why there is none; empty where there is one."""
    runs: tuple[HistoryRun, ...] = ()
    """Oldest first."""
    disagreements: tuple[Disagreement, ...] = ()
    """By first step and parameter."""
    own: tuple[OwnValues, ...] = ()
    stopped: tuple[Stopped, ...] = ()
    frozen: tuple[str, ...] = ()
    """Parameters that never changed, at no step: frozen by the training, or constants."""
    alone: tuple[Rank, ...] = ()
    """Ranks of which some parameter was compared with nobody at any step."""
    values: tuple[OddValues, ...] = ()
    """With `read`."""
    zeros: tuple[str, ...] = ()
    """With `read`: parameters that were all zero at every step, which is no change."""
    read: bool = False
    """Whether contents were read."""
    read_bytes: Count = 0
    unread: tuple[str, ...] = ()
    """With `read`: what could not be read or judged, a clause each."""
    notes: tuple[str, ...] = ()
    """What is missing, and what it would take to compare it."""

    @property
    def newest(self) -> Step | None:
        """The newest step."""
        return self.steps[-1].step if self.steps else None

    @property
    def passed_over(self) -> tuple[HistoryStep, ...]:
        """Steps newer than the last clean one, newest first; all where there is none."""
        newer = []
        for one in reversed(self.steps):
            if one.step == self.clean:
                break
            newer.append(one)
        return tuple(newer)

    @property
    def ok(self) -> bool:
        """Whether no replicas disagreed, and no values are not finite or not those of the manifest."""
        return not self.disagreements and all(one.kind == "zero" for one in self.values)
