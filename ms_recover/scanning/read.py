"""Read slices from end to end and digest them, with the state files beside them."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ms_recover.errors import MsRecoverError
from ms_recover.file_names import STATE_SUFFIX
from ms_recover.formats.header_cache import KnownHeaders
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.progress import expect_bytes
from ms_recover.stores.digest import digest_file

_log = logging.getLogger(__name__)


def read_contents(
    root: str,
    files: Sequence[SliceFile],
    *,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
    from_device: bool = False,
) -> Contents:
    """Digest slices with so many threads, the whole file and each parameter; check their state files.

    A slice that could not be read, or that changed meanwhile, has a problem instead of digests. `progress` gets the
    bytes read since its last call, from any thread, and where it is `Expecting` first the sum of their sizes;
    `from_device` drops cached pages first. An interrupt is raised when the threads have ended.
    """
    stop, headers = threading.Event(), KnownHeaders()
    total = sum(file.size for file in files)
    expect_bytes(progress, total)
    _log.info("reading %d slices, %d bytes, with %d threads", len(files), total, jobs)

    def read(file: SliceFile) -> Digests | str:
        path = os.path.join(root, file.path)
        try:
            header = headers.read(path)
            digests = digest_file(
                path,
                header.contents,
                stop=stop.is_set,
                progress=progress or (lambda count: None),
                from_device=from_device,
            )
            status = os.stat(path)
        except (OSError, MsRecoverError) as error:
            return f"cannot be read: {getattr(error, 'strerror', None) or error}"
        if (status.st_size, status.st_mtime_ns) != (file.size, file.mtime_ns) or header.parameters != file.parameters:
            return "changes while it is read: is training still writing it?"
        return digests

    digests: dict[str, Digests] = {}
    problems: dict[str, str] = {}
    states: dict[str, str] = {}
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="read")
    try:
        for file, found in zip(files, pool.map(read, files), strict=True):
            if isinstance(found, str):
                problems[file.path] = found
                _log.info("rank %d, step %s: %s %s", file.rank, file.step, file.path, found)
            else:
                digests[file.path] = found
                if (wrong := _state_problem(os.path.join(root, file.path), file.manifest)) is not None:
                    states[file.path] = wrong
                _log.debug("rank %d, step %s: %s has %s", file.rank, file.step, file.path, found.file)
    finally:
        stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return Contents(digests, problems, states)


def _state_problem(path: str, manifest: Manifest | None) -> str | None:
    """Return what is wrong with the state file of a slice; None where it is sound, or its manifest names none."""
    training = manifest.training if manifest is not None else None
    if training is None or training.state_digest is None:
        return None
    try:
        found = digest_file(path + STATE_SUFFIX).file
    except FileNotFoundError:
        return "missing"
    except (OSError, MsRecoverError) as error:
        return f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return None if found == training.state_digest else "has other contents than those that the slice's manifest names"
