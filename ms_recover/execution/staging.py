"""Whole slices of other hosts, at hand while slices are put together from them."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ms_recover.errors import MsRecoverError
from ms_recover.execution.elsewhere import Elsewhere, Fetching
from ms_recover.file_names import FETCHED_DIRECTORY, MANIFEST_SUFFIX
from ms_recover.formats.manifest import encode_manifest
from ms_recover.model.actions import FileState, Replica
from ms_recover.model.compose import ComposeAction
from ms_recover.storage.local import claim_temporary, commit, explain, write_text

"""Hidden directory in the root where these slices are put; it goes when all is done."""


class Staging(Fetching):
    """Brings slices of other hosts; a context manager that leaves no staged slice behind.

    Parameters
    ----------
    root : str
        The tree; its lock is held inside.
    elsewhere : Elsewhere
        Where slices are.
    """

    def __init__(self, root: str, elsewhere: Elsewhere) -> None:
        super().__init__(root, elsewhere)
        self._staged: dict[str, MsRecoverError | None] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Staging:
        self._clear()
        return self

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        with suppress(OSError):
            shutil.rmtree(os.path.join(self.root, FETCHED_DIRECTORY))

    def bring(self, action: ComposeAction, stop: Callable[[], bool]) -> tuple[ComposeAction, list[MsRecoverError]]:
        """Fetch what an action takes from other hosts into the staging directory.

        Returns
        -------
        (ComposeAction, list of MsRecoverError)
            The action with staged sources; and why some could not be had, for which it has to do with alternatives.

        Raises
        ------
        StoppedError
            When asked to stop.
        """
        wanted = {action.model} | {piece.source for item in action.parameters for piece in item.pieces}
        failed: dict[int, MsRecoverError] = {}
        while wanted - failed.keys():
            for number in sorted(wanted - failed.keys()):
                if (error := self._stage(action.sources[number], stop)) is not None:
                    failed[number] = error
            more = {
                other
                for item in action.parameters
                for piece in item.pieces
                if piece.source in failed
                for other in piece.alternatives
            }
            if more <= wanted:
                break
            wanted |= more
        sources = tuple(self._as_staged(source) for source in action.sources)
        return replace(action, sources=sources), [failed[number] for number in sorted(failed)]

    def tell(self, text: str) -> str:
        """Return a text with staged paths told as what they were fetched from."""
        return text.replace(os.path.join(self.root, FETCHED_DIRECTORY, ""), "").replace(f"{FETCHED_DIRECTORY}/", "")

    def _as_staged(self, source: Replica) -> Replica:
        host = self.where(source.path)
        if host is None:
            return source
        path = f"{FETCHED_DIRECTORY}/{host}/{source.path}"
        with suppress(OSError):
            status = os.stat(os.path.join(self.root, path))
            return replace(source, path=path, state=FileState(status.st_size, status.st_mtime_ns))
        return replace(source, path=path)

    def _stage(self, source: Replica, stop: Callable[[], bool]) -> MsRecoverError | None:
        """Fetch a slice of another host, once for all that need it; return why it cannot be had."""
        host = self.where(source.path)
        if host is None:
            return None
        with self._lock:
            if source.path not in self._staged:
                try:
                    self._stage_now(os.path.join(self.root, FETCHED_DIRECTORY, host, source.path), source, stop)
                except MsRecoverError as error:
                    self._staged[source.path] = error
                else:
                    self._staged[source.path] = None
            return self._staged[source.path]

    def _stage_now(self, path: str, source: Replica, stop: Callable[[], bool]) -> None:
        manifest = self.manifest(source.path)
        with explain("fetching", path):
            self.make_directory(os.path.dirname(path), set())
            with claim_temporary(path) as temporary:
                self.fill(temporary, path, source, stop)
                commit(temporary, path, set())
        if manifest is not None:
            write_text(path + MANIFEST_SUFFIX, encode_manifest(manifest).decode(), set())
