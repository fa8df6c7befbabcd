"""What a resume holds until it ends: directories to which no other training saves meanwhile, stores, renamed slices."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import ExitStack

from ms_recover.execution.directory_lock import lock_directory
from ms_recover.training.set_aside import Renames


class Held(ExitStack):
    """A resume's own; everything is given back when its block ends, the last thing first."""

    def __init__(self) -> None:
        super().__init__()
        self.brought = Renames()
        """Slices that got their names back to be resumed from."""

    def lock(self, folders: Iterable[str]) -> bool:
        """Lock directories; return whether another training was waited for until it ended.

        Raises StorageError when another training saves to one.
        """
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            time.sleep(seconds)

        for folder in sorted(folders):
            self.callback(lock_directory(folder, sleep=wait).release)
        return bool(waits)
