"""Where the files of the output lie."""

from __future__ import annotations

from ms_recover.errors import UsageError
from ms_recover.file_names import FULL_STEM, ending_of
from ms_recover.model.inventory import SliceFile
from ms_recover.model.reshard import OutputFormat
from ms_recover.model.steps import Step

DEFAULT_PATTERN = "rank_{rank}/{prefix}-{epoch}_{step}"


def pattern_like(file: SliceFile) -> str:
    """Return the pattern of a tree like that of a slice; the usual one where its place does not name the rank."""
    place = file.place
    if file.kind is not None or not place.names_rank or place.numbers or any("{" in part for part in place.parts):
        return DEFAULT_PATTERN
    stem = "{rank}".join(place.parts)
    stem = stem.removesuffix(ending_of(stem))
    ending = f"-{file.step}"
    return stem.removesuffix(ending) + "-{epoch}_{step}" if stem.endswith(ending) else DEFAULT_PATTERN


def name_of(pattern: str, rank: int, step: Step, prefix: str, form: OutputFormat) -> str:
    """Return the path of a rank's slice below the output; an iteration has epoch 0.

    Raises
    ------
    UsageError
        When the pattern has another format's ending.
    """
    epoch = 0 if step.is_iteration else step.epoch
    fields = {"{rank}": str(rank), "{prefix}": prefix, "{epoch}": str(epoch), "{step}": str(step.step)}
    path = pattern
    for field, value in fields.items():
        path = path.replace(field, value)
    ending = ending_of(pattern)
    if ending not in ("", f".{form}"):
        raise UsageError(f"pattern {pattern!r} ends in {ending}, and slices are written as {form}: see --format")
    return path if ending else f"{path}.{form}"


def full_name(index: int, count: int, form: OutputFormat) -> str:
    """Return the name of one of the files of a full checkpoint."""
    numbers = f"-{index + 1:05d}-of-{count:05d}" if count > 1 else ""
    return f"{FULL_STEM}{numbers}.{form}"
