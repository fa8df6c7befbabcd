"""The console script: handle signals first, then import the command line.

Importing click and the commands takes a good part of a second on a busy machine. A signal that arrives meanwhile would
end in a traceback of the import system.
"""

from __future__ import annotations

import atexit
import os
import signal

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType


_NUMBERS = (signal.SIGINT, signal.SIGTERM)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``recover-ckpt``, by default with the arguments of the process, and return its exit code."""
    atexit.register(_finish)
    for number in _NUMBERS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _leave)
    from ms_recover.cli.main import main as run

    return run(arguments)


def _leave(number: int, frame: FrameType | None) -> None:
    """End at once: while this handler is installed no command has begun, or the command has ended."""
    try:  # contextlib would have to be imported before the handlers are there
        os.write(2, b"recover-ckpt: interrupted\n")
    finally:
        os._exit(128 + number)  # also where standard error is closed


def _finish() -> None:
    """Let the interpreter end: threads are over and the exit code stands; Python would reset the handlers soon."""
    for number in _NUMBERS:
        signal.signal(number, signal.SIG_IGN)
