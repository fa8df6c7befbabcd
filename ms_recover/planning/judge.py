"""One step: what each slice is worth, by structure, by manifest and by the vote of its group."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.planning.situation import Situation
from ms_recover.redundancy.contents import check_contents, check_manifest
from ms_recover.redundancy.vote import Ballot, hold_vote

_OTHER_LAYOUT = "saved under another layout: its strategy file is not that of"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one slice is worth.

    Parameters
    ----------
    status : str
        ``"sound"``, ``"damaged"``, ``"suspect"`` (outvoted), ``"uncommitted"`` (its manifest is missing though its
        run writes them), ``"foreign"`` (of another run or world), ``"ambiguous"`` or ``"superseded"`` (one of several
        of its rank) or ``"undecided"``.
    reason : str
        Why.
    evidence : str
        What a sound slice rests on: ``"manifest"``, ``"vote"`` or ``"structure"``.
    borrowed : tuple of str
        Parameters in which the members of its group differ as they may.
    """

    status: str
    reason: str
    evidence: str = "structure"
    borrowed: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepJudgement:
    """What the slices of one step and run are worth.

    Parameters
    ----------
    slices : dict of str to Judgement
        By path.
    disagreements : dict of tuple of int to str
        Groups whose members differ with nothing to settle who is right.
    """

    slices: dict[str, Judgement]
    disagreements: dict[tuple[int, ...], str]


def judge_step(situation: Situation, step: Step, run_id: str | None) -> StepJudgement:
    """Judge every slice of `step`; those of another run than `run_id` are foreign.

    Parameters
    ----------
    situation : Situation
        What is known; contents that were not read are taken from the manifests.
    step : Step
        The step.
    run_id : str or None
        One of ``situation.runs(step)``.
    """
    files = [
        file for rank, held in situation.files.get(step, {}).items() if rank not in situation.lost for file in held
    ]
    slices = {file.path: alone for file in files if (alone := _judge_alone(situation, file, run_id)) is not None}
    rest = [file for file in files if file.path not in slices]
    any_saved = any(file.manifest is not None and file.manifest.origin == "saved" for file in rest)
    late = {file.path for file in rest if file.manifest is None and (any_saved or file.prefix in situation.committing)}
    slices |= {file.path: _uncommitted(file) for file in rest if file.path in late}
    rest = [file for file in rest if file.path not in late]
    slices |= _judge_doubles(rest, situation.newest)
    layouts = Counter(filter(None, map(_layout, rest)))
    voters: dict[tuple[int, ...], list[SliceFile]] = defaultdict(list)
    for file in rest:
        if file.path not in slices:
            voters[situation.groups.of(file.rank)].append(file)
    disagreements: dict[tuple[int, ...], str] = {}
    origins = situation.origins
    for group, voting in voters.items():
        held = voting
        conflict = situation.findings.conflicts.get((group, step))
        if conflict is not None and step not in situation.findings.deduplicated:
            disagreements[group] = conflict
            slices |= {file.path: Judgement("undecided", conflict) for file in held}
            continue
        if step in situation.findings.deduplicated:
            slices |= {file.path: _sound(file, ()) for file in held}  # each is the only one of its kind
            continue
        odd = _other_layouts(situation, step, held, layouts)
        slices |= odd
        held = [file for file in held if file.path not in odd]
        ballots = [Ballot(file, digests) for file in held if (digests := situation.digests_of(file)) is not None]
        vote = hold_vote(ballots, situation.tolerance) if ballots else None
        if vote is not None and vote.disagreement is not None:
            strangers = {file.path: why for file in held if (why := origins.why_stranger(file)) is not None}
            if strangers and len(strangers) < len(ballots):
                slices |= {path: Judgement("suspect", why) for path, why in strangers.items()}
                held = [file for file in held if file.path not in strangers]
                ballots = [ballot for ballot in ballots if ballot.file.path not in strangers]
                vote = hold_vote(ballots, situation.tolerance)
        if vote is not None and vote.disagreement is not None:
            disagreements[group] = vote.disagreement
        counted = {ballot.file.path for ballot in ballots}
        for file in held:
            if vote is not None and file.path in vote.suspects:
                slices[file.path] = Judgement("suspect", vote.suspects[file.path])
            elif vote is not None and vote.disagreement is not None and file.path in counted:
                slices[file.path] = Judgement("undecided", vote.disagreement)
            elif file.manifest is None and ballots and len(ballots) == 1 and (why := origins.why_stranger(file)):
                slices[file.path] = Judgement("suspect", why)
            else:
                agreeing = [path for path in counted if vote is not None and path not in vote.suspects]
                borrowed = vote.tolerated if vote is not None else ()
                slices[file.path] = _sound(file, agreeing if file.path in counted else (), borrowed)
    return StepJudgement(slices, disagreements)


def _layout(file: SliceFile) -> tuple[str, str] | None:
    """Return the run and the strategy file a slice was saved under."""
    told = file.manifest
    return (told.run_id, told.strategy_digest) if told is not None and told.strategy_digest is not None else None


def _other_layouts(
    situation: Situation, step: Step, files: list[SliceFile], layouts: Counter[tuple[str, str]]
) -> dict[str, Judgement]:
    """Judge slices that were saved under another strategy file than most of their group, or than all of their run."""
    odd = _unlike_their_group(files)
    for file in files:
        own = _layout(file)
        if file.path in odd or own is None or layouts[own] > 1:
            continue
        others = [
            held for other, ranks in situation.files.items() if other != step for held in ranks.get(file.rank, [])
        ]
        told = [(layout, other) for other in others if (layout := _layout(other)) and layout[0] == own[0]]
        history = Counter(layout for layout, _ in told)
        for layout, other in told if own not in history else ():
            if history[layout] + layouts[layout] > 1:
                odd[file.path] = Judgement("foreign", f"{_OTHER_LAYOUT} {other.path}")
                break
    return odd


def _unlike_their_group(files: list[SliceFile]) -> dict[str, Judgement]:
    by_strategy: dict[str, list[SliceFile]] = defaultdict(list)
    for file in files:
        if file.manifest is not None and file.manifest.strategy_digest is not None:
            by_strategy[file.manifest.strategy_digest].append(file)
    usual = max(by_strategy.values(), key=len, default=[])
    if 2 * len(usual) <= sum(map(len, by_strategy.values())):
        return {}  # as many of one as of another: their contents decide
    return {
        file.path: Judgement("foreign", f"{_OTHER_LAYOUT} {usual[0].path}")
        for held in by_strategy.values()
        if held is not usual
        for file in held
    }


def _judge_doubles(files: list[SliceFile], newest: bool) -> dict[str, Judgement]:
    """Judge the slices of ranks that have several for the step; these do not vote."""
    by_rank: dict[int, list[SliceFile]] = defaultdict(list)
    for file in files:
        by_rank[file.rank].append(file)
    judged: dict[str, Judgement] = {}
    for held in by_rank.values():
        if len(held) < 2:
            continue
        best = max(held, key=lambda file: (file.mtime_ns, file.path))
        paths = " and ".join(file.path for file in held)
        for file in held:
            if not newest:
                text = f"two slices for one step, {paths}: remove the wrong one or choose the newest with --newest"
                judged[file.path] = Judgement("ambiguous", text)
            elif file is best:
                evidence = "manifest" if file.manifest is not None else "structure"
                judged[file.path] = Judgement("sound", "newest of several slices for this step", evidence)
            else:
                judged[file.path] = Judgement("superseded", f"{best.path} is newer")
    return judged


def _uncommitted(file: SliceFile) -> Judgement:
    why = file.manifest_problem or "its manifest is missing, so saving it was not finished"
    return Judgement("uncommitted", f"not committed: {why}")


def _judge_alone(situation: Situation, file: SliceFile, run_id: str | None) -> Judgement | None:
    """Return what rules a slice out without looking at its peers' contents."""
    manifest = file.manifest
    if run_id is not None and manifest is not None and manifest.run_id != run_id:
        theirs = f"run {manifest.run_id}" if manifest.run_id else "a run without a name"
        return Judgement("foreign", f"belongs to {theirs}, not to {run_id or 'the one without a name'}")
    for problem in (
        file.problem,
        situation.findings.damaged.get(file.path),
        check_manifest(file, situation.world_size, situation.groups.of(file.rank)),
        check_contents(file, situation.contents),
    ):
        if problem is not None:
            return Judgement("damaged", problem)
    return None


def _sound(file: SliceFile, agreeing: list[str] | tuple[()], borrowed: tuple[str, ...] = ()) -> Judgement:
    if file.manifest is not None:
        return Judgement("sound", "sound by its manifest", "manifest", borrowed)
    if len(agreeing) > 1:
        return Judgement("sound", f"sound by the vote of {len(agreeing)} equal slices", "vote", borrowed)
    named = "encrypted, contents not comparable" if file.encryption else "sound in structure"
    return Judgement("sound", named, "structure", borrowed)
