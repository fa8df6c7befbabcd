"""MindFormers' records beside its slices: ``meta.json`` of each rank, and ``health_ckpts.json``.

Source: ``CheckpointMonitor`` of MindFormers 2.0 (``mindformers/core/callback/callback.py``), which writes them, and
``mindformers/tools/resume_ckpt.py``, which resumes by them.
"""

from __future__ import annotations

import json
import os

from ms_recover.errors import FormatError
from ms_recover.formats.codec import Count, Fields, decode
from ms_recover.formats.reading import read_small
from ms_recover.model.steps import Step

_MOST_META = 64 << 10
META_MODE = 0o640
"""Mode that MindFormers gives a ``meta.json``."""


class _MetaFields(Fields):
    last_epoch: Count
    last_step: Count
    last_ckpt_file: str


class _HealthFields(Fields):
    ckpt_name: str
    is_health: float = -1


def read_meta(path: str | os.PathLike[str]) -> tuple[Step, str]:
    """Return the step and the name of the slice that a ``meta.json`` names.

    Raises
    ------
    FormatError
        When it is none.
    MissingInputError, StorageError
        When it cannot be read.
    """
    try:
        fields = decode(read_small(path, "a meta.json", _MOST_META), _MetaFields)
    except ValueError as error:
        raise FormatError(f"{os.fspath(path)}: no meta.json of MindFormers: {error}") from None
    return Step(fields.last_epoch, fields.last_step), fields.last_ckpt_file


def encode_meta(step: Step, file: str) -> bytes:
    """Return the bytes of a ``meta.json``, as MindFormers writes them."""
    data = {"last_epoch": step.epoch, "last_step": step.step, "last_ckpt_file": file}
    return json.dumps(data).encode()


def read_unhealthy(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the slices of rank 0 that a ``health_ckpts.json`` calls unhealthy.

    A slice is healthy where ``is_health`` is 0. Of several entries of one name the last counts.

    Raises
    ------
    FormatError
        When it is none.
    MissingInputError, StorageError
        When it cannot be read.
    """
    try:
        entries = decode(read_small(path, "a health_ckpts.json"), list[_HealthFields])
    except ValueError as error:
        raise FormatError(f"{os.fspath(path)}: no health_ckpts.json of MindFormers: {error}") from None
    last = {entry.ckpt_name: entry.is_health for entry in entries}
    return [name for name, health in last.items() if health != 0]
