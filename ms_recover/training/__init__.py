"""The MindSpore side: saving each rank's slice, and resuming from slices.

Names load on use, so that importing this package does not import mindspore.
"""

from __future__ import annotations

from ms_recover.lazy import lazy_names

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from ms_recover.training.deciding.stall import Stall
    from ms_recover.training.layouts import cut, write_strategy
    from ms_recover.training.recover import recover_train
    from ms_recover.training.resuming import Resumption, resume
    from ms_recover.training.slice_checkpoint import SliceCheckpoint
    from ms_recover.training.slice_manifests import SliceManifests
    from ms_recover.training.slice_saver import SliceSaver

__all__ = [
    "Resumption",
    "SliceCheckpoint",
    "SliceManifests",
    "SliceSaver",
    "Stall",
    "cut",
    "recover_train",
    "resume",
    "write_strategy",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "Resumption": "ms_recover.training.resuming",
            "SliceCheckpoint": "ms_recover.training.slice_checkpoint",
            "SliceManifests": "ms_recover.training.slice_manifests",
            "SliceSaver": "ms_recover.training.slice_saver",
            "Stall": "ms_recover.training.deciding.stall",
            "cut": "ms_recover.training.layouts",
            "recover_train": "ms_recover.training.recover",
            "resume": "ms_recover.training.resuming",
            "write_strategy": "ms_recover.training.layouts",
        },
    )
