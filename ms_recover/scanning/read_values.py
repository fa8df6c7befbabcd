"""Read parameters of slices and count what is no finite number, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import xxhash

from ms_recover.errors import MsRecoverError
from ms_recover.formats.finite import FiniteCounter
from ms_recover.formats.header_cache import KnownHeaders
from ms_recover.model.progress import Progress
from ms_recover.planning.history.values import Content, ReadValue
from ms_recover.stores.digest import name_digest
from ms_recover.stores.store import Store, concerns_all

Found = dict[str, ReadValue] | str
"""By parameter; or why a slice cannot be read."""


def read_values(
    store: Store, wanted: Mapping[str, Mapping[str, Content]], *, jobs: int = 1, progress: Progress | None = None
) -> dict[str, Found]:
    """Read parameters of slices by path; each thread holds one piece of a few MiB at most.

    A parameter that the slice does not hold, of that type, is left out. An interrupt is raised when the threads have
    ended.

    Raises
    ------
    StorageError
        When a distant store cannot be read for another reason than that this user may not.
    """
    reader = _Reader(store, progress or (lambda count: None))
    paths: Sequence[str] = list(wanted)
    pool = ThreadPoolExecutor(max(1, jobs), thread_name_prefix="values")
    try:
        return dict(zip(paths, pool.map(lambda path: reader.read(path, wanted[path]), paths), strict=True))
    finally:
        reader.stop.set()
        pool.shutdown(wait=True, cancel_futures=True)


class _Reader:
    def __init__(self, store: Store, progress: Progress) -> None:
        self._store, self._progress = store, progress
        self._headers = KnownHeaders()
        self.stop = threading.Event()

    def read(self, path: str, wanted: Mapping[str, Content]) -> Found:
        """Return what some parameters of a slice hold."""
        try:
            return self._read(path, wanted)
        except (OSError, MsRecoverError) as error:
            if not self._store.near and concerns_all(error):
                raise
            return str(error)

    def _read(self, path: str, wanted: Mapping[str, Content]) -> Found:
        found = {}
        with self._store.open(path) as opened:
            header = self._headers.parse(opened.read_at, opened.size, path)
            if header.problems:
                return header.problems[0]
            for parameter, pieces in zip(header.parameters, header.contents, strict=True):
                content = wanted.get(parameter.name)
                if content is None or content.dtype != parameter.dtype:
                    continue
                digest, counter = xxhash.xxh3_128(), FiniteCounter(parameter.dtype)

                def take(data: memoryview, digest: xxhash.xxh3_128 = digest, counter: FiniteCounter = counter) -> None:
                    digest.update(data)
                    counter.update(data)
                    self._progress(len(data))

                for piece in pieces:
                    opened.read_range(piece.start, piece.end, take, self.stop.is_set)
                counts = counter.counts()
                found[parameter.name] = ReadValue(name_digest(digest), counts.nan, counts.inf, counts.zero)
            opened.check_unchanged()
        return found
