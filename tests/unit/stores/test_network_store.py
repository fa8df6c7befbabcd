"""Calls to a server: which failures pass, what they are called, and that no error shows a secret."""

import errno
from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from ms_recover.errors import FormatError, MissingInputError, PermissionDeniedError, StorageError
from ms_recover.stores.local import StoppedError
from ms_recover.stores.network_store import NetworkStore, status_of, without_secrets


class Calls(NetworkStore):
    """A store whose calls are made at once, here."""

    open = list = stat = None
    first_patience, patience, time_limit = 0.0, 0.5, 0.3

    def __init__(self):
        super().__init__("s3://bucket/tree")
        self.renewed = []

    def begin(self, call, *arguments):
        future = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def renew(self, error):
        self.renewed.append(str(error))


Calls.__abstractmethods__ = frozenset()


class WithStatusError(Exception):
    """An error of a library that carries the status of an answer."""

    def __init__(self, status, **names):
        super().__init__(f"status {status}")
        self.status = status
        self.__dict__.update(names)


def failing(*errors, result=7):
    """Return a call that fails with these errors, one each time, and then gives the result."""
    left = list(errors)

    def call():
        if left:
            raise left.pop(0)
        return result

    return call


def test_a_call_is_repeated_while_its_failure_may_pass():
    store = Calls()
    assert store.call("reading", "a", failing()) == 7
    assert store.renewed == []
    assert store.call("reading", "a", failing(ConnectionError("one"), TimeoutError("two"))) == 7
    assert store.renewed == ["one", "two"]


def test_a_server_that_never_answered_is_given_up_sooner():
    with pytest.raises(StorageError, match=r"reading s3://bucket/tree/a: off; check that the server runs"):
        Calls().call("reading", "a", failing(ConnectionError("off")))
    for sound in (FileNotFoundError("x"), PermissionError("x"), IsADirectoryError("x")):
        store = Calls()
        with pytest.raises((MissingInputError, PermissionDeniedError, FormatError)):
            store.call("reading", "a", failing(sound))  # which is an answer, too
        assert store.call("reading", "a", failing(ConnectionError("off"))) == 7


def test_a_server_is_given_up_after_its_patience():
    store = Calls()
    store.call("reading", "a", failing())
    with pytest.raises(StorageError, match="still off"):
        store.call("reading", "a", failing(*(100 * [ConnectionError("still off")])))
    assert 2 <= len(store.renewed) <= 3


def test_a_call_that_has_begun_is_not_repeated_by_its_first_try():
    store = Calls()
    assert store.first_try(store.begin(failing()), "reading", "a") == 7
    assert store.first_try(store.begin(failing(ConnectionError("off"))), "reading", "a") is None
    assert store.renewed == ["off"]
    with pytest.raises(MissingInputError, match=r"reading s3://bucket/tree/a: there is no such file"):
        store.first_try(store.begin(failing(FileNotFoundError("x"))), "reading", "a")


def test_a_call_without_an_answer_ends():
    store = Calls()
    store.begin = lambda call, *arguments: Future()
    with pytest.raises(StorageError, match=r"no answer within 0\.3 s"):
        store.call("reading", "", print)
    with pytest.raises(StoppedError):
        store.call("reading", "", print, stop=lambda: True)
    with pytest.raises(StoppedError):
        store.first_try(Future(), "reading", "", stop=lambda: True)


@pytest.mark.parametrize(
    ("error", "lasts", "kind", "words"),
    [
        (FileNotFoundError("x"), True, MissingInputError, "no such file or folder"),
        (WithStatusError(404), True, MissingInputError, "no such file or folder"),
        (WithStatusError(410), True, MissingInputError, "no such file or folder"),
        (WithStatusError(401), True, PermissionDeniedError, r"permission denied \(status 401\)"),
        (WithStatusError(403), True, PermissionDeniedError, r"permission denied \(status 403\)"),
        (PermissionError("no"), True, PermissionDeniedError, r"permission denied \(no\)"),
        (WithStatusError(301), True, StorageError, "status 301$"),
        (WithStatusError(412), True, StorageError, "status 412$"),
        (WithStatusError(408), False, StorageError, "check that the server runs"),
        (WithStatusError(425), False, StorageError, "check that the server runs"),
        (WithStatusError(429), False, StorageError, "check that the server runs"),
        (WithStatusError(500), False, StorageError, "check that the server runs"),
        (WithStatusError(503), False, StorageError, "check that the server runs"),
        (IsADirectoryError("d"), True, FormatError, "name a file where one is read"),
        (NotADirectoryError("d"), True, FormatError, "name a file where one is read"),
        (OSError(errno.ENOSPC, "full"), True, StorageError, "full$"),
        (OSError(errno.EINVAL, "invalid"), True, StorageError, "invalid$"),
        (OSError(errno.EIO, "broken"), False, StorageError, "broken; check"),
        (ConnectionResetError("reset"), False, StorageError, "reset; check"),
        (TimeoutError(), False, StorageError, "TimeoutError; check"),
        (ValueError("odd"), True, StorageError, "odd$"),
        (NotImplementedError(), True, StorageError, "NotImplementedError$"),
        (RuntimeError("odd"), False, StorageError, "odd; check"),
        (FormatError("ours"), True, FormatError, "^ours$"),
    ],
)
def test_what_a_failure_means(error, lasts, kind, words):
    store = Calls()
    assert store.lasts(error) is lasts
    found = store.explain(error, "reading", "a")
    assert type(found) is kind
    with pytest.raises(kind, match=words):
        raise found


def test_the_status_is_found_where_libraries_keep_it():
    assert status_of(WithStatusError(599)) == 599
    assert status_of(WithStatusError(None, code=404)) == 404
    assert status_of(WithStatusError(None, response=SimpleNamespace(status_code=404))) == 404
    assert status_of(WithStatusError(200, response=SimpleNamespace(status=412))) == 412
    for none in (99, 600, 1000, "404", None):
        assert status_of(WithStatusError(none)) is None
    assert status_of(ValueError("404")) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET https://user:pass@host/a", "GET https://host/a"),
        ("https://host/a?X-Amz-Signature=abc&part=1", "https://host/a?X-Amz-Signature=***&part=1"),
        ("two\n lines  and token=abc' more", "two lines and token=***' more"),
        ("x" * 500, "x" * 400),
    ],
)
def test_no_message_shows_a_secret(text, shown):
    assert without_secrets(text) == shown
