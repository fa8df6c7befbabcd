"""Scan a checkpoint tree: open every slice's header and every rank list once."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.file_names import RANK_DIRECTORIES, RESHARDED_FOLDER, VAGUE_RANK_DIRECTORIES
from ms_recover.formats.group_info import KnownGroups, decode_group_info
from ms_recover.model.inventory import (
    GroupFile,
    Inventory,
    OrphanManifest,
    SeenEvidence,
    SetAside,
    SliceFile,
    StrategyFile,
)
from ms_recover.model.options import DEFAULT_SCAN, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.scanning.counters import with_counters
from ms_recover.scanning.doubles import without_doubles
from ms_recover.scanning.named_files import find_named_files
from ms_recover.scanning.naming import Pattern
from ms_recover.scanning.notes import MOST_NAMED, Notes
from ms_recover.scanning.resume_records import read_health, read_meta_files
from ms_recover.scanning.settle import Place, find_strategy_folder, keep_one_set, places_beside, settle_names
from ms_recover.scanning.slice_reader import SliceReader, manifest_beside
from ms_recover.scanning.strategy_files import StrategyReader
from ms_recover.scanning.survey import advice_for, find_seen_evidence, option_path, survey_folder
from ms_recover.scanning.tree import Tree
from ms_recover.scanning.walk import Found, RankFile, may_hold_iterations, walk_layouts, walk_pattern
from ms_recover.stores.store import Store
from ms_recover.stores.urls import open_store

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
    """List the slices, rank lists, strategy files and manifests of a checkpoint tree, sorted.

    Parameters
    ----------
    root : str or path
        A directory with a directory for each rank, or the URL of one: see docs/stores.md. Of a distant tree no slice is
        read whole: CRCs are left to what reads slices.
    options : ScanOptions
        How the tree is laid out.
    stop : callable, optional
        Asked now and then; True ends a CRC check early.
    progress : callable, optional
        See `ms_recover.model.progress.Progress`; the bytes read to check CRCs.

    Raises
    ------
    MsRecoverError
        As `scan_store`, and when the store of the root cannot be opened.
    """
    with open_store(root) as store:
        return scan_store(store, options, stop=stop, progress=progress)


def scan_store(
    store: Store,
    options: ScanOptions = DEFAULT_SCAN,
    *,
    stop: Callable[[], bool] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Inventory:
    """Take stock of a checkpoint tree; the same tree gives the same inventory.

    Slices are read by header only. Where a slice of a local tree has a CRC its contents are read as well, unless `crc`
    is false; of a distant one they are not. `stop` is asked now and then; true ends a CRC check early. `progress` gets
    the bytes read for CRCs.

    Raises
    ------
    MissingInputError
        When the root is no directory or holds no rank's files.
    FormatError
        When a file named in `group_info` or `strategy` is malformed.
    UsageError
        When `pattern` is not one.
    PermissionDeniedError, StorageError
        When the root cannot be read, or a file named in the options; of a distant store, when anything that concerns
        the scan cannot be read for another reason than that this user may not.
    """
    tree, pattern = Tree(store), options.pattern
    top = tree.root
    found = walk_pattern(tree, Pattern.parse(pattern)) if pattern else walk_layouts(tree)
    settle_names(found)
    others = () if pattern else keep_one_set(top, found)
    notes = found.notes
    _note_other_worlds(tree, notes)
    stored = None if pattern else _find_iterations(tree, notes)
    ranks = found.ranks | {name.rank for name in stored.slices} if stored else found.ranks
    _note_left_out(store, notes)
    empty = [path for rank, path in sorted(set(found.directories)) if rank not in ranks]
    if not ranks and not options.may_be_empty:
        if stored:
            raise MissingInputError(
                f"{top} holds iterations, and no model or optimizer file in any: name another folder"
            )
        raise _nothing_found(tree, pattern, found, empty)
    if empty:
        counted_as = "a rank" if len(empty) == 1 else "ranks"
        notes.add(list_some(empty, MOST_NAMED), f"no slice in it: not counted as {counted_as}")
    known = KnownGroups()
    reader = SliceReader(tree, headers=options.headers, crc=options.crc, stop=stop, progress=progress, lists=known)
    for other in others:
        notes.add(other.pattern, other.reason)
    metas = read_meta_files(tree, found.meta_files, notes)
    named = {f"{os.path.dirname(meta.path)}/{meta.file}" for meta in metas}
    opened = reader.read_all([*found.slices, *(stored.slices if stored else ())], notes)
    slices = [file for file in opened if isinstance(file, SliceFile)]
    if stored:
        from ms_recover.scanning.iterations import choose_format

        slices = choose_format(slices, notes)
        stored = stored if not slices or slices[0].step.is_iteration else None
    slices = without_doubles(tree, slices, notes, stop, named=named)
    slices = with_counters(tree, slices) if options.headers else slices
    orphans = [file for file in opened if isinstance(file, OrphanManifest)]
    groups = _own_groups(tree, found, known)
    for owner, path in find_named_files(tree, options.group_info, "--group-info"):
        data = tree.small(path, "a group_info.pb")
        groups.append(GroupFile(owner, path, None, decode_group_info(data, tree.name(path), owner=owner)))
    strategy_reader = StrategyReader(tree)
    strategies = strategy_reader.beside_slices(found.strategy_files, notes)
    strategies += strategy_reader.named(find_named_files(tree, options.strategy, "--strategy"))
    places = places_beside(tree, found.slices)
    if not options.strategy:
        in_folder, of_stages = find_strategy_folder(places, notes)
        strategies += strategy_reader.beside_slices(in_folder, notes)
        strategies += strategy_reader.in_folder(of_stages, notes)
    unhealthy = read_health(places, notes)
    _log.info("%s: %d slices of %d ranks", top, len(slices), len(ranks))
    for file in slices:
        if file.problem is not None:
            _log.info("rank %d, step %s: %s: %s", file.rank, file.step, file.path, file.problem)
    return Inventory(
        root=top,
        ranks=tuple(sorted(ranks)),
        slices=tuple(sorted(slices, key=lambda file: (file.rank, file.step.epoch, file.step.step, file.path))),
        group_files=tuple(sorted(groups, key=lambda file: file.path)),
        strategy_files=tuple(sorted(strategies, key=lambda file: (file.path, file.rank))),
        notes=notes.folded(),
        denied=tuple(sorted(found.denied, key=lambda denied: (denied[0], denied[1].path))),
        orphans=tuple(sorted(orphans, key=lambda orphan: (orphan.rank, orphan.step, orphan.path))),
        iterations=stored.with_global_steps(tree, slices) if stored else (),
        tracker=stored.tracker if stored else None,
        other_sets=others,
        meta_files=metas,
        unhealthy=unhealthy,
        seen=_seen_evidence(tree, places, groups, strategies),
        set_aside=_set_aside(tree, found),
        crc_later=options.crc and not tree.near,
    )


def _note_other_worlds(tree: Tree, notes: Notes) -> None:
    """Name the trees of other ranks that lie below the root: a training was resumed from them."""
    if all(entry.name != RESHARDED_FOLDER for entry in tree.entries("")):
        return
    with suppress(MsRecoverError):  # it is no part of this tree
        for entry in tree.entries(RESHARDED_FOLDER):
            path = f"{RESHARDED_FOLDER}/{entry.name}"
            if not entry.name.startswith("."):
                command = shlex.join(["recover-ckpt", "plan", f"{tree.root}/{path}"])
                notes.add(path, f"slices that a training on other ranks was resumed from, a tree of its own: {command}")


def _note_left_out(store: Store, notes: Notes) -> None:
    """Name the steps of a backup that lie under the paths of another run's."""
    from ms_recover.stores.backup_store import BackupStore

    for path, reason in store.notes() if isinstance(store, BackupStore) else ():
        notes.add(path, reason)


def _set_aside(tree: Tree, found: Found) -> tuple[SetAside, ...]:
    """Return the slices that were set aside; of each prefix and step one manifest is read."""
    known: set[tuple[str, Step]] = set()
    aside = []
    for name, path in sorted(found.set_aside, key=lambda one: (one[0].rank, one[0].step, one[1])):
        manifest = None
        if (name.prefix, name.step) not in known:
            manifest = manifest_beside(tree, path).manifest
        if manifest is not None:
            known.add((name.prefix, name.step))
        aside.append(SetAside(rank=name.rank, step=name.step, path=name.path, aside=path, manifest=manifest))
    return tuple(aside)


def _seen_evidence(
    tree: Tree, places: Sequence[Place], groups: Sequence[GroupFile], strategies: Sequence[StrategyFile]
) -> tuple[SeenEvidence, ...]:
    """Look for strategy files and rank lists in other folders where the scan has none of a kind."""
    if groups and strategies:
        return ()
    used = [file.path for file in groups] + [file.path for file in strategies]
    return find_seen_evidence(places, {option_path(tree, path) for path in used})


def _find_iterations(tree: Tree, notes: Notes) -> FoundIterations | None:
    """Find MindFormers' iterations; None without one. Their formats are loaded where there are some."""
    if not may_hold_iterations(tree):
        return None
    from ms_recover.scanning.iterations import walk_iterations

    found = walk_iterations(tree, notes)
    return found if found.iterations else None


def _nothing_found(tree: Tree, pattern: str | None, found: Found, empty: list[str]) -> MsRecoverError:
    if found.refused:
        return found.refused[0]
    from ms_recover.stores.backup_store import BackupStore

    if isinstance(tree.store, BackupStore):
        return MissingInputError(f"{tree.root} is a backup in which no step is whole: run recover-ckpt copy again")
    top, surveyed = tree.root, survey_folder(tree)
    advice = advice_for(top, surveyed)
    if empty:
        return MissingInputError(
            f"{top} holds directories of ranks but no slice ({list_some(empty, MOST_NAMED)}): name another folder, "
            f"or describe the file names with --pattern; below it: {surveyed.text}; {advice}"
        )
    forms = ", ".join(f"{form}/" for form in (*RANK_DIRECTORIES, *VAGUE_RANK_DIRECTORIES, "iteration_*"))
    looked = f"no path matches {pattern}" if pattern else f"no directory of a rank ({forms})"
    return MissingInputError(f"{top} holds no slices: {looked}; below it: {surveyed.text}; {advice}")


def _own_groups(tree: Tree, found: Found, known: KnownGroups) -> list[GroupFile]:

    def read(file: RankFile) -> GroupFile:
        try:
            info = decode_group_info(tree.small(file.path, "a group_info.pb"), tree.name(file.path), known=known)
        except MsRecoverError as error:
            tree.check_reached(error)
            return GroupFile(file.rank, file.path, file.place, None, tree.brief(error, file.path))
        return GroupFile(file.rank, file.path, file.place, info)

    return tree.each(read, found.group_files)
