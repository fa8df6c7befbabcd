"""A model over several devices that keeps answering when one fails.

Names load on use, so that importing this package imports neither mindspore nor numpy.
"""

from __future__ import annotations

from ms_recover.lazy import lazy_names

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from ms_recover.errors import DeviceLostError, NoDeviceLeftError, NotSavedError, PartError
    from ms_recover.splitting.events import Event, ForwardReport, Missing, Span
    from ms_recover.splitting.fault_tolerant_splitter import FaultTolerantModelSplitter
    from ms_recover.splitting.nested import Shared
    from ms_recover.splitting.splitter import ModelSplitter

__all__ = [
    "DeviceLostError",
    "Event",
    "FaultTolerantModelSplitter",
    "ForwardReport",
    "Missing",
    "ModelSplitter",
    "NoDeviceLeftError",
    "NotSavedError",
    "PartError",
    "Shared",
    "Span",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "DeviceLostError": "ms_recover.errors",
            "Event": "ms_recover.splitting.events",
            "FaultTolerantModelSplitter": "ms_recover.splitting.fault_tolerant_splitter",
            "ForwardReport": "ms_recover.splitting.events",
            "Missing": "ms_recover.splitting.events",
            "ModelSplitter": "ms_recover.splitting.splitter",
            "NoDeviceLeftError": "ms_recover.errors",
            "NotSavedError": "ms_recover.errors",
            "PartError": "ms_recover.errors",
            "Shared": "ms_recover.splitting.nested",
            "Span": "ms_recover.splitting.events",
        },
    )
