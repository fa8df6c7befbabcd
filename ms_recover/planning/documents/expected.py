"""The contents of each file that ``metadata.json`` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ms_recover.file_names import WeightsName
from ms_recover.model.shard_metadata import ShardMetadata
from ms_recover.model.slices import Parameter


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedFile:
    """A file that metadata names, and what must be in it."""

    name: WeightsName
    rank: int
    """The rank that wrote it."""
    parameters: tuple[Parameter, ...]
    """Sorted by name, with local shapes and MindSpore's type names; files with equal contents share one tuple.
    `NEVER_SAVED` parameters are left out.
    """


def expected_files(metadata: ShardMetadata) -> Mapping[str, ExpectedFile]:
    """Return the expected file of each name that metadata lists.

    Parameters that no metadata lists, above all ``global_step`` in ``opt`` files, are not among them: see
    `ms_recover.planning.documents.compare.find_unlisted`.
    """
    raise NotImplementedError
