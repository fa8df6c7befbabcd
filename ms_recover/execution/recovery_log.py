"""What recoveries and verifications leave behind for metrics: a small file, one JSON object a line.

A tree keeps it in its root where a file of that name was put there, for all hosts and users. Otherwise nothing is added
to the tree, and the file lies in the user's state directory, under a name made of the root's path and inode. It serves
figures alone: nothing is decided by it, and what cannot be written or read is left out. It is never longer than
`_MOST_BYTES`: then its older lines become one with their sums.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import xxhash

from ms_recover.file_names import RECOVERY_LOG_NAME
from ms_recover.model.inventory import Inventory
from ms_recover.model.metrics import RECOVERY_PHASES, RECOVERY_RESULTS, RecoveryLog, RecoveryPhase, RecoveryResult
from ms_recover.model.options import PlanOptions
from ms_recover.model.outcome import Outcome
from ms_recover.model.plan import Plan
from ms_recover.model.verification import Verification
from ms_recover.stores.atomic import write_small
from ms_recover.stores.urls import is_url

_log = logging.getLogger(__name__)

_MOST_BYTES = 64 << 10
_LOCK_SECONDS = 2.0
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@contextmanager
def noted(plan: Plan) -> Iterator[Callable[[Outcome], Outcome]]:
    """Note the end of a recovery, and how long it took; yields the function that gets its outcome.

    One without any action, of a tree at a URL, or that was refused before it began, is not noted.
    """
    begun = time.monotonic()
    result: list[RecoveryResult] = []

    def take(outcome: Outcome) -> Outcome:
        result.append("partial" if outcome.partial else "failed" if outcome.exit_code else "ok")
        return outcome

    try:
        yield take
    except KeyboardInterrupt:
        result.append("interrupted")
        raise
    finally:
        if result and (plan.actions or plan.partials):
            spent = time.monotonic() - begun
            _append(plan.root, {"event": "recovery", "result": result[-1], "phases": {"apply": round(spent, 3)}})


def note_phase(root: str, phase: RecoveryPhase, seconds: float) -> None:
    """Note how long a phase of a recovery took."""
    _append(root, {"event": "phase", "phases": {phase: round(seconds, 3)}})


def note_verification(found: Verification, inventory: Inventory, options: PlanOptions) -> None:
    """Note that all slices, or those of the newest step, were read and found sound; nothing where they were not."""
    if found.ok and options.step in (None, *inventory.steps[:1]):
        _append(inventory.root, {"event": "verified"})


def read_recovery_log(root: str) -> RecoveryLog:
    """Return what the log of a tree says; of a tree at a URL, and without one, nothing."""
    if is_url(root):
        return RecoveryLog()
    with suppress(OSError):
        descriptor = os.open(log_path(root), _READ)
        with open(descriptor, "rb") as file:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return _summed(file.read(2 * _MOST_BYTES))
    return RecoveryLog()


def log_path(root: str) -> str:
    """Return where the log of a tree lies, or would lie; FileNotFoundError for a user without a home."""
    shared = os.path.join(root, RECOVERY_LOG_NAME)
    if os.path.lexists(shared):
        return shared
    states = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(states):  # as the specification of base directories says
        states = os.path.expanduser("~/.local/state")
    if not os.path.isabs(states):
        raise FileNotFoundError(f"no {RECOVERY_LOG_NAME} in the root, and the user has no home")
    tree = f"{os.path.realpath(root)}\0{os.stat(root).st_ino}".encode(errors="surrogateescape")
    return os.path.join(states, "ms_recover", f"{xxhash.xxh3_128_hexdigest(tree)}.log")


def _append(root: str, event: Mapping[str, Any]) -> None:
    if is_url(root):
        return
    line = json.dumps({"time": round(time.time(), 3), **event}).encode() + b"\n"
    path = root
    try:
        path = log_path(root)
        if os.path.dirname(path) != root:
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        while not _write(path, line):  # another process has replaced the file by its sums meanwhile
            continue
    except OSError as error:
        _log.info("%s: nothing noted for metrics: %s", path, error)


def _write(path: str, line: bytes) -> bool:
    """Append a line, or fold the file where it is full; return whether the file was still that of the path."""
    descriptor = os.open(path, _APPEND, 0o644)
    with open(descriptor, "r+b", buffering=0) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return True
        _lock(descriptor)
        if os.stat(path, follow_symlinks=False).st_ino != status.st_ino:
            return False
        if os.fstat(descriptor).st_size + len(line) > _MOST_BYTES:
            write_small(path, _folded(file.read(2 * _MOST_BYTES)) + line)
        else:
            os.write(descriptor, line)
    return True


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.01)


def _folded(data: bytes) -> bytes:
    """Return one line with the sums of a log."""
    summed = _summed(data)
    sums = {
        "event": "sums",
        "recoveries": dict(summed.recoveries),
        "phases": dict(summed.durations),
        "verified": summed.verified,
    }
    return json.dumps(sums).encode() + b"\n"


def _summed(data: bytes) -> RecoveryLog:
    counts: Counter[str] = Counter()
    seconds: dict[str, float] = {}
    verified: float | None = None
    for line in data.splitlines():
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):  # one that was cut off
            event = json.loads(line)
            kind = event["event"]
            if kind == "sums":
                counts.update({result: int(count) for result, count in event["recoveries"].items()})
            elif kind == "recovery":
                counts[event["result"]] += 1
            moment = event["time"] if kind == "verified" else event.get("verified")
            verified = float(moment) if moment is not None else verified
            seconds |= {phase: float(spent) for phase, spent in event.get("phases", {}).items()}
    return RecoveryLog(
        recoveries=tuple((result, counts[result]) for result in RECOVERY_RESULTS),
        durations=tuple((phase, seconds[phase]) for phase in RECOVERY_PHASES if phase in seconds),
        verified=verified,
    )
