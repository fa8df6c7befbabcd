"""What killed recoveries left behind under temporary names."""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress

from ms_recover.file_names import GROUP_INFO_NAME, TEMPORARY_SUFFIX
from ms_recover.storage.local import READ

_SUFFIX = re.escape(TEMPORARY_SUFFIX)
_OURS = re.compile(rf"\.(?!{re.escape(GROUP_INFO_NAME)}\..+{_SUFFIX}).+{_SUFFIX}\Z", re.DOTALL)
"""Names that `claim_temporary` gives; rank lists that training writes have a random part more, and no lock."""


def clear_leftovers(folders: Iterable[str]) -> None:
    """Remove temporary files that no living process holds the lock of; what cannot be removed stays.

    Parameters
    ----------
    folders : iterable of str
        Directories to look into, not below.
    """
    for folder in folders:
        with suppress(OSError):
            for name in os.listdir(folder):
                if _OURS.match(name):
                    _remove_unlocked(os.path.join(folder, name))


def _remove_unlocked(path: str) -> None:
    with suppress(OSError):
        descriptor = os.open(path, READ | os.O_NOFOLLOW)
        try:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        finally:
            os.close(descriptor)
