"""The verbs that list what is there: inspect a file, scan a tree."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_SCAN, ScanOptions
from ms_recover.model.progress import Progress

if TYPE_CHECKING:
    from ms_recover.model.inspection import Inspection


def inspect(path: str | os.PathLike[str], *, crc: bool = True) -> Inspection:
    """Identify a slice, ``group_info.pb``, strategy file or document of MindFormers, and list contents and problems.

    With `crc` the CRC of a slice that has one is checked, which reads the whole file. The path may be a URL.

    Raises
    ------
    MissingInputError, StorageError
        When the file does not exist or cannot be read.
    """
    from ms_recover.scanning.inspect import inspect_file

    return inspect_file(path, crc=crc)


def scan(
    root: str | os.PathLike[str],
    options: ScanOptions = DEFAULT_SCAN,
    *,
    stop: Callable[[], bool] | None = None,
    progress: Progress | None = None,
) -> Inventory:
    """List the slices, rank lists, strategy files and manifests of a checkpoint tree, sorted.

    Parameters
    ----------
    root : str or path
        A directory with a directory for each rank, or the URL of one: see docs/stores.md. Of a distant tree no slice is
        read whole: CRCs are left to what reads slices.
    stop : callable, optional
        Asked now and then; True ends a CRC check early.
    progress : callable, optional
        See `ms_recover.model.progress.Progress`; the bytes read to check CRCs.

    Raises
    ------
    MissingInputError
        When the tree does not exist, or holds no rank's directory.
    UsageError
        When the pattern is invalid.
    FormatError
        When a file named in the options is malformed.
    StorageError
        When the root cannot be read, or a distant tree not as a whole.
    """
    from ms_recover.scanning.scan import scan as scan_tree

    return scan_tree(root, options, stop=stop, progress=progress)
