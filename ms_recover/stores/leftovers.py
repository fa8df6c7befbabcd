"""Temporary files that killed writers left on a server, where nothing can be locked."""

from __future__ import annotations

import logging
import posixpath
import re

from ms_recover.errors import MsRecoverError
from ms_recover.file_names import TEMPORARY_SUFFIX
from ms_recover.stores.network_store import NetworkStore
from ms_recover.stores.paths import join

_log = logging.getLogger(__name__)
_NAME = re.compile(rf"\..+\.[0-9a-f]{{8}}{re.escape(TEMPORARY_SUFFIX)}", re.DOTALL)
OLD_SECONDS = 3600
"""A writer that lives writes at least every minute, or gives up."""


def remove_leftovers(store: NetworkStore, temporary: str) -> None:
    """Remove what killed writers left in the folder of a temporary file that was just written; once for each folder.

    A leftover has a name that only our writers give, and was last written an hour before `temporary`, by the clock of
    the server. One that cannot be removed stays.
    """
    folder = posixpath.dirname(temporary)
    if folder in store.cleared:
        return
    store.cleared.add(folder)
    try:
        now = store.stat(temporary).mtime_ns
        for entry in store.list(folder):
            path = join(folder, entry.name)
            if path == temporary or entry.kind != "file" or not _NAME.fullmatch(entry.name):
                continue
            if 0 < (entry.info or store.stat(path)).mtime_ns < now - OLD_SECONDS * 10**9:
                store.remove(path)
                _log.info("%s: removed, a killed process left it", store.name(path))
    except MsRecoverError as error:
        _log.info("%s: leftovers stay: %s", store.name(folder), error)
