"""The parts that several reports share."""

from __future__ import annotations

from collections.abc import Sequence

from ms_recover.model.inventory import Note
from ms_recover.model.plan import RejectedStep
from ms_recover.model.steps import Step
from ms_recover.reporting.tables import table_lines


def note_lines(notes: Sequence[Note], width: int | None) -> list[str]:
    """Return files and directories that are reported, never used."""
    if not notes:
        return []
    rows = [(note.path, note.reason) for note in notes]
    return ["", "Not used, or worth a look:", *table_lines(("path", "why"), rows, width)]


def going_back(rejected: Sequence[RejectedStep], step: Step) -> str:
    """Return the clause of a headline about newer steps that were given up, empty when there is none.

    Parameters
    ----------
    rejected : sequence of RejectedStep
        Newest first; steps of another run do not count.
    step : Step
        The step of the plan.
    """
    given_up = [one for one in rejected if not one.another_run]
    if not given_up:
        return ""
    newest = given_up[0]
    more = f" and {len(given_up) - 1} more" if len(given_up) > 1 else ""
    return f"; going back from step {newest.step} ({newest.reason}){more} to step {step}"
