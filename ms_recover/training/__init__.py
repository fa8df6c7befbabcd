"""The MindSpore side: saving each rank's slice, and resuming from slices.

Names load on use, so that importing this package does not import mindspore.
"""

from __future__ import annotations

from ms_recover.lazy import lazy_names

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from ms_recover.training.layouts import cut, write_strategy
    from ms_recover.training.recover import Resumption, recover_train
    from ms_recover.training.slice_checkpoint import SliceCheckpoint, Stall
    from ms_recover.training.slice_manifests import SliceManifests

__all__ = ["Resumption", "SliceCheckpoint", "SliceManifests", "Stall", "cut", "recover_train", "write_strategy"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Resumption": "ms_recover.training.recover",
            "SliceCheckpoint": "ms_recover.training.slice_checkpoint",
            "SliceManifests": "ms_recover.training.slice_manifests",
            "Stall": "ms_recover.training.slice_checkpoint",
            "cut": "ms_recover.training.layouts",
            "recover_train": "ms_recover.training.recover",
            "write_strategy": "ms_recover.training.layouts",
        },
    )
