"""Calls to a server: each has a time limit, a break is repeated for a while, and no error shows a secret."""

from __future__ import annotations

import errno
import re
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any, TypeVar

from ms_recover.errors import FormatError, MissingInputError, MsRecoverError, PermissionDeniedError, StorageError
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import Stop, Store, never

_R = TypeVar("_R")

_POLL_SECONDS = 0.2
_FIRST_WAIT, _LONGEST_WAIT = 0.1, 4.0
_USERINFO = re.compile(r"(?<=://)[^/@\s'\"]*@")
_PARAMETER = re.compile(
    r"(?i)((?:x-amz-[a-z-]+|awsaccesskeyid|signature|sig|se|token|key|secret|password|passwd)=)[^&\s'\"]+"
)
_SOUND = (MissingInputError, PermissionDeniedError, FormatError)
_LASTING = (
    AttributeError,
    FileExistsError,
    FileNotFoundError,
    ImportError,
    IsADirectoryError,
    LookupError,
    MsRecoverError,
    NotADirectoryError,
    NotImplementedError,
    PermissionError,
    TypeError,
    ValueError,
)
_LASTING_ERRNOS = (errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def without_secrets(text: str) -> str:
    """Return a message of a library on one line, without user information and signatures of URLs."""
    line = " ".join(text.split())
    return _PARAMETER.sub(r"\1***", _USERINFO.sub("", line))[:400]


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an error of a library carries, None without one."""
    response = getattr(error, "response", None)
    for holder, name in ((response, "status_code"), (response, "status"), (error, "status"), (error, "code")):
        value = getattr(holder, name, None)
        if isinstance(value, int) and 100 <= value < 600:
            return value
    return None


class NetworkStore(Store):
    """A store behind a network.

    A call that fails for a reason that may pass is repeated, after waits that grow. A server that never answered is
    given up after `first_patience` seconds, one that did after `patience` seconds without an answer.

    Attributes
    ----------
    time_limit : float
        Seconds that one call may take: at most some MiB.
    cleared : set of str
        Folders without temporary files of killed writers.
    """

    time_limit = 30.0
    first_patience = 2.0
    patience = 30.0

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._reached = False
        self.cleared: set[str] = set()

    def name(self, path: str) -> str:
        """Return the URL of a path, as messages show it."""
        return f"{self.url}/{path}" if path else self.url

    @abstractmethod
    def begin(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Begin a call; it may be cancelled."""

    def renew(self, error: Exception) -> None:
        """Make ready for a repetition after an error that may pass."""

    def lasts(self, error: Exception) -> bool:
        """Whether the same call would fail again."""
        status = status_of(error)
        if status is not None and 300 <= status < 500 and status not in (408, 425, 429):
            return True
        if isinstance(error, (TimeoutError, ConnectionError)):
            return False
        return isinstance(error, _LASTING) or (isinstance(error, OSError) and error.errno in _LASTING_ERRNOS)

    def explain(self, error: Exception, doing: str, path: str) -> MsRecoverError:
        """Return the error to raise in place of a library's."""
        if isinstance(error, MsRecoverError):
            return error
        name, status = self.name(path), status_of(error)
        if isinstance(error, FileNotFoundError) or status in (404, 410):
            return MissingInputError(f"{doing} {name}: there is no such file or folder; check the URL")
        if isinstance(error, PermissionError) or status in (401, 403):
            return PermissionDeniedError(
                f"{doing} {name}: permission denied ({self._reason(error)}); check the credentials of the environment, "
                "see docs/stores.md"
            )
        if isinstance(error, (IsADirectoryError, NotADirectoryError)):
            return FormatError(f"{doing} {name}: {self._reason(error)}; name a file where one is read")
        advice = "" if self.lasts(error) else "; check that the server runs and can be reached, then repeat the command"
        return StorageError(f"{doing} {name}: {self._reason(error)}{advice}")

    def call(self, doing: str, path: str, call: Callable[..., Any], *arguments: Any, stop: Stop = never) -> Any:
        """Return the result of a call, repeated while its failure may pass.

        Raises
        ------
        MsRecoverError
            The last failure.
        StoppedError
            When `stop` returns True.
        """
        return self.finish(self.begin(call, *arguments), doing, path, call, *arguments, stop=stop)

    def finish(
        self, begun: Future[_R], doing: str, path: str, call: Callable[..., Any], *arguments: Any, stop: Stop = never
    ) -> _R:
        """Do what `call` does for a call that has begun."""
        wait, failing_since = _FIRST_WAIT, None
        while True:
            try:
                result = self._result(begun, stop)
            except StoppedError:
                raise
            except Exception as error:
                now = time.monotonic()
                failing_since = now if failing_since is None else failing_since
                self._reached = self._reached or isinstance(self.explain(error, doing, path), _SOUND)
                if self.lasts(error) or now - failing_since + wait > self._patience():
                    raise self.explain(error, doing, path) from None
                _sleep(wait, stop)
                wait = min(2 * wait, _LONGEST_WAIT)
                try:
                    self.renew(error)
                except Exception as again:
                    begun = Future()
                    begun.set_exception(again)
                else:
                    begun = self.begin(call, *arguments)
            else:
                self._reached = True
                return result

    def first_try(self, begun: Future[_R], doing: str, path: str, *, stop: Stop = never) -> _R | None:
        """Return the result of a call that has begun; None where it failed and may succeed. Errors as for `call`."""
        try:
            result = self._result(begun, stop)
        except StoppedError:
            raise
        except Exception as error:
            if self.lasts(error):
                raise self.explain(error, doing, path) from None
            with suppress(Exception):  # the repetition meets it again
                self.renew(error)
            return None
        self._reached = True
        return result

    def _patience(self) -> float:
        return self.patience if self._reached else self.first_patience

    def _result(self, future: Future[_R], stop: Stop) -> _R:
        deadline = time.monotonic() + self.time_limit
        try:
            while True:
                if stop():
                    raise StoppedError
                try:
                    return future.result(min(_POLL_SECONDS, max(0.0, deadline - time.monotonic())))
                except FutureTimeoutError:
                    if future.done():
                        raise
                    if time.monotonic() >= deadline:
                        raise TimeoutError(f"no answer within {self.time_limit:g} s") from None
        finally:
            future.cancel()

    @staticmethod
    def _reason(error: Exception) -> str:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return without_secrets(text) or type(error).__name__


def _sleep(seconds: float, stop: Stop) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if stop():
            raise StoppedError
        time.sleep(min(left, _POLL_SECONDS))
