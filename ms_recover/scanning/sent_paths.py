"""The paths in an inventory that another node sent: they are written to, below the root of this node."""

from __future__ import annotations

from ms_recover.formats.codec import Path, convert

_LONGEST = 4096


def check_below(path: str) -> str:
    """Return a path that stays below the root of a tree.

    Raises
    ------
    ValueError
        When it is absolute, has an empty part, ``.`` or ``..``, a null character, or one that no file can be named by.
    """
    return convert(_writable(path), Path)


def check_beside(path: str, name: str) -> str:
    """Return a path below the root whose last part is a name; a ValueError as for `check_below`, or when it is not."""
    if check_below(path).rpartition("/")[2] != name:
        raise ValueError(f"{path[:_LONGEST]!r} is not called {name}")
    return path


def check_named(path: str) -> str:
    """Return a path below the root, or the absolute one of a file that the node was given and that nobody reads here.

    Raises
    ------
    ValueError
        As for `check_below`.
    """
    return f"/{check_below(path[1:])}" if path.startswith("/") else check_below(path)


def is_name(name: str) -> bool:
    """Whether a text can be the name of a file in a directory."""
    try:
        return check_below(name) == name.rpartition("/")[2]
    except ValueError:
        return False


def _writable(path: str) -> str:
    """Return a path by which a file of this system can be named; a ValueError otherwise."""
    try:
        encoded = path.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise ValueError(f"{path[:_LONGEST]!r} is no text that can name a file") from None
    if len(encoded) >= _LONGEST:
        raise ValueError(f"{path[:_LONGEST]!r} is longer than a path can be")
    return path
