"""A checkpoint of whole parameters in a folder: one file, or pieces and the index that says which has what."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ms_recover.errors import MissingInputError, MsRecoverError, UsageError
from ms_recover.file_names import (
    FULL_STEM,
    MERGED_INDEX,
    MERGED_REST,
    PARTIAL_MARK,
    SLICE_ENDINGS,
    SLICE_FORMATS,
    index_name,
    marked,
)
from ms_recover.formats.weight_index import MAX_INDEX, decode_index
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import OrphanManifest, RankPath, SliceFile
from ms_recover.model.steps import Step
from ms_recover.scanning.naming import SliceName
from ms_recover.scanning.notes import Notes
from ms_recover.scanning.read import Reading, read_store
from ms_recover.scanning.slice_reader import SliceReader
from ms_recover.scanning.tree import Tree
from ms_recover.stores.store import Store

_UNKNOWN = Step(0, 0)
_SINGLE = tuple(
    name for form in SLICE_FORMATS for name in (f"{FULL_STEM}.{form}", marked(f"{FULL_STEM}.{form}", PARTIAL_MARK))
)
_PARTIAL = tuple(marked(ending, PARTIAL_MARK) for ending in SLICE_ENDINGS)
_PIECE = re.compile(
    rf"{FULL_STEM}-\d{{5,9}}-of-(?P<count>\d{{5,9}})(?:{re.escape(PARTIAL_MARK)})?\.(?P<form>{'|'.join(SLICE_FORMATS)})\Z",
    re.ASCII,
)
_MERGED_PART = re.compile(r"part\d{1,9}\.safetensors\Z", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class WholeFiles:
    """The files of a checkpoint of whole parameters.

    Parameters
    ----------
    root : str
        The folder, or its URL without secrets.
    index : mapping of str to str or None
        The file of each parameter; None where one file has all of them.
    files : tuple of SliceFile
        Those that are there, with their manifests, in the order of their names; rank and step mean nothing.
    orphans : tuple of OrphanManifest
        Manifests of files that are gone.
    read : Contents
        Digests of the files, where they were read.
    """

    root: str
    index: Mapping[str, str] | None
    files: tuple[SliceFile, ...]
    orphans: tuple[OrphanManifest, ...] = ()
    read: Contents = NOTHING_READ

    @property
    def partial(self) -> bool:
        """Whether it was written although nobody held some parameters: by the names of its files, or their number."""
        names = set(self.index.values()) if self.index is not None else {one.path for one in self.files}
        counts = [int(piece["count"]) for piece in map(_PIECE.match, names) if piece is not None]
        return max(counts, default=0) > len(names) or any(name.endswith(_PARTIAL) for name in names)


def has_whole_files(store: Store) -> bool:
    """Whether a folder seems to hold a checkpoint of whole parameters; false where it cannot be listed."""
    try:
        return bool(_entrances(Tree(store)))
    except MsRecoverError:
        return False


def find_whole_files(store: Store, wanted: Collection[str] | None = None, *, read: bool = False) -> WholeFiles | None:
    """Find a checkpoint of whole parameters, by its usual names; None where a folder holds none.

    With an index only the files that hold one of the parameters in `wanted` are looked at. `read` reads them from end
    to end.

    Raises
    ------
    UsageError
        When there are several.
    MissingInputError
        When there are pieces, and no index.
    FormatError
        When the index is damaged.
    MsRecoverError
        When the folder or the index cannot be read.
    """
    tree = Tree(store)
    entrances = _entrances(tree)
    if len(entrances) > 1:
        raise UsageError(
            f"{tree.root} holds {' and '.join(entrances)}, and nothing says which of them counts: move the others away"
        )
    if not entrances:
        _refuse_unfinished(tree)
        return None
    (entrance,) = entrances
    index = None
    names = [entrance]
    if entrance not in _SINGLE:
        merged = entrance == MERGED_INDEX
        index = decode_index(tree.small(entrance, "an index", MAX_INDEX), tree.name(entrance), bare=merged)
        index |= _beside_layouts(tree) if merged else {}
        names = sorted({file for name, file in index.items() if wanted is None or name in wanted})
    listed = [SliceName(rank=0, step=_UNKNOWN, prefix=FULL_STEM, place=RankPath((name,))) for name in names]
    found = SliceReader(tree, crc=read, stop=None, progress=None).read_all(listed, Notes())
    files = tuple(one for one in found if isinstance(one, SliceFile))
    sound = [one for one in files if one.problem is None and one.encryption is None]
    return WholeFiles(
        root=tree.root,
        index=index,
        files=files,
        orphans=tuple(one for one in found if isinstance(one, OrphanManifest)),
        read=read_store(store, sound, Reading(crc=True)) if read and sound else NOTHING_READ,
    )


def _beside_layouts(tree: Tree) -> dict[str, str]:
    """Return the single numbers among the parameters that MindSpore writes beside those that layouts name.

    They are those of rank 0. Larger ones, such as accumulated gradients, may be parts of a parameter.
    """
    listed = [SliceName(rank=0, step=_UNKNOWN, prefix=FULL_STEM, place=RankPath((MERGED_REST,)))]
    found = SliceReader(tree, crc=False, stop=None, progress=None).read_all(listed, Notes())
    held = (one.parameters for one in found if isinstance(one, SliceFile))
    return {one.name: MERGED_REST for parameters in held for one in parameters if one.is_counter}


def _entrances(tree: Tree) -> list[str]:
    """Return the names of indexes and of files that are alone."""
    names = {entry.name for entry in tree.entries("") if entry.kind in ("file", "link")}
    return [name for name in (*map(index_name, SLICE_FORMATS), MERGED_INDEX, *_SINGLE) if name in names]


def _refuse_unfinished(tree: Tree) -> None:
    for entry in tree.entries(""):
        if (piece := _PIECE.match(entry.name)) is not None:
            raise MissingInputError(
                f"{tree.root} holds {entry.name}, but no {index_name(piece['form'])}, which says what each holds: "
                "run recover-ckpt reshard --full to its end, or bring it back"
            )
        if _MERGED_PART.match(entry.name) is not None:
            raise MissingInputError(
                f"{tree.root} holds {entry.name}, but no {MERGED_INDEX}, which says what each holds: run MindSpore's "
                "unified_safetensors to its end, or bring it back"
            )
