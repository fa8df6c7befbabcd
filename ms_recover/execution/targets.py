"""Checks of the files that a plan writes: their place, and what lies there now."""

from __future__ import annotations

import errno
import os
import shlex
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ms_recover.errors import VerificationError
from ms_recover.file_names import BACKUP_MARK
from ms_recover.formats.plan_paths import name_problems, text_of_problem
from ms_recover.model.actions import FileState
from ms_recover.model.places import Obstacle
from ms_recover.model.plan import Plan
from ms_recover.planning.plan.places import (
    Judged,
    Target,
    copies_of,
    error_of,
    judge_places,
    obstacle_of,
    other_folders,
    targets_of,
)
from ms_recover.stores.atomic import AtomicFile
from ms_recover.stores.digest import digest_bytes
from ms_recover.stores.places import look_at_places, shared_targets
from ms_recover.stores.store import Stop
from ms_recover.stores.urls import is_url
from ms_recover.system_errors import explained


def judge_now(
    plan: Plan,
    *,
    ranks: Collection[int] | None = None,
    elsewhere: Collection[str] = (),
    just_made: bool = False,
) -> Judged:
    """Look at the places of a plan's files on this host, and find what keeps them from being written.

    Nothing is found where the root is a URL, or no directory of this host.

    Parameters
    ----------
    ranks : collection of int, optional
        Look at the files of these ranks alone.
    elsewhere : collection of str
        Paths of slices that do not lie below the root.
    just_made : bool
        As for `ms_recover.planning.plan.places.judge_places`.
    """
    if just_made and (misnamed := _misnamed(plan)):
        return Judged(misnamed)
    targets = [one for one in targets_of(plan) if ranks is None or one.rank in ranks]
    if not targets or is_url(plan.root):
        return Judged()
    paths = [one.path for one in targets]
    if _is_backup(plan.root):
        reason = (
            f"{plan.root} is a backup, which stays as it is: bring slices from it into a tree with "
            f"{shlex.join(['recover-ckpt', 'apply', 'TREE', '--from', plan.root])}"
        )
        return Judged(tuple(Obstacle(rank=one.rank, path=one.path, kind="elsewhere", reason=reason) for one in targets))
    places = look_at_places(plan.root, paths)
    if places is not None and any(folder.linked for folder in places.folders.values()):
        places = look_at_places(plan.root, paths, other_folders(plan))
    if places is None:
        return Judged()
    judged = judge_places(plan, targets, places, just_made=just_made)
    if judged.one_at_a_time or any(one.kind == "space" for one in judged.obstacles):
        named = set(paths)
        copies = [pair for pair in copies_of(plan) if pair[1] in named and pair[0] not in elsewhere]
        shared = shared_targets(places, copies)
        judged = judge_places(plan, targets, replace(places, shared=shared), just_made=just_made)
    return judged


def _is_backup(root: str) -> bool:
    """Whether a root is a folder that `copy` has written, or the index of a step in one."""
    folder = os.path.dirname(os.path.dirname(root)) if os.path.isfile(root) else root
    return os.path.lexists(os.path.join(folder, BACKUP_MARK))


def _misnamed(plan: Plan) -> tuple[Obstacle, ...]:
    """Return the paths that a plan would be refused for as a whole: those that name another rank or step."""
    return tuple(
        Obstacle(
            rank=None,
            path=path,
            kind="elsewhere",
            reason=text_of_problem("the plan", what, path, problem),
        )
        for what, path, problem in name_problems(plan)
    )


def check_place(root: str, path: str, rank: int | None, follow: Sequence[str] = (), *, plain: bool = False) -> None:
    """Check that a file can be written where it belongs, as a plan is judged.

    Parameters
    ----------
    rank : int or None
        Its rank: no link may lead to another one's directory. None for a document of all.
    follow : sequence of str
        Real directories out of the root that links may lead to.
    plain : bool
        A link under its name is not replaced.

    Raises
    ------
    FormatError
        When a link leads elsewhere.
    VerificationError
        When something lies in the way.
    PermissionDeniedError, StorageError
        When the directory may not be written, or is none.
    """
    places = look_at_places(root, [path])
    if places is None:
        return  # the first thing that is written says so
    obstacle = obstacle_of(Target(rank=rank, path=path, plain=plain), places, follow)
    if obstacle is not None:
        raise error_of(obstacle)


def check_refused(path: str, refused: Mapping[str, Obstacle]) -> None:
    """Raise the error of a file that was found to have an obstacle, by path."""
    if path in refused:
        raise error_of(refused[path])


def check_target(path: str, replaces: FileState | None) -> None:
    """Raise a VerificationError unless the target is the file that the plan saw: nothing newer may be replaced."""
    with explained("looking at", path):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno == errno.ELOOP:  # a link that leads to no file is replaced, whatever the reason
                return
            raise
    if not stat.S_ISREG(status.st_mode):
        raise VerificationError(f"{path} is no file, and in the way of one: move it away, then apply")
    if replaces is None or FileState(status.st_size, status.st_mtime_ns) != replaces:
        raise VerificationError(f"{path} appeared or changed after the plan was made; nothing was replaced: plan again")


def check_written(file: AtomicFile, digest: str, stop: Stop) -> None:
    """Raise a VerificationError unless the device holds the bytes that were written; errors of reading as they are."""
    with explained("reading back", file.path):
        back = digest_bytes(file.descriptor, stop, from_device=True)
    if back != digest:
        raise VerificationError(
            f"{file.path} reads back as {back}, written was {digest}: the device or its memory alters data; "
            "check the system log"
        )
