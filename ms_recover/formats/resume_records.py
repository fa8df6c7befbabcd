"""MindFormers' records beside its slices: ``meta.json`` of each rank, and ``health_ckpts.json``.

Source: ``CheckpointMonitor`` of MindFormers 2.0 (``mindformers/core/callback/callback.py``), which writes them, and
``mindformers/tools/resume_ckpt.py``, which resumes by them.
"""

from __future__ import annotations

import json

from ms_recover.errors import FormatError
from ms_recover.formats.codec import Count, Fields, decode
from ms_recover.model.steps import Step

MOST_META = 64 << 10
"""Longest ``meta.json`` that is read, in bytes."""

META_MODE = 0o640
"""Mode that MindFormers gives a ``meta.json``."""


class _MetaFields(Fields):
    last_epoch: Count
    last_step: Count
    last_ckpt_file: str


class _HealthFields(Fields):
    ckpt_name: str
    is_health: float = -1


def decode_meta(data: bytes, where: str) -> tuple[Step, str]:
    """Return the step and the name of the slice that a ``meta.json`` names, `where` in messages.

    Raises
    ------
    FormatError
        When it is none.
    """
    try:
        fields = decode(data, _MetaFields)
    except ValueError as error:
        raise FormatError(f"{where}: no meta.json of MindFormers: {error}") from None
    return Step(fields.last_epoch, fields.last_step), fields.last_ckpt_file


def encode_meta(step: Step, file: str) -> bytes:
    """Return the bytes of a ``meta.json``, as MindFormers writes them."""
    data = {"last_epoch": step.epoch, "last_step": step.step, "last_ckpt_file": file}
    return json.dumps(data).encode()


def decode_unhealthy(data: bytes, where: str) -> list[str]:
    """Return the names of the slices of rank 0 that a ``health_ckpts.json`` calls unhealthy, `where` in messages.

    A slice is healthy where ``is_health`` is 0. Of several entries of one name the last counts.

    Raises
    ------
    FormatError
        When it is none.
    """
    try:
        entries = decode(data, list[_HealthFields])
    except ValueError as error:
        raise FormatError(f"{where}: no health_ckpts.json of MindFormers: {error}") from None
    last = {entry.ckpt_name: entry.is_health for entry in entries}
    return [name for name, health in last.items() if health != 0]
