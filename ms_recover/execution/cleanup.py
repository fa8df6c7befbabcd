"""Temporary files that killed recoveries left behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress

from ms_recover.file_names import TEMPORARY_SUFFIX
from ms_recover.storage.atomic import remove_unlocked

_TEMPORARY = re.compile(rf"\..+{re.escape(TEMPORARY_SUFFIX)}\Z", re.DOTALL)


def remove_leftovers(folders: Iterable[str]) -> None:
    """Remove temporary files in these directories, not below, unless a living process holds their lock."""
    for folder in folders:
        with suppress(OSError):
            for name in os.listdir(folder):
                if _TEMPORARY.match(name):
                    with suppress(OSError):
                        remove_unlocked(os.path.join(folder, name))
