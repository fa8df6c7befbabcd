"""Requests to one web server: connections that are kept, redirects within it, and breaks told apart from answers."""

from __future__ import annotations

import http.client
import logging
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from ms_recover.errors import AnswerError, InputError, MsRecoverError, StorageError, UsageError
from ms_recover.stores.credentials import NOT_TLS, reason
from ms_recover.stores.http_access import Access
from ms_recover.stores.http_body import Body
from ms_recover.stores.http_watch import Watch
from ms_recover.stores.local import StoppedError
from ms_recover.stores.patience import PAUSE_S, BreakError, Limits, Pace, Patience
from ms_recover.stores.store import Stop, never

_log = logging.getLogger(__name__)
_MOST_REDIRECTS = 5
_MOST_IDLE = 16
_CONNECT_S = 3.0
_REDIRECTS = (301, 302, 303, 307, 308)
_BUSY = (408, 425, 429, 500, 502, 503, 504)
_LENGTH = re.compile(r"\d{1,18}\Z", re.ASCII)
_PIECE = 1 << 18
_MOST_INTERIM = 8
_SECONDS = re.compile(r"\d{1,5}\Z", re.ASCII)
_PORTS = {"http": 80, "https": 443}
_NOT_ACCEPTED = (
    "does not accept this node's certificate ({}): it has to be valid today and signed by the authority that "
    "--authority names there; give --certificate and --key here"
)
_SPEAKS_TLS = "speaks TLS, and this node does not: use https://, or give --certificate, --key and --authority here, too"
OURS = "X-Ms-Recover"
"""Header of every answer of recover-ckpt serve, with the version of its interface."""


class _Head(http.client.HTTPResponse):
    """The head of an answer, behind a few interim ones."""

    heads = 0

    def _read_status(self) -> tuple[str, int, str]:
        self.heads += 1
        if self.heads > _MOST_INTERIM:
            raise http.client.HTTPException("one interim answer follows the other")
        found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
        return found


class Response:
    """An answer whose body is not read yet; a context manager."""

    def __init__(self, client: HttpClient, connection: http.client.HTTPConnection, raw: Any, stop: Stop) -> None:
        self._client, self._connection, self._raw, self._stop = client, connection, raw, stop
        self.status: int = raw.status
        self.reason: str = raw.reason
        self.headers: http.client.HTTPMessage = raw.headers
        self._body = Body(raw, client.name)

    def __enter__(self) -> Response:
        return self

    def __exit__(self, *_: object) -> None:
        finished = self._body.left == 0 and self._body.keeps and not self._raw.will_close
        self._raw.close()
        self._client.give_back(self._connection, finished)

    @property
    def length(self) -> int | None:
        """Bytes of the body by its header; None where that names none."""
        found = _LENGTH.match(self.headers.get("Content-Length", ""))
        return int(found[0]) if found is not None else None

    @property
    def encoding(self) -> str | None:
        """How the body is encoded, None where it is not."""
        found = self.headers.get("Content-Encoding", "").strip().lower()
        if found in ("", "identity"):
            found = self.headers.get("Transfer-Encoding", "").strip().lower()
        return None if found in ("", "identity", "chunked") else found[:40]

    def read_into(self, buffer: memoryview) -> int:
        """Read the next bytes of the body, 0 at its end; a BreakError where it ends too early."""
        with self._client.breaks(self._connection, self._stop, None):
            return self._body.read_into(buffer)

    def read(self, most: int) -> bytes:
        """Read as `read_into`, at most so many bytes."""
        data = bytearray(most)
        return bytes(data[: self.read_into(memoryview(data))])

    def read_all(self, most: int, what: str, *, after_spaces: bool = False) -> bytearray:
        """Read the body, `what` in messages.

        Parameters
        ----------
        most : int
            The longest that it may be, in bytes.
        after_spaces : bool
            No rate is asked for while only white space comes: the server works on what it will send.

        Raises
        ------
        BreakError
            Where it ends too early.
        AnswerError
            When it is longer.
        StorageError
            When it comes too slowly.
        """
        found, announced, begun = bytearray(), self.length or 0, not after_spaces
        pace = self._client.pace(what, whole=True)
        buffer = memoryview(bytearray(_PIECE))
        while announced <= most and len(found) <= most:
            count = self.read_into(buffer)
            begun = begun or not buffer[:count].tobytes().isspace()
            pace.came(count, counted=begun)
            if not count:
                return found
            if begun:
                found += buffer[:count]
        raise AnswerError(f"{what}: more than {most} bytes come, where no answer has as many")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a web server is asked for."""

    method: str = "GET"
    path: str
    """Below the base, quoted."""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    accept: tuple[int, ...] = ()
    """Statuses that are no break though they say that the server is busy, or that it leads elsewhere."""
    silence: float | None = None
    """Seconds without a byte, in place of the time limit."""


class HttpClient:
    """One web server as it is asked for files below a URL; threads share it.

    Parameters
    ----------
    base : SplitResult
        The URL, with a path that ends with a slash and without user.
    name : str
        The server in messages.
    limits : Limits

    Attributes
    ----------
    is_ours : bool or None
        Whether recover-ckpt serve answers there; None before the first answer.
    """

    def __init__(
        self,
        base: SplitResult,
        name: str,
        access: Access,
        limits: Limits,
        basic: str | None = None,
    ) -> None:
        self.base, self.name, self.limits, self.timeout = base, name, limits, limits.timeout
        self.is_ours: bool | None = None
        self._gone: StorageError | None = None
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()
        self._watch = Watch()
        self._tls = access.context() if base.scheme == "https" else None
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "ms_recover"}
        if access.token:
            access.check_plain(base.hostname or "", name) if self._tls is None else None
            try:
                self._headers["Authorization"] = f"Bearer {access.token.decode('ascii')}"
            except UnicodeDecodeError:
                raise UsageError("a token for HTTP has no other characters than those of ASCII") from None
        elif basic is not None:
            self._headers["Authorization"] = f"Basic {basic}"

    def close(self) -> None:
        """Close all connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        self._watch.close()

    def patience(self) -> Patience:
        """Return how long this server is waited for."""
        return Patience(self.name, self.timeout)

    def pace(self, what: str, *, whole: bool = False) -> Pace:
        """Return how quickly something has to come from this server."""
        return Pace(what, self.limits, whole=whole)

    def ask(self, request: Request, *, stop: Stop = never) -> Response:
        """Send a request, also after breaks, until there is an answer; see `ask_once`.

        Raises
        ------
        StorageError
            When no answer comes: the server counts as gone from then on.
        StoppedError, MsRecoverError
            As `ask_once`, and when `stop` returns True.
        """
        patience = self.patience()
        while True:
            try:
                return self.ask_once(request, stop=stop)
            except BreakError as error:
                self.wait(patience, error, stop)

    def wait(self, patience: Patience, error: BreakError, stop: Stop) -> None:
        """Wait before the next try, as `Patience.broke`; the last error is kept, and raised at once afterwards."""
        try:
            patience.broke(error, stop)
        except StorageError as gone:
            if not error.met:
                self._gone = gone
            raise

    def ask_once(self, request: Request, *, stop: Stop = never) -> Response:
        """Send a request and return the answer, whatever its status.

        Raises
        ------
        BreakError
            When the connection breaks before the answer, or the server is busy.
        InputError
            When it leads to another server, does not speak HTTP, or does not agree about TLS.
        """
        if self._gone is not None:
            raise self._gone
        target = self.base.path + request.path
        for _ in range(_MOST_REDIRECTS + 1):
            response = self._exchange(target, request, stop)
            if self.is_ours is None:
                self.is_ours = OURS in response.headers
            if response.status in _BUSY and response.status not in request.accept:
                with response:
                    pause = response.headers.get("Retry-After", "")
                    seconds = float(pause) if _SECONDS.match(pause) else PAUSE_S
                    raise BreakError(f"it answers {response.status} {response.reason}"[:200], pause=seconds)
            if response.status not in _REDIRECTS or response.status in request.accept:
                return response
            with response:
                target = self._redirected(target, response.headers.get("Location", ""))
        raise AnswerError(f"{self.name} redirects in a circle: check its configuration")

    def _redirected(self, target: str, location: str) -> str:
        """Return where a redirect leads on this server; an AnswerError when it leads away from it."""
        here = self.base._replace(path=target, query="", fragment="").geturl()
        try:
            there = urlsplit(urljoin(here, location))
            port = there.port
            target = (there.path or "/") + (f"?{there.query}" if there.query else "")
            if not target.isascii() or not target.isprintable() or " " in target or not target.startswith("/"):
                raise ValueError
        except ValueError:
            raise AnswerError(f"{self.name} redirects to no possible place: check its configuration") from None
        ours = (self.base.scheme, self.base.hostname, self.base.port or _PORTS[self.base.scheme])
        if (there.scheme, there.hostname, port or _PORTS.get(there.scheme)) != ours:
            place = f"{there.scheme}://{there.hostname}"[:200] + (f":{port}" if port is not None else "")
            raise AnswerError(
                f"{self.name} redirects to {place}, and nothing is read from another server than the one that was "
                "named: name that one if it is right"
            )
        return target

    def _exchange(self, target: str, request: Request, stop: Stop) -> Response:
        silence = request.silence or self.timeout
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            kept = connection is not None
            if connection is None:
                connection = self._connect(stop)
            try:
                with self.breaks(connection, stop, 3 * silence):
                    if connection.sock is not None:
                        connection.sock.settimeout(silence)
                    connection.request(
                        request.method, target, body=request.body, headers={**self._headers, **request.headers}
                    )
                    raw = connection.getresponse()
            except BreakError:
                connection.close()
                if kept:
                    continue  # it was closed while nobody used it
                raise
            except BaseException:
                connection.close()
                raise
            return Response(self, connection, raw, stop)

    def _connect(self, stop: Stop) -> http.client.HTTPConnection:
        host, limit = self.base.hostname or "", min(self.timeout, _CONNECT_S)
        if stop():
            raise StoppedError
        connection = http.client.HTTPConnection(host, self.base.port, timeout=limit)
        if self._tls is not None:
            connection = http.client.HTTPSConnection(host, self.base.port, timeout=limit, context=self._tls)
        connection.response_class = _Head
        try:
            connection.connect()
        except ssl.SSLCertVerificationError as error:
            raise InputError(
                f"{self.name} shows a certificate that this node does not accept ({reason(error)}): it has to be valid "
                "today and signed by the authority that --authority names here, or by one that the system knows"
            ) from error
        except ssl.SSLError as error:
            self._refuse_tls(error)
        except (TimeoutError, OSError, UnicodeError) as error:
            raise BreakError(_words(error), met=False) from error
        assert connection.sock is not None
        connection.sock.settimeout(self.timeout)
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _refuse_tls(self, error: ssl.SSLError) -> None:
        if error.reason in NOT_TLS or (error.reason or "").startswith("RECORD_LAYER"):
            raise InputError(
                f"{self.name} does not speak TLS: start it with --certificate and --key, or use http:// here"
            ) from error
        if "ALERT" in (error.reason or ""):
            raise InputError(f"{self.name} {_NOT_ACCEPTED.format(reason(error))}") from error
        raise BreakError(f"TLS: {reason(error)}") from error

    def breaks(self, connection: http.client.HTTPConnection, stop: Stop, limit: float | None) -> _Breaks:
        """Return a context in which errors of the connection become a BreakError, and `stop` ends the waiting.

        The answer has to begin within `limit` seconds; without one it has begun, and may take long.
        """
        return _Breaks(self, self._watch.over(connection.sock, stop, limit), stop, answered=limit is None)

    def give_back(self, connection: http.client.HTTPConnection, finished: bool) -> None:
        """Keep a connection whose answer was read to its end, and close any other."""
        with self._lock:
            if finished and len(self._idle) < _MOST_IDLE and self._gone is None:
                self._idle.append(connection)
                return
        connection.close()

    def refused(self, error: Exception, *, answered: bool) -> BreakError | InputError:
        """Return what it means that a connection broke, or that what came is no HTTP."""
        if self.is_ours is None and not isinstance(error, TimeoutError) and (why := self._disagreement()):
            return InputError(f"{self.name} {why}")
        if isinstance(error, http.client.HTTPException) and not isinstance(
            error, http.client.IncompleteRead | http.client.RemoteDisconnected
        ):
            return AnswerError(f"{self.name} sends no valid HTTP ({_words(error)}): is it the right port?")
        return BreakError(_words(error), met=answered and not isinstance(error, TimeoutError))

    def _disagreement(self) -> str | None:
        """Return why this node's TLS settings do not match those of a server that never answered; None otherwise."""
        context = self._tls
        if context is None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is said to it
        try:
            address = (self.base.hostname or "", self.base.port or _PORTS[self.base.scheme])
            with (
                socket.create_connection(address, timeout=_CONNECT_S) as sock,
                context.wrap_socket(sock, server_hostname=self.base.hostname) as secured,
            ):
                # With TLS 1.3 the other end looks at this node's certificate when the handshake is over here.
                if self._tls is not None and not secured.recv(1):
                    return _NOT_ACCEPTED.format("it hangs up")
        except ssl.SSLError as error:
            if "ALERT" not in (error.reason or ""):
                return None
            if self._tls is not None:
                return _NOT_ACCEPTED.format(reason(error))
        except OSError:
            return None
        return _SPEAKS_TLS if self._tls is None else None


class _Breaks:
    """The context of `HttpClient.breaks`."""

    def __init__(self, client: HttpClient, watched: Any, stop: Stop, *, answered: bool) -> None:
        self._client, self._watched, self._stop, self._answered = client, watched, stop, answered

    def __enter__(self) -> None:
        self._watched.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._watched.__exit__()
        if isinstance(error, MsRecoverError):
            return
        if isinstance(error, OSError | http.client.HTTPException | ValueError):
            if self._stop():
                raise StoppedError from error
            raise self._client.refused(error, answered=self._answered) from error


def _words(error: Exception) -> str:
    """Return the reason in words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "no program listens there"
    if isinstance(error, http.client.IncompleteRead) and error.expected:
        return f"{error.expected} bytes less come than the header of the answer says"
    if isinstance(error, http.client.IncompleteRead | ConnectionError | http.client.RemoteDisconnected):
        return "the connection broke"
    return str(getattr(error, "strerror", None) or error)[:200] or type(error).__name__
