"""The error tree; every class owns the exit code of ``recover-ckpt``.

::

    MsRecoverError                            1  the operation failed
    ├── StorageError          (OSError)       1  reading or writing failed
    │   ├── PermissionDeniedError (PermissionError)  the operating system refuses this user
    │   ├── SlowSourceError                      a server sends less than it has to
    │   └── NotSavedError                        a step of a split model is done, and its slices were not saved
    ├── StartError            (OSError)       1  this host cannot start a process that is needed
    ├── UsageError            (ValueError)    2  invalid argument or option
    ├── InputError            (ValueError)    3  missing or malformed input
    │   ├── MissingInputError (FileNotFoundError)
    │   ├── FormatError                          malformed file
    │   ├── AnswerError                          a server's answer is not one that can be right
    │   └── ContradictionError                   inputs contradict each other
    ├── UnrecoverableError    (RuntimeError)  4  a rank's slice has no source
    │   └── OlderStepError                       only an older step is recoverable, which is refused
    ├── VerificationError     (RuntimeError)  5  digest mismatch
    ├── BrokenWorldError   (ConnectionError)  6  a world broke: a peer died, froze, left or failed
    └── DeviceLostError    (RuntimeError)     7  a device of a split model died, froze or failed
        ├── PartError                            a part of a split model fails on these inputs
        └── NoDeviceLeftError                    no device is left

Each message names the fault, its place (rank, step, path) and the next thing to do.
"""

from __future__ import annotations

TYPE_CHECKING = False  # the name that type checkers know, without the cost of importing typing
if TYPE_CHECKING:
    from typing import Any

INTERRUPTED = 130
"""Exit code after SIGINT (Ctrl-C): 128 + 2."""

TERMINATED = 143
"""Exit code after SIGTERM: 128 + 15."""


class MsRecoverError(Exception):
    """Base of the errors that ms_recover raises deliberately.

    Attributes
    ----------
    exit_code : int
        Exit code of ``recover-ckpt`` when this error ends it.
    """

    exit_code = 1


class StorageError(MsRecoverError, OSError):
    """Reading or writing failed: no space, permission denied, a device error."""

    exit_code = 1


class PermissionDeniedError(StorageError, PermissionError):
    """The operating system refuses this user a file or directory; the message names both."""


class SlowSourceError(StorageError):
    """A server that is there sends less than it has to; another source may do."""

    exit_code = 1


class NotSavedError(StorageError):
    """A trained step of a split model is done and counts, and its slices were not saved, or its snapshot not taken.

    Parameters
    ----------
    words : str
        The reason, and the next thing to do.
    step : int
        The step that counts: go on with the batch behind it.
    saved : int
        The newest step of which the slices of every part are whole.
    loss : StepLoss, optional
        What `train_step` would have returned; None where `save` was called.
    """

    exit_code = 1

    def __init__(self, words: str, step: int, saved: int, loss: Any = None) -> None:
        super().__init__(words)
        self.step, self.saved, self.loss = step, saved, loss

    def __reduce__(self) -> tuple[type[NotSavedError], tuple[str, int, int, Any]]:
        return type(self), (str(self), self.step, self.saved, self.loss)


class StartError(MsRecoverError, OSError):
    """A process that is needed cannot be started on this host, such as for want of processes or open files."""

    exit_code = 1


class UsageError(MsRecoverError, ValueError):
    """An invalid argument or option."""

    exit_code = 2


class InputError(MsRecoverError, ValueError):
    """A missing or malformed input."""

    exit_code = 3


class MissingInputError(InputError, FileNotFoundError):
    """A named file or directory does not exist."""

    exit_code = 3


class FormatError(InputError):
    """A malformed file, or one of another kind than its name or place says."""

    exit_code = 3


class AnswerError(InputError):
    """An answer of a server that cannot be right, whatever was asked: the fault is the server's, not that of a file."""

    exit_code = 3


class ContradictionError(InputError):
    """Inputs that contradict each other, such as two rank lists."""

    exit_code = 3


class UnrecoverableError(MsRecoverError, RuntimeError):
    """A rank's slice is lost and has no source."""

    exit_code = 4


class OlderStepError(UnrecoverableError):
    """Only an older step is recoverable, and going back to it is refused.

    Parameters
    ----------
    words : str
        The steps and the reason.
    plan : Plan
        The refused plan; to go back all the same, apply it.
    explanation : Explanation, optional
        Of one rank, where it was asked for.
    """

    exit_code = 4

    def __init__(self, words: str, plan: Any, explanation: Any = None) -> None:
        super().__init__(words)
        self.plan, self.explanation = plan, explanation

    def __reduce__(self) -> tuple[type[OlderStepError], tuple[str, Any, Any]]:
        return type(self), (str(self), self.plan, self.explanation)


class VerificationError(MsRecoverError, RuntimeError):
    """Bytes do not match their manifest, their plan or their source."""

    exit_code = 5


class BrokenWorldError(MsRecoverError, ConnectionError):
    """A world broke: every operation on it fails with this error; other worlds are not affected.

    Initialize the world again under the same name: it gets the next epoch.

    Parameters
    ----------
    world : str
    epoch : int
    rank : int
        The rank at fault.
    cause : str
        eof, reset, heartbeat, timeout, protocol, closed, peer_reported or cut.
    words : str
        Description of the fault.
    """

    exit_code = 6

    def __init__(self, world: str, epoch: int, rank: int, cause: str, words: str = "") -> None:
        super().__init__(f"world {world!r} (epoch {epoch}) is broken by rank {rank}: {cause}{words and f' ({words})'}")
        self.world, self.epoch, self.rank, self.cause, self.words = world, epoch, rank, cause, words

    def __reduce__(self) -> tuple[type[BrokenWorldError], tuple[str, int, int, str, str]]:
        return type(self), (self.world, self.epoch, self.rank, self.cause, self.words)


class DeviceLostError(MsRecoverError, RuntimeError):
    """A device of a split model died, froze or failed, and its work is not repeated.

    Parameters
    ----------
    words : str
        Description of the fault, and the next thing to do.
    device, part : int, optional
        Their numbers, where they are known.
    cause : str
        eof, reset, heartbeat, cut, timeout, raised, start, or empty.
    """

    exit_code = 7

    def __init__(self, words: str, device: int | None = None, part: int | None = None, cause: str = "") -> None:
        super().__init__(words)
        self.device, self.part, self.cause = device, part, cause


class PartError(DeviceLostError):
    """A part of a split model raises on these inputs, or they end every process: they or the model are at fault."""

    exit_code = 7


class NoDeviceLeftError(DeviceLostError):
    """No device is left to compute any part of the answer."""

    exit_code = 7


def install_extra(name: str) -> str:
    """Return how an extra of setup.cfg is installed; the repository has ms_recover, and no package index."""
    return f"pip install '.[{name}]' in a clone of ms_recover"
