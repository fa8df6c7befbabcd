"""Slices that were saved under another strategy file than those they lie with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ms_recover.model.steps import Step
from ms_recover.planning.facts import Facts, SliceFacts

_OTHER_LAYOUT = "saved under another layout: its strategy file is not that of"


def saved_under(one: SliceFacts) -> tuple[str, str] | None:
    """Return the run and the strategy file a slice was saved under."""
    manifest = one.manifest
    named = manifest is not None and manifest.strategy_digest is not None
    return (manifest.run_id, manifest.strategy_digest or "") if named and manifest is not None else None


def find_other_layouts(
    facts: Facts, step: Step, slices: Sequence[SliceFacts], layouts: Counter[tuple[str, str]]
) -> dict[str, str]:
    """Find slices of a group that were saved under another strategy file than most of it, or than all of their run.

    `layouts` counts the slices of the step by strategy file. Returns the path of each slice found and the reason.
    """
    odd = _unlike_their_group(slices)
    for one in slices:
        own = saved_under(one)
        if one.path in odd or own is None or layouts[own] > 1:
            continue
        others = [held for other in facts.steps if other != step for held in facts.at(other, one.rank)]
        known = [(layout, other) for other in others if (layout := saved_under(other)) and layout[0] == own[0]]
        history = Counter(layout for layout, _ in known)
        for layout, other in known if own not in history else ():
            if history[layout] + layouts[layout] > 1:
                odd[one.path] = f"{_OTHER_LAYOUT} {other.path}"
                break
    return odd


def _unlike_their_group(slices: Sequence[SliceFacts]) -> dict[str, str]:
    named = {one.path: (one.manifest, layout[1]) for one in slices if one.manifest and (layout := saved_under(one))}
    saved = [(path, digest) for path, (manifest, digest) in named.items() if not manifest.recovered]
    count = Counter(digest for _, digest in saved)  # a copy is no witness for its source
    usual, most = max(count.items(), key=lambda item: item[1], default=("", 0))
    if 2 * most <= len(saved):
        return {}  # as many of one as of another: their contents decide
    first = next(path for path, digest in saved if digest == usual)
    return {path: f"{_OTHER_LAYOUT} {first}" for path, (_, digest) in named.items() if digest != usual}
