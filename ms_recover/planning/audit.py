"""Judge every slice of a tree, for verify and seal."""

from __future__ import annotations

from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.model.verification import SliceCheck, Verification
from ms_recover.planning.judge import Judgement, judge_step
from ms_recover.planning.situation import Situation


def judge_slices(
    situation: Situation, step: Step | None = None, *, sealing: bool = True
) -> tuple[list[tuple[SliceFile, Judgement]], list[str]]:
    """Judge the slices of one step, or of all, each among those of its own run.

    A slice of another run than most of its step is foreign where its rank has none of that run.

    Parameters
    ----------
    situation : Situation
        What is known, contents included.
    step : Step, optional
        Look at this step only.
    sealing : bool
        See `judge_step`: whoever seals a slice vouches for it.

    Returns
    -------
    (list of (SliceFile, Judgement), list of str)
        Newest step first, then by rank and path; and the groups that disagree.
    """
    judged, disagreements = [], []
    for candidate in sorted(situation.files if step is None else [step], reverse=True):
        best: dict[str, Judgement] = {}
        here = situation.files.get(candidate, {})
        for run_id in situation.runs(candidate):
            found = judge_step(situation, candidate, run_id, sealing=sealing)
            disagreements += [f"step {candidate}: {text}" for _, text in sorted(found.disagreements.items())]
            if not best:
                best = found.slices
                have = {rank for rank, held in here.items() if any(_counts(file, best) for file in held)}
            for file in (file for rank in have for file in here[rank] if not _counts(file, best)):
                best[file.path] = found.slices[file.path]
        files = (file for held in here.values() for file in held if file.path in best)
        judged += [(file, best[file.path]) for file in sorted(files, key=lambda file: (file.rank, file.path))]
    return judged, disagreements


def _counts(file: SliceFile, judged: dict[str, Judgement]) -> bool:
    return file.path in judged and judged[file.path].status != "foreign"


def make_verification(
    situation: Situation, root: str, step: Step | None = None, *, sealing: bool = False
) -> Verification:
    """Say what every slice of a tree, or of one step, is worth.

    What lies beside the slice that was recovered for it, in the other format, is passed over.

    Parameters
    ----------
    situation : Situation
        What is known, contents included.
    root : str
        Absolute path of the tree.
    step : Step, optional
        Look at this step only.
    sealing : bool
        As for `judge_slices`.
    """
    judged, disagreements = judge_slices(situation, step, sealing=sealing)
    checks = tuple(
        SliceCheck(file.rank, file.step, file.path, judgement.status, judgement.evidence, judgement.reason)
        for file, judgement in judged
        if judgement.status != "replaced"
    )
    missing = []
    for candidate in sorted(situation.files if step is None else [step], reverse=True):
        absent = tuple(rank for rank in range(situation.world_size) if rank not in situation.files.get(candidate, {}))
        if absent:
            missing.append((candidate, absent))
    return Verification(root, checks, tuple(disagreements), tuple(missing))
