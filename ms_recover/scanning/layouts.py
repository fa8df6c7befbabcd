"""The directories in which ranks keep their slices, found from any folder above them (pure).

A rank's directory is called as `RANK_DIRECTORIES` of `ms_recover.file_names` say. It lies in the root, or below folders
whose names say that they hold checkpoints, such as ``output/checkpoint`` of MindFormers, ``src_checkpoints`` of
MindSpore's tutorials or MindIO's ``ttp_saved_checkpoints-step_{step}``. A process that works in ``device{rank}`` has
such folders of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ms_recover.file_names import MANIFEST_SUFFIX, SLICE_ENDINGS, is_vague
from ms_recover.model.inventory import RankPath
from ms_recover.scanning.naming import read_rank_directory

_CONTAINER = re.compile(
    r"(?!\.|.*\.[a-z]\w*\Z)[\w.-]*(?:ckpt|checkpoint)[\w.-]*|outputs?|ranks?", re.ASCII | re.IGNORECASE
)
_UNFINISHED = re.compile(r"ttp_saved_checkpoints-step_\d+_tmp", re.ASCII)
_MOST_CONTAINERS = 3
_OF_FILES = (*SLICE_ENDINGS, MANIFEST_SUFFIX)


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory that may hold slices or directories of ranks; paths are relative to the root."""

    path: str
    name: str
    place: RankPath
    rank: int | None = None
    containers: int = 0
    """How many folders that are no rank's lie between it and the root."""

    def below(self, name: str) -> Folder | None:
        """Return the directory `name` in this one, None when slices are not expected in it.

        One of another rank is expected only where the number in the name of this one may be none of a rank.
        """
        if name.endswith(_OF_FILES):
            return None
        path = f"{self.path}/{name}" if self.path else name
        found = read_rank_directory(name, self.name)
        if found is not None:
            rank, form = found
            if self.rank is None or self.rank == rank:
                return Folder(path, name, _join(self.place, form), rank, self.containers)
            return Folder(path, name, _join(RankPath((self.path,)), form), rank) if is_vague(self.name) else None
        if self.containers < _MOST_CONTAINERS and _CONTAINER.fullmatch(name) and not is_unfinished(name):
            return replace(
                self, path=path, name=name, place=_join(self.place, RankPath((name,))), containers=self.containers + 1
            )
        return None

    @property
    def is_rank_directory(self) -> bool:
        """Whether its own name is that of a rank's directory."""
        return self.rank is not None and self.place.parts[-1].partition("/")[1] == ""


def top_folder(name: str) -> Folder:
    """Return the root, whose own name is `name`."""
    return Folder("", name, RankPath(("",)))


def is_unfinished(name: str) -> bool:
    """Whether a directory is one that MindIO renames when all ranks have saved their slices in it."""
    return _UNFINISHED.fullmatch(name) is not None


def _join(place: RankPath, form: RankPath) -> RankPath:
    """Return the path of a directory in another one; the last part of that one ends where the name begins."""
    ahead = f"{place.parts[-1]}/" if len(place.parts) > 1 or place.parts[0] else ""
    return RankPath((*place.parts[:-1], f"{ahead}{form.parts[0]}", *form.parts[1:]))
