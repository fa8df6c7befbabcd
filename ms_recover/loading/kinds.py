"""What parameters can be given as, and the packages that it takes."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Literal

from ms_recover.errors import UsageError, install_extra

Kind = Literal["numpy", "mindspore"]
"""An array, or a ``mindspore.Parameter``."""

_HOMES = {"numpy": ("arrays", "loading"), "mindspore": ("tensors", "mindspore")}


def values_module(kind: Kind) -> Any:
    """Return the module that makes such values; a UsageError where its package is not installed."""
    module, extra = _HOMES[kind]
    try:
        return import_module(f"ms_recover.loading.{module}")
    except ImportError as error:
        raise UsageError(
            f"parameters of {kind} take a package that cannot be imported ({error}): {install_extra(extra)}"
        ) from error
