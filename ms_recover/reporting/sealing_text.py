"""The steps that a watch has sealed, as lines of a log."""

from __future__ import annotations

from ms_recover.model.sealing import SealedStep
from ms_recover.model.texts import list_some
from ms_recover.reporting.tables import one_line, size_text


def sealed_line(found: SealedStep, when: str) -> str:
    """Return the line about a step that was sealed at a time, which is given as text."""
    line = (
        f"{when} step {found.step}: {len(found.sealed)} manifests written "
        f"({size_text(found.bytes)} read in {found.seconds:.1f} s)"
    )
    if found.wrong:
        reasons = [f"rank {one.rank} {one.status}: {one.path}: {one.reason}" for one in found.wrong]
        line += f"; {len(found.wrong)} slices are not sound and got none: {list_some(reasons, separator='; ')}"
    return one_line(line)
