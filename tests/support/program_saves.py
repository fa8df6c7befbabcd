"""Kills a process within a save: just before a file has its final name."""

from __future__ import annotations

import os
import signal
import sys

from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX

_SUFFIXES = {"commit": (MANIFEST_SUFFIX,), "state": (STATE_SUFFIX,), "slice": (".ckpt", ".safetensors")}

_waiting: list[str] = []


def _kill(event: str, arguments: tuple[object, ...]) -> None:
    if _waiting and event == "os.rename" and str(arguments[1]).endswith(_SUFFIXES[_waiting[0]]):
        os.kill(os.getpid(), signal.SIGKILL)


def kill_before(kind: str) -> None:
    """Kill this process when the next manifest (``commit``), ``state`` or ``slice`` is renamed, from any thread."""
    if not _waiting:
        sys.addaudithook(_kill)
    _waiting[:] = [kind]
