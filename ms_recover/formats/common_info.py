"""``common.json`` of an iteration, and the tracker beside the iterations.

::

    {"epoch_num": 1, "step_num": 100, "global_step": 100, "loss_scale": 1.0, "global_batch_size": 16,
     "consumed_samples": null, "ckpt_status": null}

indented by 4, without a newline at the end. ``step_num`` is the iteration. MindFormers 2.0.0 does not have
``consumed_samples``. Any other member makes it refuse the file. The tracker, ``latest_checkpointed_iteration.txt``, is
the decimal number of the newest iteration that was saved whole.

Source: ``CommonInfo``, ``iter_finalize_func`` and ``get_latest_iteration_from_tracker`` in
``mindformers/checkpoint/checkpoint.py`` and ``utils.py``, MindFormers 2.0.0 and master of July 2026.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields
from math import isfinite

from ms_recover.bounded_json import are_numbers, decode_object
from ms_recover.errors import FormatError
from ms_recover.formats.reading import read_small
from ms_recover.model.shard_metadata import CommonInfo

COMMON_MEMBERS = tuple(field.name for field in fields(CommonInfo) if field.name != "members")
"""The members that MindFormers writes, in its order."""

MAX_COMMON = 1 << 20
MAX_TRACKER = 1 << 12
"""Longest files that are read, in bytes."""

_MOST = 1 << 10
_NUMBER = re.compile(rb"[ \t\r\n\v\f]*([0-9]{1,18})[ \t\r\n\v\f]*")


def read_common(path: str | os.PathLike[str]) -> CommonInfo:
    """Read a ``common.json``.

    Raises
    ------
    FormatError
        When it is too large, damaged, or a member is neither null nor a number of its kind.
    MissingInputError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    return decode_common(read_small(path, "the common.json of an iteration", MAX_COMMON), os.fspath(path))


def decode_common(data: bytes, where: str) -> CommonInfo:
    """Decode a ``common.json``, `where` in messages; a FormatError as for `read_common`."""
    try:
        found = decode_object(data, brackets=_MOST, commas=_MOST, fractions=True)
        for name in COMMON_MEMBERS:
            value = found.get(name)
            if value is None or are_numbers([value], 1):
                continue
            if name != "loss_scale" or type(value) is not float or not isfinite(value):
                raise FormatError(f"its {name} is {str(value)[:40]!r}, which is not the number that it must be")
        known = {name: found[name] for name in COMMON_MEMBERS if name in found}
    except FormatError as error:
        raise FormatError(f"{where}: unusable common.json: {error}") from None
    return CommonInfo(**known, members=tuple(found))


def encode_common(common: CommonInfo) -> bytes:
    """Return the text of a ``common.json`` as MindFormers writes it, with the members that `common` names."""
    return json.dumps(common.stated, ensure_ascii=False, indent=4).encode()


def read_tracker(path: str | os.PathLike[str]) -> int:
    """Return the iteration that the tracker names.

    Raises
    ------
    FormatError
        When it is empty, as after a crash while it was written, or anything but one number.
    MissingInputError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    return decode_tracker(read_small(path, "the tracker", MAX_TRACKER), os.fspath(path))


def decode_tracker(data: bytes, where: str) -> int:
    """Decode a tracker, `where` in messages; a FormatError as for `read_tracker`."""
    found = _NUMBER.fullmatch(data)
    if not found:
        what = f"{data[:40]!r} is no number of an iteration" if data.strip() else "it is empty"
        raise FormatError(f"{where}: unusable tracker: {what}; MindFormers does not resume from this directory")
    return int(found[1])


def encode_tracker(iteration: int) -> bytes:
    """Return the text of the tracker as MindFormers writes it."""
    return str(iteration).encode()
