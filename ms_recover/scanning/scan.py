"""Scan a checkpoint tree: open every slice's header and every rank list once."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.file_names import MANIFEST_SUFFIX, RANK_DIRECTORIES, VAGUE_RANK_DIRECTORIES
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.header import find_problem
from ms_recover.formats.header_cache import KnownHeaders
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.groups import GroupInfo
from ms_recover.model.inventory import (
    GroupFile,
    Inventory,
    OrphanManifest,
    SeenEvidence,
    SetAside,
    SliceFile,
    StrategyFile,
)
from ms_recover.model.manifest import Manifest
from ms_recover.model.options import DEFAULT_SCAN, ScanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.scanning.doubles import without_doubles
from ms_recover.scanning.naming import Pattern, SliceName
from ms_recover.scanning.notes import MOST_NAMED, Notes
from ms_recover.scanning.resume_records import read_health, read_meta_files
from ms_recover.scanning.settle import find_strategy_folder, keep_one_set, places_beside, settle_names
from ms_recover.scanning.strategy_files import StrategyReader
from ms_recover.scanning.survey import advice_for, find_seen_evidence, survey_folder
from ms_recover.scanning.walk import Found, find_named_files, may_hold_iterations, walk_layouts, walk_pattern
from ms_recover.system_errors import denied_text

if TYPE_CHECKING:
    from ms_recover.scanning.iterations import FoundIterations

_log = logging.getLogger(__name__)


def scan(
    root: str | os.PathLike[str],
    options: ScanOptions = DEFAULT_SCAN,
    *,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Inventory:
    """Take stock of a checkpoint tree; the same tree gives the same inventory.

    Slices are read by header only; where a slice ends in a CRC trailer its contents are read as well, unless `crc` is
    false. `stop` is asked now and then; true ends a CRC check early. `progress` gets the bytes read for CRCs.

    Raises
    ------
    MissingInputError
        When the root is no directory or holds no rank's files.
    FormatError
        When a file named in `group_info` or `strategy` is malformed.
    UsageError
        When `pattern` is not one.
    PermissionDeniedError, StorageError
        When the root cannot be read, or a file named in the options.
    """
    top, pattern = os.path.realpath(root), options.pattern
    found = walk_pattern(top, Pattern.parse(pattern)) if pattern else walk_layouts(top)
    settle_names(found)
    others = () if pattern else keep_one_set(top, found)
    notes = found.notes
    stored = None if pattern else _find_iterations(top, notes)
    ranks = found.ranks | {name.rank for name in stored.slices} if stored else found.ranks
    empty = [path for rank, path in sorted(set(found.directories)) if rank not in ranks]
    if not ranks and not options.may_be_empty:
        if stored:
            raise MissingInputError(
                f"{top} holds iterations, and no model or optimizer file in any: name another folder"
            )
        raise _nothing_found(top, pattern, found, empty)
    if empty:
        counted_as = "a rank" if len(empty) == 1 else "ranks"
        notes.add(list_some(empty, MOST_NAMED), f"no slice in it: not counted as {counted_as}")
    reader = _SliceReader(top, options, notes, stop, progress)
    for other in others:
        notes.add(other.pattern, other.reason)
    metas = read_meta_files(top, found.meta_files, notes)
    named = {f"{os.path.dirname(meta.path)}/{meta.file}" for meta in metas}
    opened = [reader.read(name) for name in (*found.slices, *(stored.slices if stored else ()))]
    slices = [file for file in opened if isinstance(file, SliceFile)]
    if stored:
        from ms_recover.scanning.iterations import choose_format

        slices = choose_format(slices, notes)
        stored = stored if not slices or slices[0].step.is_iteration else None
    slices = without_doubles(top, slices, notes, stop, named=named)
    orphans = [file for file in opened if isinstance(file, OrphanManifest)]
    groups = _own_groups(top, found)
    for owner, path in find_named_files(top, options.group_info, "--group-info"):
        groups.append(GroupFile(owner, path, None, read_group_info(path, owner=owner)))
    known = StrategyReader()
    strategies = known.beside_slices(top, found.strategy_files, notes)
    strategies += known.named(find_named_files(top, options.strategy, "--strategy"))
    places = places_beside(top, found.slices)
    if not options.strategy:
        in_folder, of_stages = find_strategy_folder(top, places, notes)
        strategies += known.beside_slices(top, in_folder, notes)
        strategies += known.in_folder(top, of_stages, notes)
    unhealthy = read_health(top, places, notes)
    _log.info("%s: %d slices of %d ranks", top, len(slices), len(ranks))
    for file in slices:
        if file.problem is not None:
            _log.info("rank %d, step %s: %s: %s", file.rank, file.step, file.path, file.problem)
    return Inventory(
        root=top,
        ranks=tuple(sorted(ranks)),
        slices=tuple(sorted(slices, key=lambda file: (file.rank, file.step, file.path))),
        group_files=tuple(sorted(groups, key=lambda file: file.path)),
        strategy_files=tuple(sorted(strategies, key=lambda file: (file.path, file.rank))),
        notes=notes.folded(),
        denied=tuple(sorted(found.denied, key=lambda denied: (denied[0], denied[1].path))),
        orphans=tuple(sorted(orphans, key=lambda orphan: (orphan.rank, orphan.step, orphan.path))),
        iterations=stored.with_global_steps(top, slices) if stored else (),
        tracker=stored.tracker if stored else None,
        other_sets=others,
        meta_files=metas,
        unhealthy=unhealthy,
        seen=_seen_evidence(top, places, groups, strategies),
        set_aside=_set_aside(top, found),
    )


def _set_aside(root: str, found: Found) -> tuple[SetAside, ...]:
    """Return the slices that were set aside; of each prefix and step one manifest is read."""
    known: set[tuple[str, Step]] = set()
    aside = []
    for name, path in sorted(found.set_aside, key=lambda one: (one[0].rank, one[0].step, one[1])):
        manifest = None
        if (name.prefix, name.step) not in known:
            manifest, _, _ = _read_manifest(os.path.join(root, path))
        if manifest is not None:
            known.add((name.prefix, name.step))
        aside.append(SetAside(rank=name.rank, step=name.step, path=name.path, aside=path, manifest=manifest))
    return tuple(aside)


def _seen_evidence(
    root: str, places: Sequence[str], groups: Sequence[GroupFile], strategies: Sequence[StrategyFile]
) -> tuple[SeenEvidence, ...]:
    """Look for strategy files and rank lists in other folders where the scan has none of a kind."""
    if groups and strategies:
        return ()
    used = [file.path for file in groups] + [file.path for file in strategies]
    return find_seen_evidence(places, {os.path.join(root, path) for path in used})


def _find_iterations(top: str, notes: Notes) -> FoundIterations | None:
    """Find MindFormers' iterations; None without one. Their formats are loaded where there are some."""
    if not may_hold_iterations(top):
        return None
    from ms_recover.scanning.iterations import walk_iterations

    found = walk_iterations(top, notes)
    return found if found.iterations else None


def _nothing_found(top: str, pattern: str | None, found: Found, empty: list[str]) -> MsRecoverError:
    if found.refused:
        return found.refused[0]
    surveyed = survey_folder(top)
    advice = advice_for(top, surveyed)
    if empty:
        return MissingInputError(
            f"{top} holds directories of ranks but no slice ({list_some(empty, MOST_NAMED)}): name another folder, "
            f"or describe the file names with --pattern; below it: {surveyed.text}; {advice}"
        )
    forms = ", ".join(f"{form}/" for form in (*RANK_DIRECTORIES, *VAGUE_RANK_DIRECTORIES, "iteration_*"))
    looked = f"no path matches {pattern}" if pattern else f"no directory of a rank ({forms})"
    return MissingInputError(f"{top} holds no slices: {looked}; below it: {surveyed.text}; {advice}")


class _SliceReader:
    """Opens the slices of one scan, and their manifests."""

    def __init__(
        self,
        root: str,
        options: ScanOptions,
        notes: Notes,
        stop: Callable[[], bool] | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._root = root
        self._crc = options.crc
        self._notes = notes
        self._stop = stop
        self._progress = progress
        self._headers = KnownHeaders()

    def read(self, name: SliceName) -> SliceFile | OrphanManifest | None:
        """Return the slice, or its manifest when it is gone; None when neither is there."""
        path = os.path.join(self._root, name.path)
        status: os.stat_result | None = None
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode):
                self._notes.add(name.path, "named like a slice, but not a file")
                return self._orphan(name, path)
            header = self._headers.read(path)
            problem = find_problem(path, header, crc=self._crc, stop=self._stop, progress=self._progress)
        except FileNotFoundError:  # a dangling link; or gone since: rotation, or another recovery's temporary file
            if os.path.islink(path):
                self._notes.add(name.path, "a link to a file that is not there")
            return self._orphan(name, path)
        except PermissionError:
            return _slice_file(name, status, denied=True, problem=denied_text())
        except MsRecoverError as error:
            return _slice_file(name, status, problem=_brief(error, path))
        except OSError as error:
            return _slice_file(name, status, problem=f"cannot be read: {error.strerror}")
        manifest, wrong, denied = _read_manifest(path, header.parameters)
        if denied:
            wrong = f"its manifest: {wrong}"
        return _slice_file(
            name,
            status,
            parameters=header.parameters,
            problem=problem or (wrong if denied else None),
            encryption=header.encryption,
            crc=header.crc,
            manifest=manifest,
            manifest_problem=wrong,
            denied=denied,
        )

    def _orphan(self, name: SliceName, path: str) -> OrphanManifest | None:
        manifest, problem, _ = _read_manifest(path)
        if manifest is None and problem is None:
            return None
        return OrphanManifest(
            rank=name.rank,
            step=name.step,
            place=name.place,
            prefix=name.prefix,
            manifest=manifest,
            problem=problem,
            part=name.part,
        )


def _read_manifest(path: str, like: tuple[Parameter, ...] = ()) -> tuple[Manifest | None, str | None, bool]:
    """Return the manifest of a slice, why it cannot be read, and whether this user may not; all empty without one."""
    beside = path + MANIFEST_SUFFIX
    try:
        return read_manifest(beside, like=like), None, False
    except MissingInputError:
        return None, None, False
    except PermissionError:
        return None, denied_text(), True
    except MsRecoverError as error:
        return None, str(error).replace(beside, "its manifest", 1), False


def _slice_file(name: SliceName, status: os.stat_result | None, **found: Any) -> SliceFile:
    """Return a slice; its size is 0 where the operating system does not state it."""
    place = (name.rank, name.step, name.place, name.prefix)
    found["part"] = name.part
    if status is None:
        return SliceFile(*place, 0, 0, **found)
    return SliceFile(*place, status.st_size, status.st_mtime_ns, inode=(status.st_dev, status.st_ino), **found)


def _brief(error: Exception, path: str) -> str:
    """Return a message without the path that the report shows beside it."""
    return str(error).removeprefix(f"{path}: ").removeprefix(f"{path} ")


def _own_groups(root: str, found: Found) -> list[GroupFile]:
    files = []
    known: dict[bytes, GroupInfo] = {}
    for file in found.group_files:
        path = os.path.join(root, file.path)
        try:
            files.append(GroupFile(file.rank, file.path, file.place, read_group_info(path, known=known)))
        except MsRecoverError as error:
            files.append(GroupFile(file.rank, file.path, file.place, None, _brief(error, path)))
    return files
