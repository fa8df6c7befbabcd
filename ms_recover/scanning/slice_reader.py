"""Open the slices of a scan: their headers, and the manifests beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ms_recover.errors import FormatError, MissingInputError, MsRecoverError, PermissionDeniedError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.header import counted, crc_problem
from ms_recover.formats.header_cache import KnownHeaders
from ms_recover.formats.manifest import MAX_SIZE, decode_manifest
from ms_recover.formats.manifest_cache import KnownManifests
from ms_recover.model.groups import KnownLists
from ms_recover.model.inventory import OrphanManifest, SliceFile
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter
from ms_recover.scanning.naming import SliceName
from ms_recover.scanning.notes import Notes
from ms_recover.scanning.tree import Tree
from ms_recover.stores.store import FileInfo
from ms_recover.system_errors import is_failing

_NO_FILE = "named like a slice, but not a file"
_NOWHERE = "a link to a file that is not there"


@dataclass(frozen=True)
class FoundManifest:
    """The manifest of a slice, or why it cannot be read; empty without one."""

    manifest: Manifest | None = None
    problem: str | None = None
    denied: bool = False
    """This user may not read it."""


def manifest_beside(
    tree: Tree,
    path: str,
    like: tuple[Parameter, ...] = (),
    known: KnownManifests | None = None,
    lists: KnownLists | None = None,
) -> FoundManifest:
    """Return the manifest of a slice.

    Parameters equal to those of `like` are shared with it, or those of `known`; a group of many ranks with `lists`.
    """
    beside = path + MANIFEST_SUFFIX
    try:
        data = tree.small(beside, "a manifest", MAX_SIZE)
        decode = decode_manifest if known is None else known.decode
        manifest = decode(data, tree.name(beside), like)
        if lists is not None and (group := lists.share(manifest.group)) is not manifest.group:
            manifest = replace(manifest, group=group)
        return FoundManifest(manifest)
    except MissingInputError:
        return FoundManifest()
    except PermissionDeniedError:
        return FoundManifest(problem=tree.denied, denied=True)
    except MsRecoverError as error:
        tree.check_reached(error)
        return FoundManifest(problem=str(error).replace(tree.name(beside), "its manifest", 1))


class SliceReader:
    """Opens the slices of one scan, and their manifests."""

    def __init__(
        self,
        tree: Tree,
        *,
        crc: bool,
        stop: Callable[[], bool] | None,
        progress: Callable[[int], None] | None,
        headers: bool = True,
        lists: KnownLists | None = None,
    ) -> None:
        self._tree = tree
        self._open = headers
        self._crc = crc and tree.near
        self._later = crc and not tree.near
        self._stop = stop
        self._progress = progress
        self._headers = KnownHeaders()
        self._manifests = KnownManifests()
        self._lists = KnownLists() if lists is None else lists
        self._last: tuple[Parameter, ...] = ()

    def read_all(self, names: Sequence[SliceName], notes: Notes) -> list[SliceFile | OrphanManifest]:
        """Return the slices, or their manifests where they are gone, in the order of the names."""
        first = [self._read(name) for name in names[:1]]  # the headers of others are compared with it
        found = [*first, *self._tree.each(self._read, names[1:])]
        for name, (_, reason) in zip(names, found, strict=True):
            if reason is not None:
                notes.add(name.path, reason)
        unchecked = [one.path for one, _ in found if self._later and isinstance(one, SliceFile) and one.crc is not None]
        if unchecked:
            many = (
                f"and {len(unchecked) - 1:,} more have CRCs, which are" if len(unchecked) > 1 else "has a CRC, which is"
            )
            notes.add(unchecked[0], f"{many} checked when slices are read whole, not by a scan of a distant tree")
        return [one for one, _ in found if one is not None]

    def _read(self, name: SliceName) -> tuple[SliceFile | OrphanManifest | None, str | None]:
        """Return a slice, its manifest when it is gone, nothing when neither is there; and what is to be noted."""
        tree, path = self._tree, name.path
        info: FileInfo | None = None
        try:
            info = tree.stat(path)
            described = None if tree.near else self._described(name, info)
            if described is not None:
                return described, None
            if not self._open:
                return self._by_manifest(name, info), None
            with tree.store.open(path, info.state) as opened:
                header = self._headers.parse(opened.read_at, opened.size, path)
                problem = header.problems[0] if header.problems else None
                if problem is None and self._crc:
                    read_at = counted(opened.read_at, self._progress)
                    problem = crc_problem(read_at, opened.size, header, stop=self._stop)
                if tree.near:
                    opened.check_unchanged()
        except FormatError:
            return self._orphan(name), _NO_FILE
        except MissingInputError:  # a dangling link; or gone since: rotation, or another recovery's temporary file
            return self._orphan(name), _NOWHERE if tree.kind(path) == "link" else None
        except PermissionDeniedError:
            return _slice_file(name, info, denied=True, problem=tree.denied), None
        except VerificationError:
            return _slice_file(name, info, problem="the file changed while it was read; is somebody writing it?"), None
        except MsRecoverError as error:
            tree.check_reached(error)
            problem = tree.brief(error, path)
            if not is_failing(error):
                return _slice_file(name, info, problem=problem), None
            found = manifest_beside(tree, path)  # it states what the slice holds, whatever the device gives
            return _slice_file(name, info, problem=problem, failing=True, manifest=found.manifest), None
        found = manifest_beside(tree, path, header.parameters, lists=self._lists)
        wrong = f"its manifest: {found.problem}" if found.denied else found.problem
        return _slice_file(
            name,
            info,
            parameters=header.parameters,
            problem=problem or (wrong if found.denied else None),
            encryption=header.encryption,
            crc=header.crc,
            manifest=found.manifest,
            manifest_problem=wrong,
            denied=found.denied,
            dealt=("remove_redundancy", "True") in header.metadata,
        ), None

    def _by_manifest(self, name: SliceName, info: FileInfo) -> SliceFile:
        """Return a slice as its manifest says, without opening it."""
        found = manifest_beside(self._tree, name.path, self._last, self._manifests, self._lists)
        wrong = f"its manifest: {found.problem}" if found.denied else found.problem
        if found.manifest is None:
            return _slice_file(name, info, manifest_problem=wrong)
        listed = found.manifest.parameters
        if listed is not self._last:
            self._last = listed = self._headers.share(listed)
        return _slice_file(name, info, parameters=listed, manifest=found.manifest, manifest_problem=wrong)

    def _described(self, name: SliceName, info: FileInfo) -> SliceFile | None:
        """Return a slice of a distant store whose manifest says what its header would say; None for any other.

        The manifest must be that of this file, of its size, and no older than it; and what the store knows of the
        digest must agree. Encrypted slices have manifests that list no parameters.
        """
        tree, beside = self._tree, name.path + MANIFEST_SUFFIX
        if tree.is_gone(beside):
            return None
        manifest = manifest_beside(tree, name.path, self._last, lists=self._lists).manifest
        if manifest is None or not manifest.parameters:
            return None
        says = (manifest.rank, manifest.step, manifest.file, manifest.size)
        if says != (name.rank, name.step, name.path.rpartition("/")[2], info.size):
            return None
        if info.digest not in (None, manifest.digests.file) or tree.stat(beside).mtime_ns < info.mtime_ns:
            return None
        self._last = self._headers.share(manifest.parameters)
        return _slice_file(name, info, parameters=self._last, manifest=manifest)

    def _orphan(self, name: SliceName) -> OrphanManifest | None:
        found = manifest_beside(self._tree, name.path, lists=self._lists)
        if found.manifest is None and found.problem is None:
            return None
        return OrphanManifest(
            rank=name.rank,
            step=name.step,
            place=name.place,
            prefix=name.prefix,
            manifest=found.manifest,
            problem=found.problem,
            kind=name.kind,
        )


def _slice_file(name: SliceName, info: FileInfo | None, **found: Any) -> SliceFile:
    """Return a slice; its size is 0 where the store does not state it."""
    place = (name.rank, name.step, name.place, name.prefix)
    found["kind"] = name.kind
    if info is None:
        return SliceFile(*place, 0, 0, **found)
    return SliceFile(*place, info.size, info.mtime_ns, inode=info.inode, **found)
