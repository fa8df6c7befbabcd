"""Loading slices and whole parameters into memory, proven on the way.

Names load on use, so that importing this package imports neither numpy nor mindspore.
"""

from __future__ import annotations

from ms_recover.lazy import lazy_names

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from ms_recover.loading.full import load_full
    from ms_recover.loading.full_parameters import FullParameters
    from ms_recover.loading.slices import load_slice

__all__ = ["FullParameters", "load_full", "load_slice"]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "FullParameters": "ms_recover.loading.full_parameters",
            "load_full": "ms_recover.loading.full",
            "load_slice": "ms_recover.loading.slices",
        },
    )
