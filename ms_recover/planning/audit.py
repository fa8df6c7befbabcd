"""Judge every slice of a tree, for verify and seal."""

from __future__ import annotations

from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.model.verification import SliceCheck, Verification
from ms_recover.planning.judge import Judgement, judge_step
from ms_recover.planning.situation import Situation


def judge_slices(situation: Situation, step: Step | None = None) -> tuple[list[tuple[SliceFile, Judgement]], list[str]]:
    """Judge the slices of one step, or of all, each among those of its own run.

    Returns
    -------
    (list of (SliceFile, Judgement), list of str)
        Newest step first, then by rank and path; and the groups that disagree.
    """
    judged, disagreements = [], []
    for candidate in sorted(situation.files if step is None else [step], reverse=True):
        best: dict[str, Judgement] = {}
        for run_id in situation.runs(candidate):
            found = judge_step(situation, candidate, run_id)
            disagreements += [f"step {candidate}: {text}" for _, text in sorted(found.disagreements.items())]
            for path, judgement in found.slices.items():
                if path not in best or best[path].status == "foreign":
                    best[path] = judgement
        files = (file for held in situation.files.get(candidate, {}).values() for file in held if file.path in best)
        judged += [(file, best[file.path]) for file in sorted(files, key=lambda file: (file.rank, file.path))]
    return judged, disagreements


def make_verification(situation: Situation, root: str, step: Step | None = None) -> Verification:
    """Say what every slice of a tree, or of one step, is worth.

    Parameters
    ----------
    situation : Situation
        What is known, contents included.
    root : str
        Absolute path of the tree.
    step : Step, optional
        Look at this step only.
    """
    judged, disagreements = judge_slices(situation, step)
    checks = tuple(
        SliceCheck(file.rank, file.step, file.path, judgement.status, judgement.evidence, judgement.reason)
        for file, judgement in judged
    )
    missing = []
    for candidate in sorted(situation.files if step is None else [step], reverse=True):
        absent = tuple(rank for rank in range(situation.world_size) if rank not in situation.files.get(candidate, {}))
        if absent:
            missing.append((candidate, absent))
    return Verification(root, checks, tuple(disagreements), tuple(missing))
