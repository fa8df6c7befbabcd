"""One step: what each rank has, and who can replace what is gone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from ms_recover.model.inventory import SliceFile
from ms_recover.model.plan import CopyAction, FileState, RankVerdict, Replica, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.planning.judge import Judgement, StepJudgement, judge_step
from ms_recover.planning.situation import Situation


@dataclass(frozen=True)
class _Holding:
    """What one rank has of the step: a sound file, or why not."""

    state: str
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
    verdicts, actions = [], []
    for rank, holding in enumerate(holdings):
        if holding.file is not None and holding.judgement is not None:
            evidence = holding.judgement.evidence
            verdicts.append(RankVerdict(rank, "ok", "keep", holding.reason, holding.file.path, evidence=evidence))
            continue
        sources, why = _sources(situation, judged, step, rank, holdings, serves)
        reason = f"{holding.reason}; {why}"
        if not sources:
            verdicts.append(RankVerdict(rank, holding.state, "unrecoverable", reason))
            continue
        chosen = sources[0]
        assert chosen.file is not None
        assert chosen.judgement is not None
        serves[chosen.file.rank] += 1
        target, replaces = _target(rank, chosen.file, files.get(rank, []))
        evidence = chosen.judgement.evidence
        verdicts.append(
            RankVerdict(rank, holding.state, "copy", reason, target, chosen.file.rank, chosen.file.path, evidence)
        )
        first, *others = [_replica(situation, other.file) for other in sources if other.file is not None]
        group = situation.groups.of(rank)
        borrowed = chosen.judgement.borrowed
        actions.append(CopyAction(rank, first, target, replaces, reason, evidence, group, tuple(others), borrowed))
    disagreements = tuple(text for _, text in sorted(judged.disagreements.items()))
    return StepAssessment(step, tuple(verdicts), tuple(actions), run_id, disagreements)


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
    best = able[0]
    assert best.file is not None
    assert best.judgement is not None
    listed = situation.groups.sources[rank]
    return able, f"rank {best.file.rank} holds the same slice by {listed} ({best.judgement.reason})"


def _preference(holding: _Holding, serves: Counter[int]) -> tuple[bool, int, int]:
    assert holding.file is not None
    assert holding.judgement is not None
    return (holding.judgement.evidence == "structure", serves[holding.file.rank], holding.file.rank)


def _replica(situation: Situation, file: SliceFile) -> Replica:
    read = situation.contents.digests.get(file.path)
    digests = file.manifest.digests if file.manifest is not None else read
    return Replica(file.rank, file.path, FileState(file.size, file.mtime_ns), digests.file if digests else None)


def _states(ranks: Iterable[int], holdings: list[_Holding]) -> str:
    return ", ".join(f"rank {rank} {holdings[rank].state}" for rank in ranks)


def _target(rank: int, source: SliceFile, own: list[SliceFile]) -> tuple[str, FileState | None]:
    """Return the name that the copy gets, and what lies there: a bad file is replaced under its own name."""
    usual = source.place.of(rank)
    if not own:
        return usual, None
    there = next((file for file in own if file.path == usual), max(own, key=lambda file: (file.mtime_ns, file.path)))
    return there.path, FileState(there.size, there.mtime_ns)
