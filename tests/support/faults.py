"""Strike at one call to the file system: kill the process there, or let the call fail.

The calls of the `os` module that a commit is made of are counted, as far as they concern one tree; the fault strikes at
the call with a given number. Walking through all numbers strikes at every place.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WRITING = (
    *("write", "pwrite", "ftruncate", "fsync", "rename", "replace", "unlink", "mkdir", "fchmod", "utime"),
    "posix_fallocate",
)
READING = ("readv", "preadv", "pread", "read")
OPENING = ("open", "chmod", "chown", "fchown", "link", "rmdir")


class Faults:
    """Count calls and strike at one.

    Parameters
    ----------
    root : str
        Only calls about paths below it, or descriptors of such files, count.
    strike_at : int
        Number of the call, from 1; 0 never strikes.
    kind : str or callable
        ``"kill"`` (SIGKILL before the call), ``"kill after"``, the name of an error, such as ``"ENOSPC"``, or what
        happens to the tree before the call, which is told the call as `trace` has it.
    calls : tuple of str
        Names of the functions of `os` that count.
    """

    def __init__(
        self, root: str, strike_at: int, kind: str | Callable[[str], object], calls: tuple[str, ...] = WRITING
    ) -> None:
        self.root = os.path.realpath(root)
        self.strike_at = strike_at
        self.kind = kind
        self.calls = calls
        self.count = 0
        self.trace: list[str] = []

    @contextmanager
    def installed(self) -> Iterator[Faults]:
        """Patch `os` for the duration of the block; for a process of its own, or a test without other threads."""
        real = {name: getattr(os, name) for name in self.calls}
        try:
            for name, function in real.items():
                setattr(os, name, self._wrap(name, function))
            yield self
        finally:
            for name, function in real.items():
                setattr(os, name, function)

    def _wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            path = _path_of(arguments[0])
            if not path.startswith(self.root + os.sep):
                return function(*arguments, **options)
            self.count += 1
            self.trace.append(f"{name} {path[len(self.root) + 1 :]}")
            if self.count == self.strike_at:
                if callable(self.kind):
                    self.kind(self.trace[-1])
                elif self.kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                elif self.kind == "kill after":
                    function(*arguments, **options)
                    os.kill(os.getpid(), signal.SIGKILL)
                else:
                    code = getattr(errno, self.kind)
                    raise OSError(code, os.strerror(code))
            return function(*arguments, **options)

        return counted


@contextmanager
def unreadable(path: Path) -> Iterator[None]:
    """Let the device fail at each reading of a file, whatever its name becomes; not of another one under that name."""
    inode = path.stat().st_ino
    real = {name: getattr(os, name) for name in READING}

    def failing(function: Callable[..., Any]) -> Callable[..., Any]:
        def read(descriptor: int, *arguments: Any, **options: Any) -> Any:
            if os.fstat(descriptor).st_ino == inode:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return function(descriptor, *arguments, **options)

        return read

    try:
        for name, function in real.items():
            setattr(os, name, failing(function))
        yield
    finally:
        for name, function in real.items():
            setattr(os, name, function)


def _path_of(first: Any) -> str:
    if isinstance(first, int):
        try:
            return os.readlink(f"/proc/self/fd/{first}").removesuffix(" (deleted)")
        except OSError:
            return ""
    return os.path.abspath(os.fsdecode(first))
