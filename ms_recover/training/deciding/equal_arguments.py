"""Arguments that all ranks must have alike: compared once, when saving begins and at a resume.

Ranks with other arguments would save at other steps, or resume from another run, and wait for each other in vain.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from ms_recover.errors import UsageError
from ms_recover.model.texts import list_some
from ms_recover.training.deciding.job import TrainingJob

_log = logging.getLogger(__name__)

_LONGEST = 80
"""Characters of a value in a message."""

_MOST_NAMED = 8


class Text(str):
    """A value that is described, and not quoted."""


NOT_GIVEN = Text("not given")
"""The text of an argument that a rank was not given."""


def agree_arguments(job: TrainingJob, doing: str, given: Mapping[str, Any]) -> None:
    """Compare the arguments of all ranks, by name; all ranks call it together.

    Raises UsageError, the same on all ranks, which names each argument that differs, its values and the ranks.
    """
    if job.size == 1 or not job.connected:
        return
    own = {name: value_text(value) for name, value in given.items()}
    text = json.dumps(own, sort_keys=True)
    rows = [json.loads(row) for row in job.gather_unequal(text, doing)]
    if rows:
        why = why_unequal(rows)
        raise UsageError(
            f"{doing}: the ranks were given different arguments: {why}; give all {job.size} ranks the same"
        )


def name_prefixes(job: TrainingJob, prefix: str) -> None:
    """Warn, on rank 0, of ranks whose savers have other prefixes than the rest; all ranks call it together."""
    if job.size == 1 or not job.connected:
        return
    rows = job.gather_unequal(json.dumps({"prefix": value_text(prefix)}), "comparing the prefixes")
    if rows and job.rank == 0:
        _log.warning(
            "%s: a resume takes slices of one prefix, and gives ranks that have another one the slices and states of "
            "their peers; give all ranks the same prefix",
            why_unequal([json.loads(row) for row in rows]),
        )


def why_unequal(rows: Sequence[Mapping[str, str]]) -> str:
    """Return which arguments differ, with their values and the ranks that have these, index = rank."""
    names = sorted({name for row in rows for name in row})
    return list_some((text for name in names if (text := _difference(name, rows))), _MOST_NAMED, separator="; ")


def value_text(value: Any) -> str:
    """Return a value as a text that is equal where the value is; a long one is cut, with a hash behind it."""
    if value is None:
        return NOT_GIVEN
    if isinstance(value, Integral) and not isinstance(value, bool):
        value = int(value)
    text = str(value) if isinstance(value, Text) else repr(value)
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]}... ({hashlib.blake2b(text.encode(), digest_size=4).hexdigest()})"


def or_not_given(value: Any) -> Text:
    """Return whether an argument is given, where its value may be the rank's own."""
    return NOT_GIVEN if value is None or (isinstance(value, tuple) and not value) else Text("given")


def _difference(name: str, rows: Sequence[Mapping[str, str]]) -> str:
    by_value: dict[str, list[int]] = {}
    for rank, row in enumerate(rows):
        by_value.setdefault(row.get(name, NOT_GIVEN), []).append(rank)
    if len(by_value) == 1:
        return ""
    values = (f"{value} on rank(s) {list_some(ranks)}" for value, ranks in by_value.items())
    return f"{name} is " + list_some(values, _MOST_NAMED)


def arguments_of_saver(async_save: bool, layouts: Any) -> dict[str, Any]:
    """Return the arguments of a saver that all ranks must have alike.

    How many slices a rank keeps, their format, its group and its layouts are its own.
    """
    return {"async_save": async_save, "layouts": or_not_given(layouts)}
