"""The experiment of a training: the prefix that the program gave to what saves its slices, without the rank."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from ms_recover.file_names import NETWORK_MARK, TRAINABLE_MARK, last_named_rank
from ms_recover.model.manifest import TrainingRecord


def experiment_of(prefix: str) -> str:
    """Return the experiment that a prefix names: without the ``_rank_N`` by which ranks have prefixes of their own.

    A scan takes the last ``_rank_N`` of a name for the rank, see `ms_recover.scanning.naming`.
    """
    named = last_named_rank(prefix)
    return prefix if named is None else prefix[: named.start()] + prefix[named.end() :] or prefix


def start_of(prefix: str, given: str) -> int | None:
    """Return the N of ``_N`` that was appended to a prefix as it was `given`, 0 for none; None for another prefix."""
    match = re.fullmatch(rf"{re.escape(given)}(?:_(\d{{1,9}}))?", prefix, re.ASCII)
    return int(match[1] or 0) if match is not None else None


def given_prefix(callback: Any) -> str | None:
    """Return the prefix that the program gave to a ``ModelCheckpoint``; None for one that is made for each save.

    Its constructor appends ``_N`` to `_prefix` and keeps the other one as it was given, see
    ``mindspore/train/callback/_checkpoint.py``.
    """
    given = getattr(callback, "_exception_prefix", None)
    return given if isinstance(given, str) and given else None


def with_experiment(record: TrainingRecord, prefix: str, given: str | None) -> TrainingRecord:
    """Return a record with the experiment and the number of the start, by the prefix of a slice that MindSpore saved.

    MindFormers marks slices of weights alone; they are experiments of their own, since they hold no optimizer.
    """
    mark = next((one for one in (NETWORK_MARK, TRAINABLE_MARK) if prefix.endswith(one)), "")
    number = start_of(prefix.removesuffix(mark), given) if given is not None else None
    if given is None or number is None:
        return record
    return replace(record, base_prefix=experiment_of(given) + mark, start_number=number)
