"""The error tree; every class owns the exit code that ``recover-ckpt`` ends with.

::

    MsRecoverError                            1  the operation failed (disk full, no permission, ...)
    ├── StorageError          (OSError)       1  reading or writing failed
    │   └── PermissionDeniedError (PermissionError)  the operating system refuses this user
    ├── UsageError            (ValueError)    2  a wrong argument or option
    ├── InputError            (ValueError)    3  an input is missing or malformed
    │   ├── MissingInputError (FileNotFoundError)
    │   ├── FormatError                          a file is not what it should be
    │   └── ContradictionError                   inputs that cannot all be true
    ├── UnrecoverableError    (RuntimeError)  4  some rank's slice cannot be had from anybody
    ├── VerificationError     (RuntimeError)  5  bytes differ from what was promised
    ├── BrokenWorldError   (ConnectionError)  6  a world broke: a peer died, froze, left or erred
    └── DeviceLostError    (RuntimeError)     7  a device of a split model died, froze or erred
        ├── PartError                            a part of a split model raises on these inputs, on every device
        └── NoDeviceLeftError                    no device is left that could compute any of the answer

Each message says what is wrong, where (rank, step, path) and what to do next.
"""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM."""


class MsRecoverError(Exception):
    """Base of every error that ms_recover raises on purpose.

    Attributes
    ----------
    exit_code : int
        What ``recover-ckpt`` exits with when this error ends it.
    """

    exit_code = 1


class StorageError(MsRecoverError, OSError):
    """Reading or writing failed: no space, no permission, a device error."""


class PermissionDeniedError(StorageError, PermissionError):
    """The operating system refuses this user a file or directory; the message names both."""


class UsageError(MsRecoverError, ValueError):
    """An argument or option that cannot be meant."""

    exit_code = 2


class InputError(MsRecoverError, ValueError):
    """An input is missing or malformed."""

    exit_code = 3


class MissingInputError(InputError, FileNotFoundError):
    """A file or directory that was named is not there."""


class FormatError(InputError):
    """A file is not what its name or its place says."""


class ContradictionError(InputError):
    """Inputs that cannot all be true, such as rank lists that disagree."""


class UnrecoverableError(MsRecoverError, RuntimeError):
    """A rank's slice is gone and nobody holds the same bytes."""

    exit_code = 4


class VerificationError(MsRecoverError, RuntimeError):
    """Bytes differ from what was read, planned or promised."""

    exit_code = 5


class BrokenWorldError(MsRecoverError, ConnectionError):
    """A world broke; every operation on it fails with this, operations on other worlds go on.

    Make the world again under the same name: it gets the next epoch.

    Parameters
    ----------
    world : str
    epoch : int
    rank : int
        The rank at fault.
    cause : str
        eof, reset, heartbeat, timeout, protocol, closed or peer_reported.
    words : str
        What happened, in words.
    """

    exit_code = 6

    def __init__(self, world: str, epoch: int, rank: int, cause: str, words: str = "") -> None:
        super().__init__(f"world {world!r} (epoch {epoch}) is broken by rank {rank}: {cause}{words and f' ({words})'}")
        self.world, self.epoch, self.rank, self.cause, self.words = world, epoch, rank, cause, words

    def __reduce__(self) -> tuple[type[BrokenWorldError], tuple[str, int, int, str, str]]:
        return type(self), (self.world, self.epoch, self.rank, self.cause, self.words)


class DeviceLostError(MsRecoverError, RuntimeError):
    """A device of a split model died, froze or erred, and its work is not to be done again.

    Parameters
    ----------
    words : str
        What happened, and what to do next.
    device, part : int, optional
        Which, where it is known.
    cause : str
        eof, reset, heartbeat, timeout, raised, start, or empty.
    """

    exit_code = 7

    def __init__(self, words: str, device: int | None = None, part: int | None = None, cause: str = "") -> None:
        super().__init__(words)
        self.device, self.part, self.cause = device, part, cause


class PartError(DeviceLostError):
    """A part of a split model raises on these inputs wherever it runs: the inputs or the model are at fault."""


class NoDeviceLeftError(DeviceLostError):
    """No device is left that could compute any of the answer."""
