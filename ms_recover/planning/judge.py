"""One step: what each slice is worth, by structure, by manifest and by the vote of its group."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.steps import Step
from ms_recover.planning.situation import Situation
from ms_recover.redundancy.contents import check_contents, check_manifest
from ms_recover.redundancy.vote import Ballot, hold_vote


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
    saved = any(file.manifest is not None and file.manifest.origin == "saved" for file in rest)
    slices |= _judge_doubles(rest, saved, situation.newest)
    voters: dict[tuple[int, ...], list[SliceFile]] = defaultdict(list)
    for file in rest:
        if file.path not in slices:
            voters[situation.groups.of(file.rank)].append(file)
    disagreements: dict[tuple[int, ...], str] = {}
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
        odd = _other_layouts(held)
        slices |= odd
        held = [file for file in held if file.path not in odd]
        ballots = [Ballot(file, digests) for file in held if (digests := _digests(situation, file)) is not None]
        vote = hold_vote(ballots, situation.tolerance) if ballots else None
        if vote is not None and vote.disagreement is not None:
            strangers = _strangers(situation, ballots, group, step)
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
            elif saved and file.manifest is None:
                slices[file.path] = _uncommitted(file)
            else:
                agreeing = [path for path in counted if vote is not None and path not in vote.suspects]
                borrowed = vote.tolerated if vote is not None else ()
                slices[file.path] = _sound(file, agreeing if file.path in counted else (), borrowed)
    return StepJudgement(slices, disagreements)


def _other_layouts(files: list[SliceFile]) -> dict[str, Judgement]:
    """Judge slices that were saved under another strategy file than most of their group."""
    by_strategy: dict[str, list[SliceFile]] = defaultdict(list)
    for file in files:
        if file.manifest is not None and file.manifest.strategy_digest is not None:
            by_strategy[file.manifest.strategy_digest].append(file)
    usual = max(by_strategy.values(), key=len, default=[])
    if 2 * len(usual) <= sum(map(len, by_strategy.values())):
        return {}  # as many of one as of another: their contents decide
    why = "saved under another layout: its strategy file is not that of "
    return {
        file.path: Judgement("foreign", why + usual[0].path)
        for held in by_strategy.values()
        if held is not usual
        for file in held
    }


def _strangers(situation: Situation, ballots: list[Ballot], group: tuple[int, ...], step: Step) -> dict[str, str]:
    """Return slices that hold the very bytes of another step or of another group: misplaced or renamed."""
    known = {
        digests.file: file.path
        for other, ranks in situation.files.items()
        for rank, held in ranks.items()
        for file in held
        if (other != step or rank not in group) and (digests := _digests(situation, file)) is not None
    }
    return {
        ballot.file.path: f"holds the bytes of {known[ballot.digests.file]}: it was renamed or put in the wrong place"
        for ballot in ballots
        if ballot.digests.file in known
    }


def _judge_doubles(files: list[SliceFile], saved: bool, newest: bool) -> dict[str, Judgement]:
    """Judge the slices of ranks that have several for the step; these do not vote."""
    by_rank: dict[int, list[SliceFile]] = defaultdict(list)
    for file in files:
        by_rank[file.rank].append(file)
    judged: dict[str, Judgement] = {}
    for held in by_rank.values():
        committed = [file for file in held if file.manifest is not None] if saved else held
        if len(held) > 1 and committed:
            judged |= {file.path: _uncommitted(file) for file in held if file not in committed}
        if len(committed) < 2:
            continue
        best = max(committed, key=lambda file: (file.mtime_ns, file.path))
        paths = " and ".join(file.path for file in committed)
        for file in committed:
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
    if run_id and manifest is not None and manifest.run_id and manifest.run_id != run_id:
        return Judgement("foreign", f"belongs to run {manifest.run_id}, not to {run_id}")
    for problem in (
        file.problem,
        situation.findings.damaged.get(file.path),
        check_manifest(file, situation.world_size, situation.groups.of(file.rank)),
        check_contents(file, situation.contents),
    ):
        if problem is not None:
            return Judgement("damaged", problem)
    return None


def _digests(situation: Situation, file: SliceFile) -> Digests | None:
    read = situation.contents.digests.get(file.path)
    if file.encryption is not None:
        return None  # every encryption draws its own initial value, so equal contents differ
    return read or (file.manifest.digests if file.manifest is not None else None)


def _sound(file: SliceFile, agreeing: list[str] | tuple[()], borrowed: tuple[str, ...] = ()) -> Judgement:
    if file.manifest is not None:
        return Judgement("sound", "sound by its manifest", "manifest", borrowed)
    if len(agreeing) > 1:
        return Judgement("sound", f"sound by the vote of {len(agreeing)} equal slices", "vote", borrowed)
    named = "encrypted, contents not comparable" if file.encryption else "sound in structure"
    return Judgement("sound", named, "structure", borrowed)
