"""Copies of a tree lie outside of it, where no scan takes them for its own."""

from __future__ import annotations

import os

from ms_recover.errors import UsageError
from ms_recover.stores.urls import place_of


def refuse_inside(root: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Raise a UsageError when a target, a path or URL, is a tree or lies in it."""
    inside, folder = place_of(root), place_of(target)
    if folder == inside or folder.startswith(f"{inside.rstrip('/')}/"):
        raise UsageError(f"{folder} lies in {inside}, where scans would find it: name a folder outside")
