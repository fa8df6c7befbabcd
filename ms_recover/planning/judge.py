"""One step: what each slice is worth, by structure, by manifest and by the vote of its group."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass

from ms_recover.file_names import ending_of
from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Evidence, SliceStatus
from ms_recover.planning.redundancy.contents import check_contents, check_manifest
from ms_recover.planning.redundancy.structure import list_the_same
from ms_recover.planning.redundancy.vote import Ballot, Vote, hold_vote
from ms_recover.planning.saved_under import other_layouts, saved_under
from ms_recover.planning.situation import Situation


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one slice is worth.

    Parameters
    ----------
    status : str
        ``"sound"``, ``"damaged"``, ``"suspect"`` (outvoted), ``"uncommitted"`` (its manifest is missing though its
        run writes them), ``"foreign"`` (of another run or world), ``"ambiguous"`` or ``"superseded"`` (one of several
        of its rank), ``"replaced"`` (by a recovered slice of the other format beside it) or ``"undecided"``.
    reason : str
        Why.
    evidence : str
        What a sound slice rests on: ``"manifest"``, ``"vote"`` or ``"structure"``.
    borrowed : tuple of str
        Parameters in which the members of its group differ as they may.
    """

    status: SliceStatus
    reason: str
    evidence: Evidence = "structure"
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


def judge_step(situation: Situation, step: Step, run_id: str | None, *, sealing: bool = False) -> StepJudgement:
    """Judge every slice of `step`; those of another run than `run_id` are foreign.

    Parameters
    ----------
    situation : Situation
        What is known; contents that were not read are taken from the manifests.
    step : Step
        The step.
    run_id : str or None
        One of ``situation.runs(step)``.
    sealing : bool
        Slices without manifest may be sound beside sealed ones although nobody confirms them.
    """
    files = [
        file for rank, held in situation.files.get(step, {}).items() if rank not in situation.lost for file in held
    ]
    slices = {file.path: alone for file in files if (alone := _judge_alone(situation, file, run_id)) is not None}
    if not situation.newest:
        slices |= _judge_replaced(files, slices)
    rest = [file for file in files if file.path not in slices]
    any_saved = any(_is_of(file, run_id, "saved") for file in files)
    late = {file.path for file in rest if file.manifest is None and (any_saved or file.prefix in situation.committing)}
    slices |= {file.path: _uncommitted(file) for file in rest if file.path in late}
    rest = [file for file in rest if file.path not in late]
    slices |= _judge_doubles(rest, situation.newest)
    layouts = Counter(filter(None, map(saved_under, rest)))
    voters: dict[tuple[int, ...], list[SliceFile]] = defaultdict(list)
    for file in rest:
        if file.path not in slices:
            voters[situation.groups.of(file.rank)].append(file)
    sealed = None if sealing else next((file.path for file in files if _is_of(file, run_id, "sealed")), None)
    disagreements: dict[tuple[int, ...], str] = {}
    for group, held in voters.items():
        conflict = situation.findings.conflicts.get((group, step))
        if step in situation.findings.deduplicated:
            slices |= {file.path: _sound(file) for file in held}  # each is the only one of its kind
            continue
        if conflict is not None:
            slices |= {file.path: Judgement("undecided", conflict) for file in held}
            disagreements[group] = conflict
            continue
        strange = other_layouts(situation, step, held, layouts)
        odd = {path: Judgement("foreign", why) for path, why in strange.items()}
        judged, disagreement = _judge_group(situation, [file for file in held if file.path not in odd], sealed)
        slices |= odd | judged
        if disagreement is not None:
            disagreements[group] = disagreement
    return StepJudgement(slices, disagreements)


def _judge_group(
    situation: Situation, held: list[SliceFile], sealed: str | None
) -> tuple[dict[str, Judgement], str | None]:
    """Compare what the members of a group hold; return what each is worth, and why nothing settles it."""
    slices = _unlike_told(held)
    held = [file for file in held if file.path not in slices]
    origins = situation.origins
    ballots = [Ballot(file, digests) for file in held if (digests := situation.digests_of(file)) is not None]
    vote = hold_vote(ballots, situation.tolerance) if ballots else Vote()
    if vote.disagreement is not None:
        strangers = {file.path: why for file in held if (why := origins.why_stranger(file)) is not None}
        if strangers and len(strangers) < len(ballots):
            slices |= {path: Judgement("suspect", why) for path, why in strangers.items()}
            held = [file for file in held if file.path not in strangers]
            ballots = [ballot for ballot in ballots if ballot.file.path not in strangers]
            vote = hold_vote(ballots, situation.tolerance)
    counted = {ballot.file.path for ballot in ballots}
    agreeing = counted - set(vote.suspects)
    for file in held:
        alone = len(held) == 1 or (file.path in counted and len(agreeing) == 1)
        if file.path in vote.suspects:
            slices[file.path] = Judgement("suspect", vote.suspects[file.path])
        elif vote.disagreement is not None and file.path in counted:
            slices[file.path] = Judgement("undecided", vote.disagreement)
        elif file.manifest is None and (why := origins.why_stranger(file, confirmed=len(ballots) > 1)):
            slices[file.path] = Judgement("suspect", why)
        elif file.manifest is None and alone and sealed is not None and not _is_chosen(situation, file):
            slices[file.path] = _unsealed(sealed)
        else:
            slices[file.path] = _sound(file, len(agreeing) if file.path in counted else 0, vote.tolerated)
    return slices, vote.disagreement


def _unlike_told(held: list[SliceFile]) -> dict[str, Judgement]:
    """Judge slices without manifest that do not list what one with a manifest lists, in a run that is not theirs."""
    told = next((file for file in held if file.manifest is not None and file.encryption is None), None)
    if told is None:
        return {}
    why = f"does not list what {told.path} lists, which has a manifest"
    unlike = (file for file in held if file.manifest is None and not list_the_same(file, told))
    return {file.path: Judgement("suspect", why) for file in unlike if file.encryption is None}


def _is_of(file: SliceFile, run_id: str | None, origin: str) -> bool:
    """Whether the manifest of a slice, which need not be sound, is of this run and origin."""
    told = file.manifest
    return told is not None and run_id in (None, told.run_id) and told.provenance.kind == origin


def _judge_replaced(files: list[SliceFile], slices: dict[str, Judgement]) -> dict[str, Judgement]:
    """Judge what lies beside a recovered slice of its rank that could not replace it, being of the other format."""
    recovered = {
        file.rank: file
        for file in files
        if file.manifest is not None and file.manifest.recovered and file.path not in slices
    }
    judged = {}
    for file in files:
        there = recovered.get(file.rank)
        old = slices.get(file.path)
        if there is None or (old is not None and old.status == "foreign"):
            continue
        if ending_of(file.path) != ending_of(there.path) and not (file.manifest and file.manifest.recovered):
            judged[file.path] = Judgement("replaced", f"{there.path} was recovered for it in the other format")
    return judged


def _judge_doubles(files: list[SliceFile], newest: bool) -> dict[str, Judgement]:
    """Judge the slices of ranks that have several for the step; these do not vote."""
    by_rank: dict[int, list[SliceFile]] = defaultdict(list)
    for file in files:
        by_rank[file.rank].append(file)
    judged: dict[str, Judgement] = {}
    for doubles in by_rank.values():
        held = doubles
        if not newest and 0 < len(told := [file for file in doubles if file.manifest is not None]) < len(doubles):
            text = f"{told[0].path} is the slice of this step that has a manifest"
            judged |= {file.path: Judgement("superseded", text) for file in doubles if file.manifest is None}
            held = told
        if len(held) < 2:
            continue
        best = max(held, key=lambda file: (file.mtime_ns, file.path))
        paths = " and ".join(file.path for file in held)
        for file in held:
            if not newest:
                text = f"two slices for one step, {paths}: remove the wrong one or choose the newest with --newest"
                judged[file.path] = Judgement("ambiguous", text)
            elif file is best:
                evidence: Evidence = "manifest" if file.manifest is not None else "structure"
                judged[file.path] = Judgement("sound", "newest of several slices for this step", evidence)
            else:
                judged[file.path] = Judgement("superseded", f"{best.path} is newer")
    return judged


def _uncommitted(file: SliceFile) -> Judgement:
    why = file.manifest_problem or "its manifest is missing, so saving it was not finished"
    return Judgement("uncommitted", f"not committed: {why}")


def _unsealed(sealed: str) -> Judgement:
    """Judge a slice that sealing its step passed over, or whose manifest or right bytes went since."""
    return Judgement(
        "uncommitted",
        f"not sealed, though {sealed} of the same step is, and no other slice of its group holds the same: "
        "if it is right, seal again",
    )


def _is_chosen(situation: Situation, file: SliceFile) -> bool:
    """Whether the operator settled who is right, by declaring a slice of its group lost that is there."""
    lost = situation.lost.intersection(situation.groups.of(file.rank))
    return any(situation.files[file.step].get(rank) for rank in lost)


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


def _sound(file: SliceFile, agreeing: int = 0, borrowed: tuple[str, ...] = ()) -> Judgement:
    if file.manifest is not None:
        return Judgement("sound", "sound by its manifest", "manifest", borrowed)
    if agreeing > 1:
        return Judgement("sound", f"sound by the vote of {agreeing} equal slices", "vote", borrowed)
    named = "encrypted, contents not comparable" if file.encryption else "sound in structure"
    return Judgement("sound", named, "structure", borrowed)
