"""How many steps of the dataset make up one update of the weights, as the program said when it resumed."""

from __future__ import annotations


class _Process:
    steps = 1


def set_accumulation(steps: int) -> None:
    """Note the number; slices that are saved from now on state it."""
    _Process.steps = steps


def accumulation() -> int:
    """Return the number, 1 where nothing was said."""
    return _Process.steps
