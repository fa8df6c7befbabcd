"""Looks at a tree that cost little: the times of its directories, and the identities of a few slices."""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import replace

from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.file_names import weights_name
from ms_recover.formats.header import find_problem, read_header
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.world_size import find_world_size
from ms_recover.supervision.quiet import Identity, Signature, StepSight, left_to_the_job
from ms_recover.system_errors import explained

_DEPTH = 6
"""Directories below the root that are looked at."""


class Directories:
    """The directories of a tree; one whose time has not changed is not listed again."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._listed: dict[str, tuple[int, tuple[str, ...]]] = {}

    def look(self, files: Iterable[str] = ()) -> Signature:
        """Return the modification time of each directory, hidden ones left out, and of some files below the root.

        A MissingInputError says that the root is gone, another MsRecoverError that it cannot be read.
        """
        with explained("looking at", self._root, "name the folder that holds the ranks' directories"):
            os.scandir(self._root).close()
        found: dict[str, int] = {}
        listed: dict[str, tuple[int, tuple[str, ...]]] = {}
        seen: set[tuple[int, int]] = set()
        level = [self._root]
        for _ in range(_DEPTH):
            below: list[str] = []
            for path in level:
                try:
                    status = os.stat(path)
                    if not stat.S_ISDIR(status.st_mode) or (status.st_dev, status.st_ino) in seen:
                        continue
                    seen.add((status.st_dev, status.st_ino))
                    before = self._listed.get(path)
                    same = before is not None and before[0] == status.st_mtime_ns
                    names = before[1] if before is not None and same else _directories(path)
                except OSError:  # removed meanwhile, or closed to this user: a scan tells
                    continue
                found[path] = status.st_mtime_ns
                listed[path] = status.st_mtime_ns, names
                below += names
            level = below
        self._listed = listed
        for name in files:
            path = os.path.join(self._root, name)
            with suppress(OSError):
                found[path] = os.stat(path).st_mtime_ns
        return found


def _directories(path: str) -> tuple[str, ...]:
    with os.scandir(path) as entries:
        return tuple(sorted(entry.path for entry in entries if not entry.name.startswith(".") and entry.is_dir()))


def sights(inventory: Inventory, options: PlanOptions) -> list[StepSight]:
    """Return the steps with slices that have no manifest, as they lie there now.

    A step is complete when every rank has a slice of it, in trees of MindFormers' iterations one of each kind, as many
    as their names say. The ranks are those of the options, else all of the world.
    """
    unsealed: dict[Step, list[SliceFile]] = defaultdict(list)
    holders: dict[Step, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    counts: dict[Step, int] = defaultdict(int)
    for file in inventory.slices:
        if not is_sealed(file):
            unsealed[file.step].append(file)
        name = weights_name(os.path.basename(file.path)) if file.step.is_iteration else None
        if name is not None:
            counts[file.step] = max(counts[file.step], name.file_count)
        holders[file.step][name.kind if name is not None else "slice"].add(file.rank)
    world = find_world_size(inventory, options.world_size).ranks
    spared = left_to_the_job(inventory.steps)
    return [
        StepSight(
            step=step,
            unsealed={file.path: identity_of(inventory, file.path) for file in files},
            missing=tuple(_lacking(holders[step], options.ranks or range(max(world, counts[step])))),
        )
        for step, files in unsealed.items()
        if (options.step is None or step == options.step) and step != spared
    ]


def is_sealed(file: SliceFile) -> bool:
    """Whether a slice has a manifest, be it one that cannot be read: sealing replaces none."""
    return file.manifest is not None or file.manifest_problem is not None


def _lacking(holders: dict[str, set[int]], ranks: Collection[int]) -> Iterable[str]:
    for kind, having in sorted(holders.items()):
        lacking = sorted(set(ranks) - having)
        if lacking:
            what = "slice" if kind == "slice" else f"{kind} file"
            yield f"no {what} of rank{'s' if len(lacking) > 1 else ''} {list_some(lacking)}"


def identity_of(inventory: Inventory, path: str) -> Identity:
    """Return the identity of a slice, by its path in the tree; empty when it is gone."""
    try:
        status = os.stat(os.path.join(inventory.root, path))
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def with_crc(inventory: Inventory, step: Step) -> Inventory:
    """Check the CRC of the slices of one step that have one and no manifest; a scan checks those of the whole tree."""

    def checked(file: SliceFile) -> SliceFile:
        if file.crc is None or file.problem is not None or file.step != step or is_sealed(file):
            return file
        path = os.path.join(inventory.root, file.path)
        try:
            problem = find_problem(path, read_header(path), crc=True)
        except MissingInputError:
            return file
        except (MsRecoverError, OSError) as error:
            problem = str(error)
        return replace(file, problem=problem)

    return replace(inventory, slices=tuple(checked(file) for file in inventory.slices))
