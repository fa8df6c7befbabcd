"""Parameter lists of slices, told apart quickly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter, ParameterList

ANY_ORDER = ".safetensors"
"""The order of parameters in files of this format is that of the format, and no property of the slice."""


@dataclass(frozen=True, eq=False)
class KnownList:
    """A list of parameters, its names, and a number that equal lists of names share."""

    parameters: tuple[Parameter, ...]
    names: tuple[str, ...]
    named: int


class ParameterLists:
    """The list of each slice, one object for all that are equal: comparing two lists takes as long as reading them.

    Parameters
    ----------
    files : iterable of SliceFile
        All whose lists are asked for. Where formats are mixed a safetensors file has the list of a file of the other
        format with the same parameters, in whatever order.
    """

    def __init__(self, files: Iterable[SliceFile]) -> None:
        self._by_path: dict[str, KnownList] = {}
        numbers: dict[tuple[str, ...], int] = {}
        known: dict[ParameterList, KnownList] = {}
        loose: dict[ParameterList, list[str]] = {}
        for file in files:
            listed = file.parameters if isinstance(file.parameters, ParameterList) else ParameterList(file.parameters)
            if file.path.endswith(ANY_ORDER):
                loose.setdefault(listed, []).append(file.path)
            else:
                self._by_path[file.path] = _know(listed, known, numbers)
        same = {frozenset(listed): one for listed, one in reversed(known.items())} if loose else {}
        for listed, paths in loose.items():
            found = same.get(frozenset(listed)) or _know(listed, known, numbers)
            self._by_path.update(dict.fromkeys(paths, found))

    def of(self, file: SliceFile) -> KnownList:
        """Return the list of a slice."""
        return self._by_path[file.path]


def _know(
    listed: ParameterList, known: dict[ParameterList, KnownList], numbers: dict[tuple[str, ...], int]
) -> KnownList:
    found = known.get(listed)
    if found is None:
        names = tuple(parameter.name for parameter in listed)
        found = known[listed] = KnownList(listed, names, numbers.setdefault(names, len(numbers)))
    return found
