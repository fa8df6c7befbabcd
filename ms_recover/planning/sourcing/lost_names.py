"""Parameters that ``remove_redundancy=True`` dealt to slices that are lost, so that no slice lists them any more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import MissingRegion
from ms_recover.model.plan import Action, StepAssessment
from ms_recover.model.texts import list_some
from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.dealt_out import families
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.redundancy.layouts import NOT_SHARDED
from ms_recover.planning.sourcing.expected_parameters import stated_parameters
from ms_recover.planning.sourcing.parameters import ParameterIndex

_MOST_NAMED = 8


class LostNames:
    """Answers which parameters only the lost slices of a step had, by the layouts of their stage."""

    def __init__(self, index: ParameterIndex) -> None:
        self._index = index
        self._dealt = index.facts.kind is None and index.judgement.step in index.judgement.structure.deduplicated
        self._of_stage: dict[int, Mapping[str, int]] = {}

    def is_guessed(self, rank: int) -> bool:
        """Whether nothing of a rank's own states which parameters were dealt to it."""
        return self._dealt and stated_parameters(self._index, rank) is None

    def of(self, rank: int, *, complete: bool = False) -> tuple[MissingRegion, ...]:
        """Return those that may have been dealt to a rank; none where its own list is known, or nothing was dealt.

        A `complete` slice needs them all. Their bytes are those of another parameter of the same weight, 0 where no
        slice has one.
        """
        if not (self._dealt if complete else self.is_guessed(rank)):
            return ()
        stage = self._index.stages.of(rank)
        if stage not in self._of_stage:
            self._of_stage[stage] = self._find(stage)
        path = self._index.stages.paths[stage]
        reason = f"{path} names it and no slice lists it: remove_redundancy=True dealt it to a slice that is lost"
        owned = self._stated_by_others(stage) if self._of_stage[stage] and not complete else frozenset()
        found = self._of_stage[stage].items()
        return tuple(MissingRegion(name, (), size, reason) for name, size in found if name not in owned)

    def _find(self, stage: int) -> Mapping[str, int]:
        index, layouts = self._index, self._index.stages.layouts[stage]
        kinds = [kind[0] for kind in index.kinds.get(stage, ())]
        sizes = {
            name: parameter.nbytes
            for rank in kinds
            for name in index.slices[rank].listed.index
            if (parameter := index.find(rank, name)) is not None
        }
        unlisted = [name for name in sorted(layouts) if name not in sizes]
        if not unlisted:
            return {}
        never = self._never_saved(stage, sizes)
        of_weight = {_weight(name, layouts): size for name, size in sizes.items()}
        return {name: of_weight.get(_weight(name, layouts), 0) for name in unlisted if name not in never}

    def _never_saved(self, stage: int, listed: Collection[str]) -> frozenset[str]:
        """Return what layouts name and checkpoints of the stage leave out.

        All parameters of a kind, if none is listed although there are enough of them for every replica to get one,
        whatever a step lacks of which every slice of the stage is there, and what other stages list.
        """
        index, layouts = self._index, self._index.stages.layouts[stage]
        cuts = index.stages.cuts[stage]
        replicas = max((max(Counter(cut.parts).values()) for cut in cuts), default=1)
        kinds = [kind for kind in families(layouts).values() if len(kind) >= replicas and kind.isdisjoint(listed)]
        never = {name for kind in kinds for name in kind}
        if not any(name.startswith(NOT_SHARDED) for name in listed):
            never.update(name for name in layouts if name.startswith(NOT_SHARDED))
        prefixes = {one.file.prefix for one in index.slices.values()}
        for step in index.facts.steps:
            held = [index.facts.at(step, rank) for rank in index.stages.ranks(stage)]
            there = [
                one
                for slices in held
                for one in slices
                if one.file.prefix in prefixes and one.file.problem is None and one.file.encryption is None
            ]
            if len({one.rank for one in there}) == len(held):
                never.update(frozenset(layouts).difference(*(one.listed.index for one in there)))
        others = (index.slices[kind[0]].listed for one, kinds in index.kinds.items() if one != stage for kind in kinds)
        return frozenset(never).union(*(listed.index for listed in others))

    def _stated_by_others(self, stage: int) -> frozenset[str]:
        """Return what other lost slices had, by their manifests or their slices of other steps."""
        index = self._index
        lost = (rank for rank in index.stages.ranks(stage) if rank not in index.slices)
        lists = (stated_parameters(index, rank) for rank in lost)
        return frozenset(parameter.name for listed in lists for parameter in listed or ())


def _weight(name: str, layouts: Collection[str]) -> str:
    """Return the weight that a parameter is or is a state of."""
    weight = name.partition(".")[2]
    return weight if weight in layouts else name


def name_guessed(compared: Comparison, assessment: StepAssessment) -> list[str]:
    """Say where slices that a plan writes may lack something that nothing names any more."""
    step, doubt = assessment.step, compared.structure.doubtful.get(assessment.step)
    if doubt is not None and assessment.actions:
        text = f"step {step}: {doubt}; if remove_redundancy=True dealt it out, it is lost, and the new slices lack it"
        return [text]
    if not assessment.guessed:
        return []
    ranks = list_some(assessment.guessed, _MOST_NAMED)
    text = (
        f"step {step} was saved with remove_redundancy=True, and nothing states what the lost slice(s) of rank(s) "
        f"{ranks} listed: parameters without a layout that only they had cannot be named, and the new slices lack them"
    )
    return [text]


def name_lost_states(facts: Facts, assessment: StepAssessment) -> list[str]:
    """Name the ranks that random generators and callbacks do not come back for, and what a resume does then."""
    held = {one.path: one for rank in facts.steps.get(assessment.step, {}).values() for one in rank}
    actions = {action.rank: action for action in assessment.actions}
    wrong, recovered, own = [], [], []
    for verdict in assessment.ranks:
        one = held.get(verdict.path or "")
        if verdict.verdict == "keep" and one is not None and one.state_problem is not None:
            wrong.append(f"rank {verdict.rank}: {one.state_problem}")
        sources = _source_ranks(actions[verdict.rank]) if verdict.rank in actions else ()
        givers = [one for rank in sources for one in facts.at(assessment.step, rank) if _has_state(one)]
        differ = {_states_differ(one) for one in givers}
        if True in differ:
            own.append(verdict.rank)
        elif None in differ:
            recovered.append(verdict.rank)
    texts = []
    if wrong:
        texts.append(
            f"state files are wrong ({list_some(wrong, _MOST_NAMED, separator='; ')}): training resumes with these "
            "slices, but random generators and callbacks begin anew"
        )
    if recovered:
        texts.append(
            f"the state files of rank(s) {list_some(recovered, _MOST_NAMED)} are lost with their slices: training "
            "resumes with the random generators and callbacks of the ranks that the slices come from, where their "
            "files are in reach, else these begin anew; it says which"
        )
    if own:
        texts.append(
            f"the state files of rank(s) {list_some(own, _MOST_NAMED)} are lost with their slices, and differ from "
            "those of other ranks in random generators, callbacks or values of the program: unless a rank's own state "
            "file is still there, training resumes one step back, where every rank has its own; rank_local='peer' "
            "resumes at this step with another rank's"
        )
    return texts


def _source_ranks(action: Action) -> tuple[int, ...]:
    return (action.source_rank,) if isinstance(action, CopyAction) else action.source_ranks


def _states_differ(one: SliceFacts) -> bool | None:
    """Whether the states of a slice's group differed, None where nobody compared them."""
    training = one.manifest.training if one.manifest is not None else None
    return training.states_differ if training is not None else None


def _has_state(one: SliceFacts) -> bool:
    training = one.manifest.training if one.manifest is not None else None
    return training is not None and training.state_digest is not None and one.state_problem is None
