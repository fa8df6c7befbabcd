"""A recovery plan: what is there, what will be copied from where, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ms_recover.file_names import WeightKind
from ms_recover.model.actions import CopyAction, FileState
from ms_recover.model.compose import ComposeAction, MissingRegion
from ms_recover.model.inventory import Note
from ms_recover.model.places import Obstacle
from ms_recover.model.steps import Step
from ms_recover.model.units import Rank
from ms_recover.model.verdicts import Answer, Evidence, RankState, Verdict

if TYPE_CHECKING:
    from ms_recover.model.shard_metadata import CommonInfo, ShardMetadata

PLAN_VERSION: Final = 2

Action = CopyAction | ComposeAction


@dataclass(frozen=True, slots=True)
class RankVerdict:
    """What a plan says about one rank at one step."""

    rank: int
    state: RankState
    verdict: Verdict
    reason: str
    path: str | None = None
    """The rank's slice, relative to the root: the file kept, or the target of the copy."""
    source_rank: int | None = None
    source: str | None = None
    """Its slice, relative to the root."""
    evidence: Evidence | None = None
    """The ground for the slice, or for its sources."""
    missing: tuple[MissingRegion, ...] = ()
    """The part of an unrecoverable slice that nobody holds, where layouts are known."""
    bytes: int | None = None
    """Bytes of contents of the whole slice, where it is rebuilt from layouts or cannot be."""
    kind: WeightKind | None = None
    """The file of a rank's slice that this is about, where a slice is a model file and an optimizer file."""
    by_kind: tuple[RankVerdict, ...] = ()
    """The verdicts on these files, model file first; this verdict is then that of the worst."""

    @property
    def files(self) -> tuple[RankVerdict, ...]:
        """The verdicts by file, where there are several."""
        return self.by_kind or (self,)


@dataclass(frozen=True, slots=True)
class DocumentWrite:
    """Write a document of MindFormers that is missing, damaged, or contradicts the files."""

    target: str
    """Path relative to the root."""
    value: ShardMetadata | CommonInfo | int
    """Its contents, by its name: metadata, the progress of training, or the iteration that the tracker names."""
    replaces: FileState | None
    """What lay there when the plan was made."""
    reason: str
    """What is wrong with it."""
    sources: tuple[str, ...] = ()
    """Where its contents come from, a clause each."""
    unknown: tuple[str, ...] = ()
    """Members whose values nothing states: they are null."""
    assumed: tuple[str, ...] = ()
    """Members whose values other iterations have, which nothing proves for this one."""

    def with_gaps(self, *, unknown: tuple[str, ...], assumed: tuple[str, ...]) -> DocumentWrite:
        """Return it with members that are not known, or not proven."""
        return replace(self, unknown=unknown, assumed=assumed)


@dataclass(frozen=True, slots=True)
class GroupWrite:
    """Write the ``group_info.pb`` that a recovered directory had lost."""

    rank: int
    target: str
    """Path relative to the root."""
    restore_ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StrategyWrite:
    """Write the strategy file that a recovered directory had lost: that of another rank of its stage."""

    rank: int
    target: str
    """Path relative to the root."""
    source_rank: int
    source: str
    """Path relative to the root."""
    digest: str
    """Of the bytes of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaWrite:
    """Write the ``meta.json`` of MindFormers that names a rank's slice of the planned step."""

    rank: int
    target: str
    """Path relative to the root."""
    file: str
    """Name of the slice."""
    replaces: str | None
    """Name of the slice that the file there names; None where there is no file, or none that can be read."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUpSlice:
    """Rename a slice of a step that is given up, with what lies beside it: ``.superseded`` is appended."""

    rank: int
    path: str
    """Relative to the root."""
    state: FileState | None
    """The state it must still have; None where only what lies beside it is there."""
    reason: str


@dataclass(frozen=True, slots=True)
class RejectedStep:
    """A step newer than the planned one, or one that may be, and why it is not taken."""

    RECORD = "*step reason another_run ranks may_be_newer? another_experiment?"

    step: Step
    reason: str
    another_run: bool = False
    """Only an older run has slices of it: the planned run never reached it."""
    ranks: tuple[Rank, ...] = ()
    """The ranks without a source at it, where its best run is known."""
    may_be_newer: bool = False
    """It is of a later run than the planned step, and nothing states which of both was trained longer."""
    another_experiment: bool = False
    """Only other experiments have slices of it: one warning names them all."""


def of_this_run(rejected: tuple[RejectedStep, ...]) -> tuple[RejectedStep, ...]:
    """Return the rejected steps that the planned run reached."""
    return tuple(one for one in rejected if not one.another_run)


def texts_of_passed_over(rejected: Iterable[RejectedStep]) -> list[str]:
    """Return a warning for each rejected step; the newest that another run has stands for all with the same reason.

    Those of other experiments are left out.
    """
    told: set[str] = set()
    texts = []
    for one in (step for step in rejected if not step.another_experiment):
        if not one.another_run or one.reason not in told:
            verdict = "may be newer" if one.may_be_newer else "is passed over"
            texts.append(f"step {one.step} {verdict}: {one.reason}")
        told.add(one.reason)
    return texts


@dataclass(frozen=True, slots=True)
class StepAssessment:
    """Every rank's verdict at one step."""

    step: Step
    ranks: tuple[RankVerdict, ...]
    """Index = rank."""
    actions: tuple[Action, ...]
    """One per rank whose verdict is ``"copy"`` or ``"compose"``, by rank."""
    run_id: str | None = None
    """The run whose slices these are; None when no manifest says so."""
    disagreements: tuple[str, ...] = ()
    """Groups whose members hold different contents, with nothing to say who is right."""
    partials: tuple[ComposeAction, ...] = ()
    """For ranks whose slice cannot be had: what survives of it."""
    guessed: tuple[int, ...] = ()
    """Ranks that get what other slices list, because nothing states what ``remove_redundancy=True`` dealt to them."""

    kept: tuple[str, ...] = ()
    """Slices from which more others differ, and which stay because training saved them so: rank, path and reason."""

    @property
    def recoverable(self) -> bool:
        """Whether every rank keeps its slice or gets one."""
        return all(rank.verdict != "unrecoverable" for rank in self.ranks)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do so that every rank has its slice of one step."""

    root: str
    """Absolute path of the tree."""
    world_size: int
    world_size_from: str
    """What the world size rests on."""
    step: Step | None
    """The newest recoverable step; None when there is none."""
    actions: tuple[Action, ...]
    """By rank; empty when nothing is to do or nothing can be done."""
    group_files: tuple[GroupWrite, ...]
    """By rank."""
    ranks: tuple[RankVerdict, ...]
    """At `step`, or at the newest step when none is recoverable."""
    rejected_steps: tuple[RejectedStep, ...] = ()
    """Newest first."""
    notes: tuple[Note, ...] = ()
    """What was seen and not used, and inputs that are damaged."""
    run_id: str | None = None
    """The run whose slices the step is made of; None when no manifest says so."""
    disagreements: tuple[str, ...] = ()
    """Why nothing is planned although slices are there: replicas differ, with nothing to say who is right."""
    partials: tuple[ComposeAction, ...] = ()
    """Where no step is recoverable: what survives of the slices that are gone, for ``apply --partial``."""
    considered: Step | None = None
    """The step of `ranks`."""
    world_size_guessed: bool = False
    """Nothing states the world size: more ranks may be missing than the plan can know."""
    warnings: tuple[str, ...] = ()
    """What the operator must know before applying the plan: steps that were given up, older runs."""
    documents: tuple[DocumentWrite, ...] = ()
    """In the order in which they are written, after everything else."""
    meta_files: tuple[MetaWrite, ...] = ()
    """By rank; where a MindFormers tree is to resume from the planned step."""
    hints: tuple[str, ...] = ()
    """Where a rank has no source: evidence that was seen, equal bytes, and the options that make a recovery of it."""
    strategy_files: tuple[StrategyWrite, ...] = ()
    """By rank."""
    cumulative_step: int | None = None
    """Steps that were trained before `step`, since the very beginning; None where nothing states it."""
    set_aside: tuple[GivenUpSlice, ...] = ()
    """Slices that would keep a training from resuming from the planned step, by rank and path; once every rank has its
    slice.
    """
    follow: tuple[str, ...] = ()
    """Real directories out of the root, absolute, that links may lead to and below which files are written."""
    obstacles: tuple[Obstacle, ...] = ()
    """What keeps files from being written where they belong, as the plan saw it: applying it would fail there."""

    @property
    def changes_anything(self) -> bool:
        """Whether applying it would write something; a plan without a step is not applied."""
        files = self.actions or self.group_files or self.meta_files or self.documents
        return self.step is not None and bool(files or self.set_aside)

    @property
    def answer(self) -> Answer:
        """The answer in a word; that of a step which ``--require-newest`` refuses is the caller's to know."""
        if self.step is not None:
            if self.obstacles:
                return "BLOCKED"
            if self.actions:
                return "RECOVERABLE"
            return "UNCERTAIN" if self.world_size_guessed else "COMPLETE"
        bad = [rank for rank in self.ranks if rank.verdict == "unrecoverable"]
        if any(rank.state == "unreadable" for rank in bad):
            return "PERMISSION DENIED"
        if self.disagreements:
            return "UNDECIDED"
        return "UNRECOVERABLE" if bad else "UNHEALTHY"

    @property
    def given_up(self) -> tuple[RejectedStep, ...]:
        """Steps of the planned run that are newer than the planned one."""
        return of_this_run(self.rejected_steps)

    @property
    def not_newest(self) -> tuple[RejectedStep, ...]:
        """Steps for which the planned one may not be the newest: those given up, or undecided."""
        return self.given_up or tuple(one for one in self.rejected_steps if one.may_be_newer)

    @property
    def recoverable(self) -> bool:
        """Whether there is a step that every rank can be brought to."""
        return self.step is not None

    @property
    def bytes_to_copy(self) -> int:
        """Bytes that the actions will copy."""
        return sum(action.bytes for action in self.actions)


def waves_of(actions: Sequence[Action]) -> tuple[tuple[Action, ...], ...]:
    """Return actions in waves, so that no slice is replaced before the actions that read it are done.

    A slice that was outvoted in one parameter gives others to a lost rank, and is mended itself. Only actions that need
    each other's old bytes share a wave, the last one: the first that ends leaves the others to the next plan.
    """
    targets = {action.target for action in actions}
    reads = [targets.intersection(one.path for one in action.replicas) - {action.target} for action in actions]
    left = list(range(len(actions)))
    waves: list[tuple[Action, ...]] = []
    while left:
        readers = Counter(path for index in left for path in reads[index])
        free = [index for index in left if not readers[actions[index].target]] or left
        waves.append(tuple(actions[index] for index in free))
        planned = set(free)
        left = [index for index in left if index not in planned]
    return tuple(waves)
