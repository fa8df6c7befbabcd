"""One step: what each rank has, and who can replace what is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import ComposeAction
from ms_recover.model.inventory import SliceFile
from ms_recover.model.plan import RankVerdict, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import RankState
from ms_recover.planning.judge import Judgement, StepJudgement, judge_step
from ms_recover.planning.parts import Parts, replica_of
from ms_recover.planning.rebuild import Rebuilt, parts_at, rebuild
from ms_recover.planning.situation import Situation
from ms_recover.planning.targets import of_one_format, target_of


@dataclass(frozen=True)
class _Holding:
    """What one rank has of the step: a sound file, or why not."""

    state: RankState
    reason: str
    file: SliceFile | None = None
    judgement: Judgement | None = None
    ambiguous: bool = False


def assess_step(situation: Situation, step: Step, run_id: str | None = None) -> StepAssessment:
    """Judge every rank at `step` and choose a source for each that needs one.

    Sources within a group are spread evenly: each lost rank takes the member that serves fewest others so far, the
    lowest rank among equals.

    Parameters
    ----------
    situation : Situation
        What is known.
    step : Step
        The step.
    run_id : str or None
        The run whose slices count; by default the one with most slices of the step.

    Returns
    -------
    StepAssessment
        The same for the same input.
    """
    run_id = situation.runs(step)[0] if run_id is None else run_id
    judged = judge_step(situation, step, run_id)
    files = situation.files.get(step, {})
    holdings = [_holding(situation, judged, step, rank, files.get(rank, [])) for rank in range(situation.world_size)]
    serves: Counter[int] = Counter()
    verdicts: list[RankVerdict] = []
    actions: list[CopyAction | ComposeAction] = []
    partials: list[ComposeAction] = []
    disagreements = [text for _, text in sorted(judged.disagreements.items())]
    parts: Parts | None = None
    for rank, holding in enumerate(holdings):
        if holding.file is not None and holding.judgement is not None:
            evidence = holding.judgement.evidence
            verdicts.append(RankVerdict(rank, "ok", "keep", holding.reason, holding.file.path, evidence=evidence))
            continue
        own = [file for file in files.get(rank, []) if not _is_foreign(judged, file)]
        sources, why = _sources(situation, judged, step, rank, holdings, serves, own)
        reason = f"{holding.reason}; {why}"
        if sources:
            action = _copy(situation, rank, sources, own, reason)
            serves[action.source_rank] += 1
            actions.append(action)
            verdicts.append(_copied(holding, action))
            continue
        if holding.ambiguous or situation.groups.of(rank) in judged.disagreements:
            verdicts.append(RankVerdict(rank, holding.state, "unrecoverable", reason))
            continue
        if parts is None:
            sound = {other: one.file for other, one in enumerate(holdings) if one.file is not None}
            parts = parts_at(situation, step, sound, run_id)
        found = rebuild(parts, step, rank, own, serves)
        verdicts.append(_rebuilt(rank, holding, found, f"{reason}; {found.reason}"))
        actions += [found.action] if found.action is not None else []
        partials += [found.partial] if found.partial is not None else []
        disagreements += [found.dispute] if found.dispute is not None else []
    return StepAssessment(step, tuple(verdicts), tuple(actions), run_id, tuple(disagreements), tuple(partials))


def _is_foreign(judged: StepJudgement, file: SliceFile) -> bool:
    judgement = judged.slices.get(file.path)  # slices of ranks declared lost are not judged
    return judgement is not None and judgement.status == "foreign"


def sound_slices(situation: Situation, step: Step, run_id: str | None) -> dict[int, SliceFile]:
    """Return the slices of a step and run that can be relied on, by rank."""
    judged = judge_step(situation, step, run_id)
    files = situation.files.get(step, {})
    held = ((rank, _holding(situation, judged, step, rank, files[rank]).file) for rank in sorted(files))
    return {rank: file for rank, file in held if file is not None}


def _copy(situation: Situation, rank: int, sources: list[_Holding], own: list[SliceFile], reason: str) -> CopyAction:
    chosen = sources[0]
    assert chosen.file is not None
    assert chosen.judgement is not None
    target, replaces = target_of(situation, rank, chosen.file, own)
    first, *others = [replica_of(situation, other.file) for other in sources if other.file is not None]
    group, judgement = situation.groups.of(rank), chosen.judgement
    return CopyAction(
        rank, first, target, replaces, reason, judgement.evidence, group, tuple(others), judgement.borrowed
    )


def _copied(holding: _Holding, action: CopyAction) -> RankVerdict:
    return RankVerdict(
        action.rank,
        holding.state,
        "copy",
        action.reason,
        action.target,
        action.source_rank,
        action.source,
        action.evidence,
    )


def _rebuilt(rank: int, holding: _Holding, found: Rebuilt, reason: str) -> RankVerdict:
    action = found.action
    if isinstance(action, CopyAction):
        return _copied(holding, replace(action, reason=reason))
    if action is None:
        return RankVerdict(rank, holding.state, "unrecoverable", reason, missing=found.missing, bytes=found.bytes)
    return RankVerdict(
        rank, holding.state, "compose", reason, action.target, evidence=action.evidence, bytes=found.bytes
    )


def _holding(situation: Situation, judged: StepJudgement, step: Step, rank: int, files: list[SliceFile]) -> _Holding:
    if rank in situation.lost:
        return _Holding("lost", "declared lost")
    sound = [file for file in files if judged.slices[file.path].status == "sound"]
    if sound:
        judgement = judged.slices[sound[0].path]
        return _Holding("ok", judgement.reason, sound[0], judgement)
    if files:
        ambiguous = any(judged.slices[file.path].status == "ambiguous" for file in files)
        reasons = dict.fromkeys(f"{file.path}: {judged.slices[file.path].reason}" for file in files)
        return _Holding("damaged", "; ".join(reasons), ambiguous=ambiguous)
    if rank in situation.ranks:
        return _Holding("missing", f"no slice of step {step}")
    return _Holding("missing", "no directory")


def _sources(
    situation: Situation,
    judged: StepJudgement,
    step: Step,
    rank: int,
    holdings: list[_Holding],
    serves: Counter[int],
    own: list[SliceFile],
) -> tuple[list[_Holding], str]:
    """Return the holdings to copy from, best first, and why these or why none."""
    group = situation.groups.of(rank)
    if holdings[rank].ambiguous:
        return [], "nothing is copied over slices that may be right"
    if not situation.groups.knows(rank):
        return [], "no group_info.pb says who holds the same slice"
    others = [other for other in group if other != rank and other < situation.world_size]
    if not others:
        return [], f"its group is [{rank}]: no other rank holds the same slice"
    for problem in (situation.findings.conflicts.get((group, step)), situation.findings.deduplicated.get(step)):
        if problem is not None:
            return [], f"its group is no set of replicas at this step: {problem}"
    if group in judged.disagreements:
        return [], "its group disagrees and nothing settles who is right"
    able = [holdings[other] for other in others if holdings[other].file is not None]
    if not able:
        return [], f"nobody else of its group {list(group)} has a sound slice ({_states(others, holdings)})"
    able.sort(key=lambda holding: _preference(holding, serves))
    able, why = of_one_format(situation, rank, own, able, _file_of)
    if why is not None:
        return [], why
    best = able[0]
    assert best.file is not None
    assert best.judgement is not None
    listed = situation.groups.sources[rank]
    return able, f"rank {best.file.rank} holds the same slice by {listed} ({best.judgement.reason})"


def _preference(holding: _Holding, serves: Counter[int]) -> tuple[bool, int, int]:
    assert holding.file is not None
    assert holding.judgement is not None
    return (holding.judgement.evidence == "structure", serves[holding.file.rank], holding.file.rank)


def _file_of(holding: _Holding) -> SliceFile:
    assert holding.file is not None
    return holding.file


def _states(ranks: Iterable[int], holdings: list[_Holding]) -> str:
    return ", ".join(f"rank {rank} {holdings[rank].state}" for rank in ranks)
