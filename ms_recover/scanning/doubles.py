"""Several slices of one rank and step with the same contents: one of them counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from operator import attrgetter

from ms_recover.errors import MsRecoverError
from ms_recover.formats.header import parse_header
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.scanning.notes import Notes
from ms_recover.scanning.tree import Tree
from ms_recover.stores.digest import Digester
from ms_recover.stores.local import StoppedError


def without_doubles(
    tree: Tree,
    slices: Sequence[SliceFile],
    notes: Notes,
    stop: Callable[[], bool] | None = None,
    *,
    named: Collection[str] = (),
) -> list[SliceFile]:
    """Keep one of several sound slices of one rank and step that hold the same, one with its manifest if there is.

    A copy under another name, with the manifest of what it was copied from, comes last. Of several without a manifest,
    one whose path is `named` elsewhere is kept.

    The bytes of equal contents differ between formats, and MindSpore writes the metadata of safetensors files in any
    order. Slices that may be the same are read once each, until `stop` returns true, but for those of a distant tree
    whose manifests state their digests; `notes` names those left out. Slices whose manifests name different runs are
    both kept: each may be all that its run has on this rank.
    """
    kept: list[SliceFile] = []
    groups: dict[object, list[SliceFile]] = defaultdict(list)  # slices of two groups cannot hold the same
    counts = Counter((file.rank, file.step, file.kind) for file in slices)
    if len(counts) == len(slices):
        return list(slices)
    for file in sorted(slices, key=lambda file: (_place(file), file.path not in named, file.path)):
        if file.problem is not None or counts[file.rank, file.step, file.kind] == 1:
            kept.append(file)
        else:
            parameters = tuple(sorted(file.parameters, key=attrgetter("name")))
            groups[(file.rank, file.step, file.kind, file.encryption, parameters)].append(file)
    for group in groups.values():
        kept += group if len(group) == 1 else _without_doubles(tree, group, notes, stop or (lambda: False))
    return kept


def _place(file: SliceFile) -> int:
    """Return the place of a slice among equal ones: with a manifest of its own, without one, with that of another."""
    if file.manifest is None:
        return 1
    name = file.path.rpartition("/")[2]
    is_own = (file.manifest.rank, file.manifest.step, file.manifest.file) == (file.rank, file.step, name)
    return 0 if is_own else 2


def _without_doubles(tree: Tree, group: list[SliceFile], notes: Notes, stop: Callable[[], bool]) -> list[SliceFile]:
    kept = []
    contents: dict[object, SliceFile] = {}
    for file in group:
        keys: list[tuple[str, object]] = [("bytes", file.inode)] if file.inode is not None else []
        if not keys or keys[0] not in contents:
            keys += _stated(tree, file) or _digests(tree, file.path, encrypted=file.encryption is not None, stop=stop)
        same = next((key for key in keys if key in contents), None)
        if same is None or _of_two_runs(file, contents[same]):
            kept.append(file)
            contents = dict.fromkeys(keys, file) | contents
        else:
            contents |= dict.fromkeys(keys, contents[same])
            notes.add(file.path, f"holds the same {same[0]} as {contents[same].path}", "double")
    return kept


def _stated(tree: Tree, file: SliceFile) -> list[tuple[str, object]]:
    """Return the keys of a slice of a distant tree by its manifest: what `_digests` returns without reading it."""
    if tree.near or file.manifest is None or not file.manifest.parameters:
        return []
    return _keys(file.manifest.digests, [parameter.name for parameter in file.manifest.parameters])


def _keys(found: Digests, names: Sequence[str]) -> list[tuple[str, object]]:
    return [("bytes", found.file), ("contents", tuple(sorted(zip(names, found.parameters, strict=True))))]


def _of_two_runs(one: SliceFile, other: SliceFile) -> bool:
    return one.manifest is not None and other.manifest is not None and one.manifest.run_id != other.manifest.run_id


def _digests(tree: Tree, path: str, *, encrypted: bool, stop: Callable[[], bool]) -> list[tuple[str, object]]:
    """Return the keys under which a slice is the same as another: its bytes, then the contents of its parameters."""
    try:
        with tree.open(path) as opened:
            header = parse_header(opened.read_at, opened.size, name=path)
            digester = Digester(header.contents)
            opened.read_range(0, opened.size, digester.update, stop)
    except (OSError, MsRecoverError, StoppedError) as error:
        if isinstance(error, MsRecoverError):
            tree.check_reached(error)
        return []
    found = digester.digests()
    if encrypted:
        return [("bytes", found.file)]
    return _keys(found, [parameter.name for parameter in header.parameters])
