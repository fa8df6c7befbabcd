"""The plan after a loss: asked of the tree without the files that are lost, on the way that every plan goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from math import comb

from ms_recover.errors import MsRecoverError
from ms_recover.model.groups import each_once
from ms_recover.model.plan import RejectedStep
from ms_recover.planning.audit.blocks import Ranks, StepHolders, join_parts
from ms_recover.planning.audit.evidence import find_evidence
from ms_recover.planning.audit.families import FamilyIndex
from ms_recover.planning.audit.holders import find_holders
from ms_recover.planning.choice import AssessedPart, AssessedStep, Choice, assess_candidate, candidates_of
from ms_recover.planning.judging.dealt_out import lacks_kinds
from ms_recover.planning.judging.judge import Parts
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.tree.candidates import experiments_beside
from ms_recover.planning.tree.facts import Facts

_MOST_JUDGED = 12_000
"""Slices that are judged over all losses that are asked about: some seconds."""
_MOST_LOST = 3


class Losable:
    """A tree of which ranks may be lost.

    `ask` chooses a step without the files of some ranks, and says whether a plan would rest on it without reading
    slices that were not read for the tree as it is; its errors are those of a plan.
    """

    def __init__(self, tree: Parts, ask: Callable[[Ranks], tuple[Choice[AssessedStep], bool]]) -> None:
        self._tree, self._ask = tree, ask
        self._known: dict[Ranks, tuple[StepHolders | None, str]] = {}

    def after(self, ranks: Ranks, steps: Sequence[StepHolders]) -> tuple[StepHolders | None, str]:
        """Return who holds what at the step that a plan takes after the files of some ranks are gone.

        None where it takes none; and why it takes none, or not the newest of the `steps` that can be recovered now.
        Where that rests on slices that were not read, the holders of blocks must show it as well.
        """
        if ranks not in self._known:
            self._known[ranks] = self._find(ranks, steps)
        return self._known[ranks]

    def _find(self, ranks: Ranks, steps: Sequence[StepHolders]) -> tuple[StepHolders | None, str]:
        try:
            choice, known = self._ask(ranks)
        except MsRecoverError as error:
            return None, str(error)
        if not choice.found:
            return None, choice.shown.why or ""
        if not known:
            now = next((holders for holders in steps if holders.step == choice.shown.step), steps[0])
            if FamilyIndex(now.sure).find(ranks) is not None:
                return None, ""
        parts = choice.shown.value.parts
        holders = join_parts([find_holders(part.supply, find_evidence(part.supply.facts)) for part in parts])
        return holders, next((rejected.reason for rejected in choice.rejected if rejected.step == steps[0].step), "")

    def most_lost(self, domains: int, *, assumed: bool = False) -> int:
        """Return how many of some domains may be lost at once so that the plan after each such loss is asked.

        None where that shows no more than the holders of blocks do, or losses are many. What holders are `assumed` to
        hold a plan reads.
        """
        slices = len(self._tree.facts.inventory.slices)
        losses, most = 0, 0
        for lost in range(1, min(domains, _MOST_LOST) + 1):
            losses += comb(domains, lost)
            if losses * slices <= _MOST_JUDGED:
                most = lost
        return most if most and (assumed or not self._is_settled) else 0

    @cached_property
    def _is_settled(self) -> bool:
        """Whether no slice is worth what it is by others that may be lost."""
        tree = self._tree
        if tree.facts.options.ranks is not None or tree.facts.inventory.orphans:
            return False
        if not all(map(_agree, tree.every())):
            return False
        for candidate in candidates_of(tree.facts):
            if isinstance(candidate, RejectedStep) or not all(
                map(_is_sound, assess_candidate(tree, candidate).value.parts)
            ):
                return False
        return True


def _agree(compared: Comparison) -> bool:
    """Whether rank lists, layouts and parameter lists agree with each other and with the slices."""
    facts, structure = compared.facts, compared.structure
    against = (
        facts.groups.contested,
        facts.stages.contradicts,
        facts.inventory.strategy_files and facts.stages.problem,
        facts.trials,
        facts.world.rejected_lists,
        facts.experiments.taken and experiments_beside(facts),
        structure.damaged,
        structure.conflicts,
        structure.deduplicated,
        structure.doubtful,
        compared.refuted,
    )
    if any(against) or lacks_kinds(compared):
        return False
    return _lists_agree(facts) and all(slice_.manifest is None or slice_.saved for slice_ in facts.counted)


def _lists_agree(facts: Facts) -> bool:
    """Whether rank lists, manifests and layouts name every rank, and all the same as holders of the same slice."""
    groups, families = facts.groups, facts.stages.families
    stated = [file.info.sorted_ranks for file in facts.inventory.group_files if file.info is not None]
    stated += [each_once(slice_.manifest.group) for slice_ in facts.counted if slice_.manifest is not None]
    stated += [families[rank] for rank in groups.members if rank in families]
    if not {rank for ranks in stated for rank in ranks}.issuperset(range(facts.world.ranks)):
        return False
    return all(groups.of(rank) == ranks for ranks in stated for rank in ranks)


def _is_sound(part: AssessedPart) -> bool:
    judgement = part.supply.judgement
    return not judgement.disagreements and all(one.status == "sound" for one in judgement.slices.values())
