"""The roots that this host sees: where they really lie, and which tree it is."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Collection, Mapping

import xxhash

from ms_recover.engine.workers import RootIdentity, RootReport
from ms_recover.errors import MissingInputError, StorageError, UsageError, VerificationError
from ms_recover.system_errors import explained

ROOTS_VARIABLE = "MS_RECOVER_NODE_ROOTS"
"""Where roots lie on this node, as ``/data/ckpt=/mnt/disk1/ckpt:/other=/mnt/disk2``; others as named."""
_BOOT = "/proc/sys/kernel/random/boot_id"


def roots_from_environment() -> dict[str, str]:
    """Return the roots of `ROOTS_VARIABLE`; errors as for `parse_roots`."""
    return parse_roots(os.environ.get(ROOTS_VARIABLE, ""))


def parse_roots(text: str) -> dict[str, str]:
    """Read ``/root=/where:/other=/where``.

    Raises
    ------
    UsageError
        When a part is not two absolute paths.
    """
    roots: dict[str, str] = {}
    for part in filter(None, text.split(":")):
        root, equals, path = part.partition("=")
        if not equals or not os.path.isabs(root) or not os.path.isabs(path):
            raise UsageError(f"{ROOTS_VARIABLE}: {part!r} is not /root=/path; write /data/ckpt=/mnt/disk1/ckpt")
        roots[os.path.normpath(root)] = os.path.normpath(path)
    return roots


def path_of(root: str, roots: Mapping[str, str]) -> str:
    """Return where a root lies, by the longest of the `roots` that it is, or is below."""
    ahead = root
    while ahead not in roots:
        if ahead in ("/", ""):
            return root
        ahead = os.path.dirname(ahead)
    return os.path.join(roots[ahead], os.path.relpath(root, ahead)) if ahead != root else roots[ahead]


@functools.cache
def machine() -> str:
    """Return the identity of this machine since it was started."""
    try:
        with open(_BOOT, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()


def look_at(root: str, roots: Mapping[str, str]) -> RootReport:
    """Return what this host sees at a root; an error becomes its problem."""
    path = path_of(root, roots)
    try:
        top = os.path.realpath(path)
        status = os.stat(top)
        with os.scandir(top) as entries:
            names = sorted((entry.name, entry.inode()) for entry in entries)
        space = os.statvfs(top)
    except FileNotFoundError:
        return RootReport(root=root, path=path, missing=True, problem=f"{path} does not exist")
    except OSError as error:
        return RootReport(root=root, path=path, problem=f"{path} cannot be read: {error.strerror}")
    digest = xxhash.xxh3_128(repr((status.st_ino, status.st_ctime_ns)).encode())
    for name in names:
        digest.update(os.fsencode(repr(name)))
    return RootReport(
        root=root,
        path=top,
        identity=RootIdentity(machine(), status.st_dev, status.st_ino),
        listing=digest.hexdigest(),
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
    )


def open_root(root: str, identities: Collection[RootIdentity], roots: Mapping[str, str]) -> str:
    """Return where a root lies, once it is known to be the tree that was seen there before.

    Raises
    ------
    MissingInputError
        When it is gone.
    VerificationError
        When it is another tree.
    StorageError
        When it cannot be opened.
    """
    path = os.path.realpath(path_of(root, roots))
    with explained("opening", path):
        try:
            status = os.stat(path)
        except FileNotFoundError:
            raise MissingInputError(
                f"{path} is gone from {socket.gethostname()}: see recover-ckpt worker-info"
            ) from None
    if RootIdentity(machine(), status.st_dev, status.st_ino) not in identities:
        raise VerificationError(
            f"{path} on {socket.gethostname()} is another tree than the one that was seen before: was it replaced, or "
            "mounted anew? run this again"
        )
    return path


def make_root(root: str, roots: Mapping[str, str]) -> RootIdentity:
    """Make the directory of a root that was lost, in a directory that is there; one that is empty may be there already.

    Raises
    ------
    StorageError
        When it cannot be made, or something lies there by now.
    """
    path = path_of(root, roots)
    if not os.path.isdir(os.path.dirname(path)):
        raise StorageError(
            f"{path} is gone from {socket.gethostname()}, and so is the directory above it: mount the disk, or make an "
            "empty directory there, then run this again"
        )
    with explained("making", path):
        try:
            os.mkdir(path)
        except FileExistsError:
            if not os.path.isdir(path) or os.listdir(path):
                raise StorageError(f"{path} appeared on {socket.gethostname()} meanwhile: run this again") from None
        status = os.stat(path)
    return RootIdentity(machine(), status.st_dev, status.st_ino)
