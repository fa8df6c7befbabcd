"""The log of a command: on standard error with ``-v``, and in a file with ``--log-file``.

A log must not become damage: nothing is appended to a slice, nor through a link into the tree that is recovered.
"""

from __future__ import annotations

import logging
import os
import shlex
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO

from ms_recover.cli.output import print_error
from ms_recover.errors import UsageError
from ms_recover.model.printable import printable
from ms_recover.reporting.tables import one_line
from ms_recover.system_errors import explained
from ms_recover.version import __version__

_log = logging.getLogger(__name__)
_PACKAGE = "ms_recover"
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK
_LOOKED_AT = 4096
_ENDING = ".log"
_IN_FILE = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"
_ON_STDERR = "%(asctime)s %(levelname)s %(message)s"
_PRINTED = "printed"
"""Attribute of a record whose text the command prints on standard error anyway."""

PRINTED = {_PRINTED: True}
"""The ``extra`` of such a record."""


@contextmanager
def logged(verbose: int, path: str | None, tree: str | None) -> Iterator[None]:
    """Log the package's work: warnings, with `verbose` 1 its steps and with 2 details on standard error; all in `path`.

    Errors are those of `open_log`.
    """
    handlers: list[logging.Handler] = []
    level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    if sys.stderr is not None:
        handlers.append(_handler(_StandardError(), level, _ON_STDERR if verbose else "%(message)s", "%H:%M:%S"))
    if path is not None:
        level = logging.DEBUG
        file = _FileHandler(open_log(path, tree), path)
        handlers.append(_handler(file, level, _IN_FILE, "%Y-%m-%dT%H:%M:%S%z"))
    logger = logging.getLogger(_PACKAGE)
    before = logger.level
    logger.setLevel(level)
    for handler in handlers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(before)
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


class End:
    """The end of a command."""

    code: int | None = None
    """Its exit code, where no error ended it."""


@contextmanager
def logged_end(command: str, words: Sequence[str]) -> Iterator[End]:
    """Log the command line, and how the command ends."""
    began, end = time.monotonic(), End()
    _log.info("%s %s, version %s", command, shlex.join(map(_without_secrets, words)), __version__)
    try:
        yield end
    except BaseException as error:
        _log.error("%s after %.3f s: %s", type(error).__name__, time.monotonic() - began, error, extra=PRINTED)
        raise
    _log.info("ended with %s after %.3f s", end.code, time.monotonic() - began)


def _without_secrets(word: str) -> str:
    from ms_recover.stores.urls import is_url, shown_url

    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return f"{option}{equals}{shown_url(value)}" if is_url(value) else word


def open_log(path: str, tree: str | None) -> IO[str]:
    """Open a log for appending, as one line at a time.

    Parameters
    ----------
    path : str
        A new file, a log or another text, or a device.
    tree : str or None
        The tree or file that the command works on. Below it a log ends in ``.log`` and no link leads to it.

    Raises
    ------
    UsageError
        When something else lies there, or the place is not one for a log.
    MissingInputError, StorageError
        When it cannot be opened.
    """
    real = os.path.realpath(path)
    if tree is not None and _is_below(real, os.path.realpath(tree)):
        _check_in_tree(path, real, tree)
    with explained("opening the log", path):
        descriptor = os.open(real, _FLAGS, 0o666)
    try:
        _check_opened(descriptor, path, real)
        return open(descriptor, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    except BaseException:
        os.close(descriptor)
        raise


def _is_below(path: str, top: str) -> bool:
    return path == top or path.startswith(os.path.join(top, ""))


def _check_in_tree(path: str, real: str, tree: str) -> None:
    own = os.path.abspath(path)
    by_link = os.path.islink(path) or not any(_is_below(own, top(tree)) for top in (os.path.abspath, os.path.realpath))
    if by_link:
        raise UsageError(f"--log-file {path} is a link into {tree} ({real}): name a file outside of it")
    if not real.endswith(_ENDING):
        raise UsageError(f"--log-file {path} lies in {tree}: name a file outside of it, or one that ends in {_ENDING}")


def _check_opened(descriptor: int, path: str, real: str) -> None:
    status = os.fstat(descriptor)
    if stat.S_ISCHR(status.st_mode):
        return
    place = os.readlink(f"/proc/self/fd/{descriptor}")
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or place != real:
        raise UsageError(f"--log-file {path} is no file of one name: name a new file, or an older log")
    beginning = os.pread(descriptor, _LOOKED_AT, 0)
    if b"\0" in beginning or not _is_text(beginning):
        raise UsageError(f"--log-file {path} exists and is no text: name a new file, or an older log")


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start >= _LOOKED_AT - 3  # a character may be cut off there
    return True


def _handler(handler: logging.Handler, level: int, text: str, date: str) -> logging.Handler:
    handler.setLevel(level)
    handler.setFormatter(_Formatter(text, date))
    return handler


class _Formatter(logging.Formatter):
    """One line a record: names from files start no line and steer no terminal."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return one_line(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return "\n".join(map(printable, super().format(record).split("\n")))


class _StandardError(logging.Handler):
    """The standard error of the moment, above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, _PRINTED, False):
            print_error(self.format(record))


class _FileHandler(logging.StreamHandler[IO[str]]):
    """A log that cannot be written any more is no reason to give the work up: it is reported once."""

    def __init__(self, file: IO[str], path: str) -> None:
        super().__init__(file)
        self._path = path
        self._failed = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        error = sys.exc_info()[1]
        if not self._failed and isinstance(error, Exception):
            self._failed = True
            why = error.strerror if isinstance(error, OSError) else error
            print_error(f"recover-ckpt: the log {self._path} cannot be written ({why}): it is incomplete")

    def close(self) -> None:
        with suppress(OSError, ValueError):
            self.stream.close()
        super().close()
