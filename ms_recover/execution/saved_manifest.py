"""The manifest of a slice that another program has just saved: MindSpore's or MindFormers' own checkpoint callback.

They rename a slice to its final name when it is written, and may remove or replace it at any later time. So everything
is read from one file, and a manifest is written only while that file is still the one that lies there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ms_recover.errors import MissingInputError, VerificationError
from ms_recover.execution.manifests import NamedSlice, write_manifest
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.header import read_header
from ms_recover.model.manifest import Manifest
from ms_recover.model.slices import Parameter
from ms_recover.stores.digest import digest_file
from ms_recover.stores.local import READ, StoppedError
from ms_recover.system_errors import explained

Identity = tuple[int, int, int, int]
"""Device, inode, size in bytes and modification time in ns: another file under the same name differs in one."""

GroupOf = Callable[[tuple[Parameter, ...]], tuple[int, ...]]
"""Returns the ranks that hold the same slice, by its parameters."""


@dataclass(frozen=True)
class Proven:
    """The manifest of a file, which it fits as long as the file of that name has this identity."""

    path: str
    manifest: Manifest
    identity: Identity


def prove_saved(
    order: NamedSlice,
    group_of: GroupOf,
    strategy: str | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Proven | None:
    """Read a saved slice and make it durable; None when it is gone or was replaced meanwhile, or on `stop`.

    `strategy` is the digest of the strategy file that the slice was saved under.

    Raises
    ------
    VerificationError
        When the slice is not whole.
    StorageError
        When it cannot be read.
    """
    try:
        with explained("opening", order.path):
            descriptor = os.open(order.path, READ)
    except MissingInputError:
        return None
    try:
        with explained("reading", order.path):
            return _prove(order, descriptor, group_of, strategy, stop)
    except (MissingInputError, StoppedError):  # removed while it was read
        return None
    finally:
        os.close(descriptor)


def _prove(
    order: NamedSlice, descriptor: int, group_of: GroupOf, strategy: str | None, stop: Callable[[], bool]
) -> Proven | None:
    identity = _identity(os.fstat(descriptor))
    header = read_header(order.path)
    digests = digest_file(order.path, header.contents, stop=stop)
    os.fsync(descriptor)
    if _identity(os.stat(order.path)) != identity:
        return None
    if header.problems:
        raise VerificationError(f"the slice is not whole: {header.problems[0]}; check the device's memory and the disk")
    manifest = order.manifest(header, digests, group_of(header.parameters), strategy)
    return Proven(order.path, manifest, identity)


def commit_manifest(proven: Proven) -> bool:
    """Write the manifest of a slice; False, and none is left, when the slice is gone or was replaced.

    A StorageError says that it cannot be written.
    """
    if not _still_there(proven):
        return False
    try:
        write_manifest(proven.path, proven.manifest)
    except MissingInputError:  # the directory was removed
        return False
    if _still_there(proven):
        return True
    remove_manifest(proven.path)
    return False


def remove_manifest(path: str) -> None:
    """Remove the manifest of a slice that is gone or was replaced; a StorageError when it cannot be removed."""
    with explained("removing", path + MANIFEST_SUFFIX), suppress(FileNotFoundError):
        os.unlink(path + MANIFEST_SUFFIX)


def _still_there(proven: Proven) -> bool:
    with explained("looking at", proven.path):
        try:
            return _identity(os.stat(proven.path)) == proven.identity
        except FileNotFoundError:
            return False


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
