"""Lists of parameters, told apart quickly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ms_recover.model.inventory import SliceFile
from ms_recover.model.slices import Parameter

ANY_ORDER = ".safetensors"
"""The order of parameters in files of this format is that of the format, and tells nothing of the slice."""


@dataclass(frozen=True, eq=False)
class ParameterList:
    """A list of parameters, its names, and a number that equal lists of names share."""

    parameters: tuple[Parameter, ...]
    names: tuple[str, ...]
    named: int


class Lists:
    """Lists of parameters, one object for all that are equal: hashing a list takes as long as reading it.

    Parameters
    ----------
    files : iterable of SliceFile
        All whose lists are asked for. Where formats are mixed a safetensors file lists what a file of the other format
        with the same parameters lists, in whatever order.
    """

    def __init__(self, files: Iterable[SliceFile] = ()) -> None:
        self._known: dict[int, ParameterList] = {}
        self._equal: dict[tuple[Parameter, ...], ParameterList] = {}
        self._named: dict[tuple[str, ...], int] = {}

        loose: list[SliceFile] = []
        strict: list[SliceFile] = []
        for file in files:
            (loose if file.path.endswith(ANY_ORDER) else strict).append(file)
        if not loose or not strict:
            return
        kept = {id(file.parameters): file for file in strict}
        same = {frozenset(file.parameters): self.of(file) for file in reversed(kept.values())}
        for file in {id(file.parameters): file for file in loose}.values():
            other = same.get(frozenset(file.parameters))
            if other is not None:
                self._known.setdefault(id(file.parameters), other)

    def of(self, file: SliceFile) -> ParameterList:
        """Return what a slice lists."""
        found = self._known.get(id(file.parameters))
        if found is None:
            names = tuple(parameter.name for parameter in file.parameters)
            named = self._named.setdefault(names, len(self._named))
            found = self._equal.setdefault(file.parameters, ParameterList(file.parameters, names, named))
            self._known[id(file.parameters)] = found
        return found
