"""Public names of a package that load on use."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # the name that type checkers know; importing typing would cost 4 ms of every start
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose public names load on use (PEP 562).

    Beside the call a package imports the same names under ``if TYPE_CHECKING:``, so that type checkers see their types,
    and makes the call under ``if not TYPE_CHECKING:``, so that they report names that do not exist.

    Parameters
    ----------
    package : str
        Name of the package, for error messages.
    homes : mapping of str to str
        For each public name the module that defines it.
    """

    def load(name: str) -> Any:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(home), name)

    def names() -> list[str]:
        return sorted({*vars(import_module(package)), *homes})

    return load, names
