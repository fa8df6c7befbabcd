"""Prefixes of slices: MindSpore appends ``_N`` to that of a rerun, in each directory by itself.

Source: ``_chg_ckpt_file_name_if_same_exist`` in ``mindspore/train/callback/_checkpoint.py`` of MindSpore 2.10.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ms_recover.file_names import NETWORK_MARK, TRAINABLE_MARK

_RERUN = re.compile(
    rf"(?P<base>.*?)(?:_(?P<again>\d{{1,9}}))?(?P<mark>{NETWORK_MARK}|{TRAINABLE_MARK})?\Z", re.ASCII | re.DOTALL
)


@lru_cache(maxsize=256)
def base_of(prefix: str) -> str:
    """Return a prefix without the ``_N`` of a rerun."""
    match = _RERUN.match(prefix)
    return f"{match['base']}{match['mark'] or ''}" if match is not None and match["base"] else prefix


def rerun_of(prefix: str) -> int:
    """Return the ``N`` of a prefix that ends in ``_N``, 0 for another."""
    match = _RERUN.match(prefix)
    return int(match["again"] or 0) if match is not None and match["base"] else 0
