"""Lists of parameters, told apart quickly."""

from __future__ import annotations

from dataclasses import dataclass

from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter


@dataclass(frozen=True, eq=False)
class ParameterList:
    """A list of parameters, its names, and a number that equal lists of names share."""

    parameters: tuple[Parameter, ...]
    names: tuple[str, ...]
    named: int


class Lists:
    """Lists of parameters, one object for all that are equal: hashing a list takes as long as reading it."""

    def __init__(self) -> None:
        self._known: dict[int, ParameterList] = {}
        self._equal: dict[tuple[Parameter, ...], ParameterList] = {}
        self._named: dict[tuple[str, ...], int] = {}

    def of(self, file: SliceFile) -> ParameterList:
        """Return what a slice lists."""
        found = self._known.get(id(file.parameters))
        if found is None:
            names = tuple(parameter.name for parameter in file.parameters)
            named = self._named.setdefault(names, len(self._named))
            found = self._equal.setdefault(file.parameters, ParameterList(file.parameters, names, named))
            self._known[id(file.parameters)] = found
        return found
