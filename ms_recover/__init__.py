"""Recovery of sharded MindSpore checkpoints that one can trust.

Public names load on use; importing the package imports nothing heavy.
"""

from __future__ import annotations

from ms_recover.lazy import lazy_names
from ms_recover.version import __version__ as __version__

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from ms_recover.api import (
        apply,
        audit,
        check,
        complete,
        complete_iteration,
        copy,
        describe,
        explain,
        history,
        inspect,
        measure,
        plan,
        plan_reshard,
        reshard,
        scan,
        seal,
        verify,
    )
    from ms_recover.loading import load_full, load_slice
    from ms_recover.training import SliceCheckpoint, SliceManifests, SliceSaver, recover_train, resume

__all__ = [
    "SliceCheckpoint",
    "SliceManifests",
    "SliceSaver",
    "apply",
    "audit",
    "check",
    "complete",
    "complete_iteration",
    "copy",
    "describe",
    "explain",
    "history",
    "inspect",
    "load_full",
    "load_slice",
    "measure",
    "plan",
    "plan_reshard",
    "recover_train",
    "reshard",
    "resume",
    "scan",
    "seal",
    "verify",
]

_HOMES = {
    **dict.fromkeys(
        ("SliceCheckpoint", "SliceManifests", "SliceSaver", "recover_train", "resume"), "ms_recover.training"
    ),
    **dict.fromkeys(("load_full", "load_slice"), "ms_recover.loading"),
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {name: _HOMES.get(name, "ms_recover.api") for name in __all__},
    )
