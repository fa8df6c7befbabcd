"""The nouns of judging: the worth of a slice, the worth of a step, and the case that a rule decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ms_recover.model.grouped import grouped
from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence, SliceStatus
from ms_recover.planning.judging.misplaced import ContentIndex
from ms_recover.planning.judging.structure import StructureFindings
from ms_recover.planning.tree.facts import Facts, SliceFacts
from ms_recover.planning.tree.runs import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The worth of one slice, the reason for the operator, and the ground for a sound one.

    `borrowed` are the parameters in which its replicas differ as they may; `good` those that may be used of a slice
    that is not sound, None for none. One that is `kept` is not replaced although it is not sound: others differ from
    it, but training saved it so. One that is `whole` is called damaged for what its manifest says of its place, or for
    what other slices list, alone; that of one that is `failing` a device does not give, so that it need not be wrong.
    """

    status: SliceStatus
    reason: str
    evidence: Evidence = "structure"
    borrowed: tuple[str, ...] = ()
    good: frozenset[str] | None = None
    kept: bool = False
    whole: bool = False
    failing: bool = False

    @property
    def proven_damaged(self) -> bool:
        """Whether its bytes are known to be wrong: by its own manifest, its header, or a checksum."""
        return self.status == "damaged" and not self.whole


@dataclass(frozen=True, kw_only=True)
class StepJudgement:
    """The worth of the slices of one step by path, as those of one run; slices of ranks declared lost are not judged.

    `disagreements` has the ranks that should hold the same and differ, with nothing to settle who is right; `refuted`
    the strategy files that slices of other steps contradict, each path with the reason.
    """

    step: Step
    run: Run
    slices: Mapping[str, Judgement]
    disagreements: Mapping[tuple[int, ...], str]
    structure: StructureFindings
    refuted: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What slices show about each other over all steps, computed once: by their parameter lists, and by their bytes.

    `refuted` has by step the strategy files that its slices contradict, each path with the reason. Unless `all_read`,
    more may be read: `unread` must be before the operator's word is judged.
    """

    facts: Facts
    contents: ContentIndex
    structure: StructureFindings = field(default_factory=StructureFindings)
    all_read: bool = True
    refuted: Mapping[Step, Mapping[str, str]] = field(default_factory=dict)
    unread: tuple[SliceFile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """The slices of one step while they are judged; see `judge_step` for the run and `sealing`.

    `slices` has all but those of lost ranks, `pending` those that no earlier rule has judged, `judged` what they did
    judge.
    """

    compared: Comparison
    step: Step
    run: Run
    sealing: bool
    slices: tuple[SliceFacts, ...]
    pending: tuple[SliceFacts, ...]
    judged: Mapping[str, Judgement]

    @property
    def facts(self) -> Facts:
        """The tree."""
        return self.compared.facts

    def by_group(self) -> dict[tuple[int, ...], list[SliceFacts]]:
        """Return the pending slices by the rank list they belong to."""
        return grouped(self.pending, lambda one: one.group)

    def any_of_run(self, kind: str) -> SliceFacts | None:
        """Return a slice of the run whose manifest, which need not be sound, says it was saved, or sealed."""
        return next(
            (
                slice_
                for slice_ in self.slices
                if slice_.manifest is not None
                and slice_.manifest.provenance.kind == kind
                and self.run.why_foreign(slice_.file) is None
            ),
            None,
        )


@dataclass(frozen=True, kw_only=True)
class Ruling:
    """The result of one rule: by path the slices that it decides, and disagreements as in `StepJudgement`."""

    slices: Mapping[str, Judgement] = field(default_factory=dict)
    disagreements: Mapping[tuple[int, ...], str] = field(default_factory=dict)
