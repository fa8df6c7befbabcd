"""What the slices of one judged step can give: the one value that every verb takes sources from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod

from ms_recover.model.compose import MissingRegion
from ms_recover.model.groups import rank_list
from ms_recover.model.rank_local import share_nothing
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import RankState
from ms_recover.planning.judging.judge import judge_part
from ms_recover.planning.judging.judgement import Comparison, Judgement, StepJudgement
from ms_recover.planning.supply.expected_parameters import LostNames
from ms_recover.planning.supply.parameters import ParameterIndex
from ms_recover.planning.supply.settle import Settled, Settlement
from ms_recover.planning.tree.facts import Facts, SliceFacts
from ms_recover.planning.tree.runs import Run


@dataclass(frozen=True, kw_only=True)
class Sound:
    """A rank's sound slice of the step."""

    slice: SliceFacts
    judgement: Judgement


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A rank's slice of the step that stays, and gives nothing that others hold differently."""

    slice: SliceFacts
    judgement: Judgement


@dataclass(frozen=True, kw_only=True)
class Unsound:
    """The reason why a rank has no sound slice of the step."""

    state: RankState
    reason: str
    ambiguous: bool = False


@dataclass(frozen=True, eq=False)
class Supply:
    """The slices of a step as those of one run, judged, and what each rank holds.

    Parameters
    ----------
    facts : Facts
        The facts about the part of the tree.
    judgement : StepJudgement
        The worth of each slice.
    holdings : tuple of Sound, Kept or Unsound
        What each rank of the world holds; index = rank.
    """

    facts: Facts
    judgement: StepJudgement
    holdings: tuple[Sound | Kept | Unsound, ...]

    @classmethod
    def of(cls, facts: Facts, judgement: StepJudgement) -> Supply:
        """Return what the slices of a judged step can give."""
        return cls(facts, judgement, tuple(_holding(facts, judgement, rank) for rank in range(facts.world.ranks)))

    @cached_property
    def sound(self) -> Mapping[int, SliceFacts]:
        """The slices that can be relied on, by rank."""
        return {rank: holding.slice for rank, holding in enumerate(self.holdings) if isinstance(holding, Sound)}

    @cached_property
    def kept(self) -> Mapping[int, SliceFacts]:
        """The slices that stay although more others differ from them, by rank."""
        return {rank: holding.slice for rank, holding in enumerate(self.holdings) if isinstance(holding, Kept)}

    @cached_property
    def index(self) -> ParameterIndex:
        """What the slices that may give something list and contain."""
        return ParameterIndex(self.facts, self.judgement, self.sound)

    @cached_property
    def settlement(self) -> Settlement:
        """For each region of a parameter the ranks that may give it, or the reason why there is none."""
        return Settlement(self.index)

    def copies(self, rank: int) -> tuple[int, ...]:
        """Return the ranks of a group with a slice that can be copied, a sound rank itself included; none where not."""
        if not self.facts.groups.knows(rank):
            return ()
        group = self.facts.groups.of(rank)
        if group not in self._copies:
            peers = group if self.why_no_replicas(group) is None else ()
            slices = [self.sound[peer] for peer in peers if peer in self.sound]
            own = any(
                share_nothing({p.name: prod(p.shape) for p in slice_.listed}, local)
                for slice_ in slices
                if (local := slice_.rank_local)
            )
            self._copies[group] = () if own else rank_list(slice_.rank for slice_ in slices)
        return self._copies[group]

    def why_no_replicas(self, group: tuple[int, ...]) -> str | None:
        """Return why ranks that are said to hold the same slice do not at this step; None where they may."""
        structure, step = self.judgement.structure, self.judgement.step
        apart = structure.conflicts.get((group, step)) or structure.deduplicated.get(step)
        if apart is not None:
            return f"its group is no set of replicas at this step: {apart}"
        if group in self.judgement.disagreements:
            return "its group disagrees and nothing settles who is right"
        return None

    def who(self, rank: int, parameter: Parameter) -> Settled:
        """Return the ranks that may give what a rank's slice should hold of a parameter, or why nobody may."""
        return self.settlement.settle_for(rank, parameter)

    def unlisted(self, rank: int, *, complete: bool = False) -> tuple[MissingRegion, ...]:
        """Return the parameters that no slice lists any more and a rank's, or its `complete` one, may have had."""
        return self._lost_names.of(rank, complete=complete)

    def is_guessed(self, rank: int) -> bool:
        """Whether nothing of a rank's own states which parameters were dealt to it."""
        return self._lost_names.is_guessed(rank)

    def names_too_few(self, stage: int, expected: Iterable[Parameter] = ()) -> bool:
        """Whether the strategy file of a stage cannot be that of its slices; MindSpore's names all but a few scalars.

        Scalars would outweigh a named parameter without elements, so beside one they do not count. Where parameters
        were dealt out, one slice may have nothing but scalars; where there is no slice, `expected` is the list of one.
        """
        if stage not in self._too_few:
            kinds = self.index.kinds.get(stage, ())
            listed = {parameter.name: parameter for kind in kinds for parameter in self.index.slices[kind[0]].listed}
            layouts, named = self.index.stages.layouts.get(stage, {}), Counter[bool]()
            parameters = listed.values() or tuple(expected)
            empty = any(parameter.name in layouts and not parameter.nbytes for parameter in parameters)
            for parameter in parameters:
                named[parameter.name in layouts] += 0 if empty and parameter.is_counter else parameter.nbytes
            if not kinds:
                return named[False] > named[True]
            self._too_few[stage] = named[False] > named[True]
        return self._too_few[stage]

    @cached_property
    def _lost_names(self) -> LostNames:
        return LostNames(self.index)

    @cached_property
    def _too_few(self) -> dict[int, bool]:
        return {}

    @cached_property
    def _copies(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        return {}


def supply_of(compared: Comparison, step: Step, run: Run) -> Supply:
    """Judge the slices of a part of a step as `judge_part` does, and return what they can give."""
    return Supply.of(compared.facts, judge_part(compared, step, run))


def _holding(facts: Facts, judgement: StepJudgement, rank: int) -> Sound | Kept | Unsound:
    if rank in facts.lost:
        return Unsound(state="lost", reason="declared lost")
    if rank in facts.denied:
        note = facts.denied[rank]
        return Unsound(state="unreadable", reason=f"{note.path}: {note.reason}")
    slices = facts.at(judgement.step, rank)
    judged = [(slice_, judgement.slices[slice_.path]) for slice_ in slices]
    for slice_, worth in judged:
        if worth.status == "sound":
            return Sound(slice=slice_, judgement=worth)
    for slice_, worth in judged:
        if worth.kept:
            return Kept(slice=slice_, judgement=worth)
    if judged:
        statuses = {worth.status for _, worth in judged}
        named = ((slice_.path, worth.reason) for slice_, worth in judged)
        reasons = dict.fromkeys(why if path in why else f"{path}: {why}" for path, why in named)
        state: RankState = "unreadable" if "unreadable" in statuses else "damaged"
        if statuses == {"foreign"}:
            state = "missing" if all(judgement.run.why_foreign(slice_.file) for slice_, _ in judged) else "damaged"
        return Unsound(state=state, reason="; ".join(reasons), ambiguous="ambiguous" in statuses)
    if rank in facts.ranks:
        return Unsound(state="missing", reason=f"no slice of step {judgement.step}")
    return Unsound(state="missing", reason="no directory")
