"""The contents of each file that ``metadata.json`` names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from ms_recover.file_names import WeightsName, weights_name
from ms_recover.model.shard_metadata import NEVER_SAVED, ShardMetadata
from ms_recover.model.slices import Parameter, ParameterList


@dataclass(frozen=True, kw_only=True, slots=True)
class ExpectedFile:
    """A file that metadata names, and what must be in it."""

    name: WeightsName
    rank: int
    """The rank that wrote it."""
    parameters: ParameterList
    """Sorted by name, with local shapes and MindSpore's type names; files with equal contents share one list.
    `NEVER_SAVED` parameters are left out.
    """


@lru_cache(maxsize=4)
def expected_files(metadata: ShardMetadata) -> Mapping[str, ExpectedFile]:
    """Return the expected file of each name that metadata lists, by name.

    Parameters that no metadata lists, above all ``global_step`` in ``opt`` files, are not among them: see
    `ms_recover.planning.claims.compare_documents.find_unlisted`.
    """
    alike: dict[int, list[str]] = {}
    for name in metadata.parameters:
        if not name.startswith(NEVER_SAVED):
            alike.setdefault(id(metadata.stored[name]), []).append(name)
    listed: dict[str, list[int]] = {file: [] for file in metadata.files}
    groups = list(alike.values())
    for number, names in enumerate(groups):
        files = dict.fromkeys(item.file_name for items in metadata.stored[names[0]] for item in items)
        for file in files:
            listed[file].append(number)
    lists: dict[tuple[int, ...], ParameterList] = {}
    expected = {}
    for file, numbers in sorted(listed.items()):
        key = tuple(numbers)
        if key not in lists:
            names = sorted(name for number in key for name in groups[number])
            lists[key] = ParameterList(expected_parameter(metadata, name) for name in names)
        if parsed := weights_name(file):
            expected[file] = ExpectedFile(name=parsed, rank=metadata.files[file], parameters=lists[key])
    return expected


def expected_parameter(metadata: ShardMetadata, name: str) -> Parameter:
    """Return a parameter as the header of each file that holds one of its fragments lists it."""
    one = metadata.parameters[name]
    return Parameter(name, one.type_name, one.local_shape, one.nbytes)
