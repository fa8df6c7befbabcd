"""Read slices from end to end and digest them, with the state files beside them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from ms_recover.errors import MissingInputError, MsRecoverError, VerificationError
from ms_recover.file_names import STATE_SUFFIX
from ms_recover.formats.header import RunningCrc, crc_problem
from ms_recover.formats.header_cache import KnownHeaders
from ms_recover.formats.nan_contents import is_nan_everywhere
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.progress import Progress, expect_bytes
from ms_recover.model.slices import SliceHeader
from ms_recover.stores.digest import Digester, digest_file
from ms_recover.stores.store import OpenFile, Stop, Store, concerns_all, never
from ms_recover.stores.threads import in_threads
from ms_recover.stores.urls import open_store
from ms_recover.system_errors import is_failing

_log = logging.getLogger(__name__)

_LEAST_JOBS = 4
"""Threads that read a distant store, however many cores there are here."""

_CHANGES = "changes while it is read: is training still writing it?"


def _ignore(count: int) -> None:
    pass


def digest_slice(
    opened: OpenFile, header: SliceHeader, *, crc: bool, stop: Stop = never, progress: Progress = _ignore
) -> tuple[Digests, str | None]:
    """Read an open slice from end to end; return its digests, and with `crc` why they are not those of its own CRC."""
    digester = Digester(header.contents)
    checked = crc and header.crc is not None and not header.problems
    running = RunningCrc(header) if checked and header.kind == "ckpt" else None

    def take(data: memoryview) -> None:
        digester.update(data)
        if running is not None:
            running.update(data)
        progress(len(data))

    opened.read_range(0, opened.size, take, stop)
    problem = running.problem() if running is not None else None
    if checked and running is None:  # a CRC of parameters in another order than that of the file
        problem = crc_problem(opened.read_at, opened.size, header, stop=stop)
    return digester.digests(), problem


Read = Callable[..., tuple[Digests, str | None]]
"""As `digest_slice`, which gives the bytes away; another may keep them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How slices are read."""

    jobs: int = 1
    """Threads that read."""
    progress: Progress = _ignore
    """Given the bytes read since its last call, from any thread, and where it is `Expecting` first the sum of all."""
    from_device: bool = False
    """Whether cached pages are dropped first, where the slices are local."""
    crc: bool = False
    """Whether a slice that is read here and does not agree with the CRC in it has a problem."""
    read: Read = digest_slice
    """Reads one slice."""


_PLAIN = Reading()


def read_contents(root: str, files: Sequence[SliceFile], reading: Reading = _PLAIN) -> Contents:
    """Digest the slices of a tree, by its path or URL; as `read_store`, and errors as for `open_store` too."""
    with open_store(root) as store:
        return read_store(store, files, reading)


def read_store(store: Store, files: Sequence[SliceFile], reading: Reading = _PLAIN) -> Contents:
    """Digest slices, the whole file and each parameter; check their state files.

    A slice that could not be read, or that changed meanwhile, has a problem instead of digests. An interrupt is raised
    when the threads have ended.

    Raises
    ------
    StorageError
        When a distant store cannot be read for another reason than that this user may not.
    """
    total = sum(file.size for file in files)
    expect_bytes(reading.progress, total)
    # A server of ours digests where the bytes lie; what keeps them has to read them here.
    sent = store.digests(files, reading.progress) if files and reading.read is digest_slice else None
    if sent is not None:
        return replace(sent, nan=_nan_everywhere(files, sent.digests))
    jobs = reading.jobs if store.near else max(reading.jobs, _LEAST_JOBS)
    _log.info("reading %d slices, %d bytes, with %d threads", len(files), total, jobs)
    reader = _Reader(store, reading)
    digests: dict[str, Digests] = {}
    problems: dict[str, str] = {}
    states: dict[str, str] = {}
    failing: set[str] = set()
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="read")
    try:
        for file, answer in zip(files, pool.map(reader.read, files), strict=True):
            if isinstance(answer, str):
                problems[file.path] = answer
                failing |= {file.path} if isinstance(answer, NotGiven) else set()
                _log.info("rank %d, step %s: %s %s", file.rank, file.step, file.path, answer)
            else:
                digests[file.path] = answer
                if (wrong := _state_problem(store, file, reader.stop.is_set)) is not None:
                    states[file.path] = wrong
                _log.debug("rank %d, step %s: %s has %s", file.rank, file.step, file.path, answer.file)
    finally:
        reader.stop.set()
        pool.shutdown(wait=True, cancel_futures=True)
    return Contents(digests, problems, states, frozenset(failing), _nan_everywhere(files, digests))


class NotGiven(str):
    """Why the device did not give a slice."""

    __slots__ = ()


def state_problems(store: Store, files: Sequence[SliceFile], *, jobs: int = 1) -> dict[str, str]:
    """Return what is wrong with the state files of slices, as in `Contents`, without reading these.

    Raises
    ------
    StorageError
        As for `read_store`.
    """
    stated = [file for file in files if _state_digest(file) is not None]
    problems = in_threads(jobs, lambda file: _state_problem(store, file, never), stated)
    return {file.path: wrong for file, wrong in zip(stated, problems, strict=True) if wrong is not None}


def _state_digest(file: SliceFile) -> str | None:
    training = file.manifest.training if file.manifest is not None else None
    return training.state_digest if training is not None else None


def _state_problem(store: Store, file: SliceFile, stop: Stop) -> str | None:
    """Return what is wrong with the state file of a slice; None where it is sound, or its manifest names none."""
    expected = _state_digest(file)
    if expected is None:
        return None
    try:
        with store.open(file.path + STATE_SUFFIX) as opened:
            digest = opened.digest(stop)
    except MissingInputError:
        return "missing"
    except (OSError, MsRecoverError) as error:
        _check_reached(store, error)
        return f"cannot be read: {_cause(error)}"
    return None if digest == expected else "has other contents than those that the slice's manifest names"


def _check_reached(store: Store, error: Exception) -> None:
    if not store.near and concerns_all(error):
        raise error


def _nan_everywhere(files: Sequence[SliceFile], digests: Mapping[str, Digests]) -> frozenset[str]:
    read = ((file, digests[file.path]) for file in files if file.path in digests)
    return frozenset(file.path for file, found in read if is_nan_everywhere(file.parameters, found))


class _Reader:
    """Reads the slices of one call; threads share it."""

    def __init__(self, store: Store, reading: Reading) -> None:
        self._store, self._reading = store, reading
        self._headers = KnownHeaders()
        self.stop = threading.Event()

    def read(self, file: SliceFile) -> Digests | str:
        """Return the digests of a slice, or why there are none; a StorageError as for `read_store`."""
        try:
            with self._store.open(file.path, FileState(file.size, file.mtime_ns)) as opened:
                return self._read(opened, file)
        except VerificationError:
            return _CHANGES
        except (OSError, MsRecoverError) as error:
            _check_reached(self._store, error)
            text = f"cannot be read: {_cause(error)}"
            return NotGiven(text) if is_failing(error) else text

    def _read(self, opened: OpenFile, file: SliceFile) -> Digests | str:
        header = self._headers.parse(opened.read_at, opened.size, file.path)
        problem, reading, stop = None, self._reading, self.stop.is_set
        if reading.from_device and self._store.near and opened.path is not None:
            digests = digest_file(opened.path, header.contents, stop=stop, progress=reading.progress, from_device=True)
        else:
            digests, problem = reading.read(opened, header, crc=reading.crc, stop=stop, progress=reading.progress)
        opened.check_unchanged()
        if header.parameters != file.parameters:
            return _CHANGES
        return problem or digests


def _cause(error: BaseException) -> str:
    """Return the words of the operating system, else those of the error."""
    cause = error.__cause__ or error
    return (cause.strerror if isinstance(cause, OSError) else None) or str(error)
