"""A slice that is read once, to be proven and to be loaded."""

from __future__ import annotations

from typing import Any

from ms_recover.loading.contents import SliceContents, read_contents
from ms_recover.model.manifest import Digests
from ms_recover.model.slices import SliceHeader
from ms_recover.scanning.read import digest_slice
from ms_recover.stores.store import OpenFile


class KeptSlice:
    """Keeps the contents of the slice that it read last, until they are taken; the memory is the taker's then."""

    def __init__(self) -> None:
        self._path = ""
        self._contents: SliceContents | None = None

    def read(self, opened: OpenFile, header: SliceHeader, *, crc: bool, **means: Any) -> tuple[Digests, str | None]:
        """Read a slice as `ms_recover.scanning.read.digest_slice` does."""
        self._path, self._contents = opened.name, None
        if header.problems or header.encryption is not None:
            return digest_slice(opened, header, crc=crc, **means)
        found = read_contents(opened, header, crc=crc, **means)
        assert found.digests is not None
        if found.problem is None:
            self._contents = found
        return found.digests, found.problem

    def take(self, path: str) -> SliceContents | None:
        """Return the contents of a slice and keep them no longer; None when another one was read, or none."""
        found = self._contents if path == self._path else None
        self._contents = None
        return found
