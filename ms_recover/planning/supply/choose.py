"""Choose for each rank whether it keeps its slice, and else where its bytes come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import ComposeAction
from ms_recover.model.plan import RankVerdict, StepAssessment
from ms_recover.model.rank_local import borrowed_text, share_nothing
from ms_recover.model.texts import name_ranks, ranks_text
from ms_recover.model.verdicts import Evidence
from ms_recover.planning.judging.judgement import StepJudgement
from ms_recover.planning.judging.splits import why_no_replica
from ms_recover.planning.supply.compose import Composition, compose_slice, copy_action
from ms_recover.planning.supply.expected_parameters import find_own_manifest, other_contents, why_other_contents
from ms_recover.planning.supply.lent_values import borrowed_from, text_of_kept
from ms_recover.planning.supply.supply import Kept, Sound, Supply, Unsound
from ms_recover.planning.supply.target_path import keep_replaced, same_format_sources
from ms_recover.planning.tree.facts import Facts, SliceFacts


def choose_sources(supply: Supply) -> StepAssessment:
    """Choose a source for each rank that needs one.

    Sources within a group are spread evenly: each lost rank takes the member that serves fewest others so far, the
    lowest rank among equals.
    """
    facts, judgement = supply.facts, supply.judgement
    load: Counter[int] = Counter()
    verdicts: list[RankVerdict] = []
    actions: list[CopyAction | ComposeAction] = []
    partials: list[ComposeAction] = []
    disputes: list[str] = []
    guessed: list[int] = []
    kept: list[str] = []
    idle = facts.idle(judgement.step)
    for rank, holding in enumerate(supply.holdings):
        if rank in idle:
            verdicts.append(RankVerdict(rank=rank, state="ok", verdict="keep", reason="has no shard, and so no file"))
            continue
        if isinstance(holding, Sound | Kept):
            verdicts.append(_kept(holding))
            if isinstance(holding, Kept):
                kept.append(f"rank {rank}, {holding.slice.path}: {holding.judgement.reason}")
            continue
        own = [slice_ for slice_ in facts.at(judgement.step, rank) if not _is_foreign(judgement, slice_)]
        chosen = _copy_within_group(supply, rank, holding, own, load)
        layouts = facts.stages.why_unknown(rank) is None  # they go before the operator's word
        if isinstance(chosen, CopyAction) and not (layouts and rank in facts.groups.claimed):
            composed, reason = Composition(reason=chosen.reason, action=chosen), chosen.reason
        # A composed slice would hide that it is open which slice is right, or could not be written.
        elif holding.ambiguous or rank in facts.denied or facts.groups.of(rank) in judgement.disagreements:
            reason = f"{holding.reason}; {chosen}"
            composed = Composition(reason=str(chosen))
        else:
            composed = compose_slice(supply, rank, own, load)
            reason = f"{holding.reason}; {composed.reason}"
            if not isinstance(chosen, CopyAction):
                reason = f"{holding.reason}; {chosen}; {composed.reason}"
            elif composed.action is None and composed.dispute is None:
                composed, reason = Composition(reason=chosen.reason, action=chosen), chosen.reason
            partials += [composed.partial] if composed.partial is not None else []
            disputes += [composed.dispute] if composed.dispute is not None else []
            guessed += [rank] if supply.is_guessed(rank) else []
        verdicts.append(_mended(rank, holding, reason, composed))
        if composed.action is not None:
            actions.append(keep_replaced(composed.action, judgement))
            load.update(_source_ranks(composed.action, rank))
    disagreements = [text for _, text in sorted(judgement.disagreements.items())]
    return StepAssessment(
        step=judgement.step,
        ranks=tuple(verdicts),
        actions=tuple(actions),
        run_id=judgement.run.run_id,
        disagreements=tuple(dict.fromkeys([*disagreements, *disputes])),
        partials=tuple(partials),
        guessed=tuple(guessed),
        kept=tuple(kept),
    )


def _source_ranks(action: CopyAction | ComposeAction, rank: int) -> Iterable[int]:
    if isinstance(action, CopyAction):
        return (action.source_rank,)
    return (source for source in action.source_ranks if source != rank)


def _is_foreign(judgement: StepJudgement, one: SliceFacts) -> bool:
    """Whether a slice belongs to another run, so that it must stay as it is; slices of lost ranks are not judged."""
    found = judgement.slices.get(one.path)
    return found.status == "foreign" if found is not None else judgement.run.why_foreign(one.file) is not None


def _kept(holding: Sound | Kept) -> RankVerdict:
    lent = text_of_kept(holding.slice)
    return RankVerdict(
        rank=holding.slice.rank,
        state="ok",
        verdict="keep",
        reason=f"{holding.judgement.reason}; {lent}" if lent else holding.judgement.reason,
        path=holding.slice.path,
        evidence=holding.judgement.evidence,
    )


def _mended(rank: int, holding: Unsound, reason: str, composed: Composition) -> RankVerdict:
    """Return the verdict on a rank that gets its slice by an action, or cannot get it."""
    verdict = RankVerdict(
        rank=rank,
        state=holding.state,
        verdict="unrecoverable",
        reason=reason,
        missing=composed.missing,
        bytes=composed.bytes,
    )
    action = composed.action
    if action is None:
        return verdict
    if action.borrowed:
        reason = f"{reason}; {borrowed_text(action.borrowed, action.lenders)}"
    verdict = replace(verdict, path=action.target, evidence=action.evidence, reason=reason)
    if isinstance(action, CopyAction):
        return replace(verdict, verdict="copy", source_rank=action.source_rank, source=action.source, bytes=None)
    return replace(verdict, verdict="compose")


def _copy_within_group(
    supply: Supply, rank: int, holding: Unsound, own: Sequence[SliceFacts], load: Mapping[int, int]
) -> CopyAction | str:
    """Return the copy of a slice that a rank list calls the same, or the reason why there is none."""
    facts, judgement, holdings = supply.facts, supply.judgement, supply.holdings
    group = facts.groups.of(rank)
    others = [other for other in group if other != rank and other < facts.world.ranks]
    refusal = _why_no_copy(supply, rank, holding, others)
    if refusal is not None:
        return refusal
    able = [giver for other in others if isinstance(giver := holdings[other], Sound)]
    if not able:
        by_state: dict[str, list[int]] = {}
        for other in (*others, rank):
            by_state.setdefault(_state(holdings[other]), []).append(other)
        states = ", ".join(f"{name_ranks(ranks)} {state}" for state, ranks in by_state.items())
        doubt = facts.groups.contested.get(rank)
        more = f"; {doubt}{_WHICH_IS_RIGHT}" if doubt is not None else ""
        return f"nobody of its group [{ranks_text(group)}] has a sound slice ({states}){more}"
    able.sort(key=lambda giver: (giver.judgement.evidence == "structure", load[giver.slice.rank], giver.slice.rank))
    unlike = {giver.slice.rank: why_no_replica(facts, rank, giver.slice) for giver in able}
    able = [giver for giver in able if unlike[giver.slice.rank] is None]
    if not able:
        return next(why for why in unlike.values() if why is not None)
    manifest = find_own_manifest(facts, judgement, rank)
    odd = {giver.slice.rank: other_contents(manifest, giver.slice, _lent(giver)) for giver in able}
    against = {
        giver.slice.rank: _why_against(facts, judgement, rank, giver.slice, odd[giver.slice.rank]) for giver in able
    }
    able = [giver for giver in able if against[giver.slice.rank] is None]
    if not able:
        return next(why for why in against.values() if why is not None)
    usable, why = same_format_sources(facts, rank, own, [giver.slice for giver in able])
    if why is not None:
        return why
    source, judged = usable[0], judgement.slices[usable[0].path]
    borrowed = borrowed_from(source, (*judged.borrowed, *odd[source.rank]))
    if share_nothing({parameter.name: prod(parameter.shape) for parameter in source.listed}, source.rank_local):
        return f"its group [{ranks_text(group)}] is no set of replicas: each rank has its own values of every parameter"
    if judged.evidence == "manifest" and borrowed:  # of what may differ, only a manifest says whether it is sound
        usable = [slice_ for slice_ in usable if judgement.slices[slice_.path].evidence == "manifest"]
    ground = f"rank {source.rank} holds the same slice by {facts.groups.sources[rank]} ({judged.reason})"
    reason = f"{holding.reason}; {ground}"
    evidence: Evidence = "operator" if rank in facts.groups.claimed else judged.evidence
    return copy_action(facts, rank, own, usable, evidence=evidence, borrowed=borrowed).because(reason)


_WHICH_IS_RIGHT = ": name the right rank lists with --group-info, or remove the strategy file if it is of another job"


def _lent(giver: Sound) -> tuple[str, ...]:
    return borrowed_from(giver.slice, giver.judgement.borrowed)


def _why_against(
    facts: Facts, judgement: StepJudgement, rank: int, source: SliceFacts, odd: Sequence[str]
) -> str | None:
    """Return why a source is no copy of a slice whose manifest states some parameters otherwise; None if it may be.

    Those that may differ are lent by the source, unless layouts let the rank's own damaged slice give them.
    """
    judged = (judgement.slices.get(slice_.path) for slice_ in facts.at(judgement.step, rank))
    good = frozenset[str]().union(*(worth.good for worth in judged if worth is not None and worth.good is not None))
    composed = facts.stages.why_unknown(rank) is None and good.issuperset(odd)
    if not odd or (all(map(facts.tolerance.covers, odd)) and not composed):
        return None
    return why_other_contents(rank, source, odd)


def _why_no_copy(supply: Supply, rank: int, holding: Unsound, others: Sequence[int]) -> str | None:
    facts = supply.facts
    group = facts.groups.of(rank)
    if holding.ambiguous:
        return "nothing is copied over slices that may be right"
    if rank in facts.denied:
        return "nothing can be written there"
    if not facts.groups.knows(rank):
        if facts.kind is not None:
            return "nothing states another rank with the same file"
        return "no group_info.pb says who holds the same slice"
    if not others and rank in facts.groups.claimed:
        return f"by {facts.groups.sources[rank]}: no other rank is sure to hold the same slice"
    if not others and rank in facts.groups.contested:
        return facts.groups.contested[rank] + _WHICH_IS_RIGHT
    if not others:
        return f"its group is [{rank}]: no other rank holds the same slice"
    return supply.why_no_replicas(group)


def _state(holding: Sound | Kept | Unsound) -> str:
    if isinstance(holding, Kept):
        return "differs"
    return "ok" if isinstance(holding, Sound) else holding.state
