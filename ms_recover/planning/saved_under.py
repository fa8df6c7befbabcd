"""Slices that were saved under another strategy file than those they lie with."""

from __future__ import annotations

from collections import Counter

from ms_recover.model.inventory import SliceFile
from ms_recover.model.steps import Step
from ms_recover.planning.situation import Situation

_OTHER_LAYOUT = "saved under another layout: its strategy file is not that of"


def saved_under(file: SliceFile) -> tuple[str, str] | None:
    """Return the run and the strategy file a slice was saved under."""
    told = file.manifest
    return (told.run_id, told.strategy_digest) if told is not None and told.strategy_digest is not None else None


def other_layouts(
    situation: Situation, step: Step, files: list[SliceFile], layouts: Counter[tuple[str, str]]
) -> dict[str, str]:
    """Find slices that were saved under another strategy file than most of their group, or than all of their run.

    Parameters
    ----------
    situation : Situation
        What is known.
    step : Step
        The step.
    files : list of SliceFile
        The slices of one group.
    layouts : Counter of (str, str)
        How many slices of the step were saved under each strategy file.

    Returns
    -------
    dict of str to str
        Path of a slice to why it is another's.
    """
    odd = _unlike_their_group(files)
    for file in files:
        own = saved_under(file)
        if file.path in odd or own is None or layouts[own] > 1:
            continue
        others = [
            held for other, ranks in situation.files.items() if other != step for held in ranks.get(file.rank, [])
        ]
        told = [(layout, other) for other in others if (layout := saved_under(other)) and layout[0] == own[0]]
        history = Counter(layout for layout, _ in told)
        for layout, other in told if own not in history else ():
            if history[layout] + layouts[layout] > 1:
                odd[file.path] = f"{_OTHER_LAYOUT} {other.path}"
                break
    return odd


def _unlike_their_group(files: list[SliceFile]) -> dict[str, str]:
    told = {
        file.path: (file.manifest, digest)
        for file in files
        if file.manifest and (digest := file.manifest.strategy_digest)
    }
    saved = [(path, digest) for path, (manifest, digest) in told.items() if not manifest.recovered]
    count = Counter(digest for _, digest in saved)  # a copy says no more than what it is a copy of
    usual, most = max(count.items(), key=lambda item: item[1], default=("", 0))
    if 2 * most <= len(saved):
        return {}  # as many of one as of another: their contents decide
    first = next(path for path, digest in saved if digest == usual)
    return {path: f"{_OTHER_LAYOUT} {first}" for path, (_, digest) in told.items() if digest != usual}
