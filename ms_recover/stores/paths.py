"""Paths in a store: relative to its root, and never out of it (pure)."""

from __future__ import annotations

from ms_recover.errors import UsageError

_NO_NAMES = frozenset(("", ".", ".."))
_ENDS = ("/", ".")


def check_path(path: str) -> str:
    """Return a path of a file or folder below the root of a store; the root is the empty path.

    Raises
    ------
    UsageError
        When it is absolute, has an empty part, ``.`` or ``..``, or a null character.
    """
    if "/." not in path and "//" not in path and "\0" not in path and path[:1] not in _ENDS and path[-1:] != "/":
        return path  # nearly every path, at a third of the cost
    if path and ("\0" in path or not _NO_NAMES.isdisjoint(path.split("/"))):
        raise UsageError(f"{path!r} is no path below the root of a tree: it must be relative, without . and ..")
    return path


def is_name(name: str) -> bool:
    """Whether a name that a store lists can be one in a folder."""
    return name not in _NO_NAMES and "/" not in name and "\0" not in name


def join(folder: str, name: str) -> str:
    """Return the path of a name in a folder."""
    return f"{folder}/{name}" if folder else name
