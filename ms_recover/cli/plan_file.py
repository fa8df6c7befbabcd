"""The target of ``-o``: a new file, an older one of its kind, standard output, a device or a pipe; nothing else."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ms_recover.errors import FormatError, MissingInputError, UsageError
from ms_recover.stores.atomic import write_small
from ms_recover.stores.local import read_text
from ms_recover.system_errors import explained

_DESCRIPTOR = re.compile(r"(?:/dev/fd|/proc/self/fd)/(\d{1,9})\Z", re.ASCII)
_STANDARD = {"-": 1, "/dev/stdout": 1, "/dev/stderr": 2}
_KEYS = frozenset(("version", "root", "world_size", "step", "actions", "ranks", "rejected_steps"))


@dataclass(frozen=True, slots=True)
class PlanTarget:
    """Standard output, another open descriptor, a device or named pipe, or a regular file."""

    kind: Literal["stdout", "descriptor", "stream", "file"]
    path: str
    """For a regular file with links resolved."""
    descriptor: int = -1
    """Of the first two kinds."""


def plan_target(path: str) -> PlanTarget:
    """Decide how a plan is written to a path, as `file_target` does."""
    return file_target(path, "plan", _is_plan)


def file_target(path: str, kind: str, is_older: Callable[[str], bool]) -> PlanTarget:
    """Decide how a file of a kind is written to a path, or to standard output for ``-``, before any time goes into it.

    Raises UsageError when anything but an older one, which `is_older` knows by its path, a character device or a pipe
    is there, or a link that leads nowhere, MissingInputError when the directory does not exist, and StorageError when
    the file cannot be read.
    """
    match = _DESCRIPTOR.match(path)
    descriptor = int(match[1]) if match is not None else _STANDARD.get(path)
    if descriptor is not None:
        return PlanTarget("stdout" if descriptor == 1 else "descriptor", path, descriptor)
    target = os.path.realpath(path)
    with explained("writing", path):
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            if os.path.islink(path):
                raise UsageError(f"-o {path} is a link to {target}, which does not exist: name that file") from None
            if not os.path.isdir(os.path.dirname(target)):
                raise MissingInputError(f"-o {path}: the directory does not exist: make it first") from None
            return PlanTarget("file", target)
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return PlanTarget("stream", path)
    if not (stat.S_ISREG(mode) and is_older(target)):
        raise UsageError(
            f"-o {path} exists and is not a {kind}: nothing but an older {kind} is replaced; name another file, "
            "or remove this one"
        )
    return PlanTarget("file", target)


def write_plan(target: PlanTarget, text: str) -> None:
    """Write a plan as `write_file` does."""
    write_file(target, text, plan_target)


def write_file(target: PlanTarget, text: str, again: Callable[[str], PlanTarget]) -> None:
    """Write a text: a file whole or not at all, everything else as it comes.

    Raises UsageError when `again` finds that something else has appeared under the name meanwhile, and StorageError
    when it cannot be written.
    """
    if target.kind == "file":
        write_small(again(target.path).path, text.encode())
        return
    with explained("writing", target.path):
        if target.kind == "stream":
            descriptor = os.open(target.path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
        else:
            descriptor = os.dup(target.descriptor)
        with open(descriptor, "wb") as file:
            file.write(text.encode())


def _is_plan(path: str) -> bool:
    try:
        data = json.loads(read_text(path))
    except (FormatError, ValueError, RecursionError):
        return False
    return isinstance(data, dict) and data.keys() >= _KEYS and isinstance(data["actions"], list)
