"""Checks of the files that a plan writes: their place, and what lies there now."""

from __future__ import annotations

import os
import stat

from ms_recover.errors import FormatError, StorageError, VerificationError
from ms_recover.file_names import ranks_in_folders
from ms_recover.model.actions import FileState
from ms_recover.stores.atomic import AtomicFile
from ms_recover.stores.digest import digest_bytes
from ms_recover.stores.store import Stop
from ms_recover.system_errors import explained


def check_place(root: str, path: str, rank: int) -> None:
    """Check that a target of a rank lies below the root, and in no other rank's directory, once links are followed.

    Raises
    ------
    FormatError
        When a link leads elsewhere.
    StorageError
        When a link leads nowhere.
    """
    folders, linked = check_inside(root, path)
    for other in ranks_in_folders(folders, vague=linked):
        if other != str(rank):
            raise FormatError(f"{path} leads to the directory of rank {other} through a link: nothing was written")


def check_inside(root: str, path: str) -> tuple[list[str], bool]:
    """Return the directories below the root to a target, once links are followed, and whether there was a link.

    Raises
    ------
    FormatError
        When a link leads out of the root.
    StorageError
        When a link leads nowhere.
    """
    parent = os.path.join(root, os.path.dirname(path))
    if os.path.lexists(parent) and not os.path.exists(parent):
        raise StorageError(
            f"writing {os.path.join(root, path)}: {parent} is a link that leads nowhere: put a directory there"
        )
    real_root = os.path.realpath(root)
    folder = os.path.realpath(parent)
    if folder != real_root and not folder.startswith(os.path.join(real_root, "")):
        raise FormatError(f"{path} leads out of {root} through a link, to {folder}: nothing was written there")
    linked = folder != os.path.normpath(os.path.join(real_root, os.path.dirname(path)))
    return os.path.relpath(folder, real_root).split("/"), linked


def check_target(path: str, replaces: FileState | None) -> None:
    """Raise a VerificationError unless the target is the file that the plan saw: nothing newer may be replaced."""
    with explained("looking at", path):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return
    if not stat.S_ISREG(status.st_mode):
        raise VerificationError(f"{path} is no file, and in the way of one: move it away, then plan again")
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
