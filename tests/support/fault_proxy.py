"""A proxy on loopback between a client and a real server, that breaks connections, delays, corrupts and answers itself.

It passes on bytes of any protocol. With `answer` or `rewrite` it reads HTTP, one request after the other on a
connection.
"""

import re
import socket
import threading
import time
from contextlib import suppress

_CHUNK = 1 << 16
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)


def reply(status, body=b"", **headers):
    """Return an HTTP response for `answer`; a header's name has underscores for dashes."""
    lines = [f"HTTP/1.1 {status} Said By The Proxy", f"Content-Length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + _HEAD_END + body


class FaultProxy:
    """Passes connections on to a server of this host; a context manager. Every fault may be set at any time.

    Parameters
    ----------
    target : int
        The server's port.
    after, call : int, callable
        Call once when so many bytes came back, in all.
    break_at : iterable of int
        Cut the connection at these numbers of bytes that came back in all, each once.
    break_every : int, optional
        Cut every connection when so many bytes came back on it.
    corrupt_at : iterable of int
        Flip a bit of the byte with this number among all that came back, each once.
    delay : float
        Seconds before each chunk that comes back.
    chunk : int
        Bytes that are passed back at a time, at most.
    answer : callable, optional
        Given the head of each request; returns the whole response instead of the server, b"" to hang up, or None.
    rewrite : callable, optional
        Given the head of a request and of the server's response; returns the response's head instead.

    Attributes
    ----------
    hold : str
        How connections are held: "takes" bytes and passes none on, or is "deaf" and takes none. Empty at first.
    port, address
        Where it listens, and ``127.0.0.1:PORT``.
    count, connections : int
        Bytes that came back, and connections that were made.
    requests : list of str
        The first line of each request, where HTTP is read.
    """

    def __init__(
        self,
        target,
        after=None,
        call=lambda: None,
        *,
        break_at=(),
        break_every=None,
        corrupt_at=(),
        delay=0.0,
        chunk=_CHUNK,
        answer=None,
        rewrite=None,
    ):
        self.target, self.after, self.call = target, after, call
        self.break_at, self.break_every, self.corrupt_at = set(break_at), break_every, set(corrupt_at)
        self.delay, self.chunk, self.answer, self.rewrite = delay, chunk, answer, rewrite
        self.hold = ""
        self.count = self.connections = 0
        self.requests = []
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._open = set()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Cut all connections and wait for the threads."""
        self._ending.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive()

    def cut(self):
        """Cut all connections."""
        with self._lock:
            for sock in self._open:
                _shut(sock)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=30)
            except OSError:
                server = None
                if self.answer is None:
                    client.close()
                    continue
            for sock in filter(None, (client, server)):
                sock.settimeout(None)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=_Connection(self, client, server).run)
            self._threads.append(thread)
            thread.start()


class _Connection:
    """One connection of the proxy: this thread has the client's bytes, another those that come back."""

    def __init__(self, proxy, client, server):
        self._proxy, self._client, self._server = proxy, client, server
        self._asked = []  # heads of requests whose responses have not begun
        self._back = 0

    def run(self):
        proxy = self._proxy
        with proxy._lock:
            proxy._open.update(filter(None, (self._client, self._server)))
        if proxy._ending.is_set():
            self._hang_up()
        back = threading.Thread(target=self._guarded, args=(self._bring_back,))
        if self._server is not None:
            back.start()
        self._guarded(self._take_there)
        if self._server is not None:
            back.join()
        with proxy._lock:
            proxy._open.difference_update((self._client, self._server))
        for sock in filter(None, (self._client, self._server)):
            sock.close()

    def _guarded(self, work):
        try:
            work()
        except OSError:
            pass
        finally:
            self._hang_up()

    def _hang_up(self):
        for sock in filter(None, (self._client, self._server)):
            _shut(sock)

    def _read(self, sock, size):
        """Read what is passed on; nothing is while the proxy holds its connections."""
        data = sock.recv(size)
        while self._proxy.hold:
            if self._proxy.hold == "deaf" or not data:
                self._proxy._ending.wait()
                return b""
            data = sock.recv(size)
        return data

    def _take_there(self):
        if self._proxy.answer is None and self._proxy.rewrite is None:
            while data := self._read(self._client, _CHUNK):
                self._server.sendall(data)
            return
        data = b""
        while True:
            while _HEAD_END not in data:
                if not (more := self._client.recv(_CHUNK)):
                    return
                data += more
            head, _, data = data.partition(_HEAD_END)
            body = int(found[1]) if (found := _LENGTH.search(head)) else 0
            while len(data) < body:
                if not (more := self._client.recv(_CHUNK)):
                    return
                data += more
            sent, data = data[:body], data[body:]
            self._proxy.requests.append(head.partition(b"\r\n")[0].decode("latin-1"))
            answer = self._proxy.answer(head) if self._proxy.answer is not None else None
            if answer is None and self._server is None:
                return
            if answer is None:
                self._asked.append(head)
                self._server.sendall(head + _HEAD_END + sent)
            elif answer:
                self._send_back(answer)
            else:
                return

    def _bring_back(self):
        data = b""
        while more := self._read(self._server, self._proxy.chunk):
            data += more
            if self._asked and self._proxy.rewrite is not None:
                if _HEAD_END not in data:
                    continue
                head, _, rest = data.partition(_HEAD_END)
                data = self._proxy.rewrite(self._asked.pop(0), head) + _HEAD_END + rest
            self._send_back(data)
            data = b""
        self._send_back(data)

    def _send_back(self, data):
        proxy, start = self._proxy, 0
        while start < len(data):
            if proxy.delay and proxy._ending.wait(proxy.delay):
                raise ConnectionAbortedError
            piece = bytearray(data[start : start + proxy.chunk])
            start += len(piece)
            cut = self._spoil(piece)
            self._client.sendall(piece)
            if cut:
                raise ConnectionAbortedError

    def _spoil(self, piece):
        """Shorten and change the next bytes by what is wanted; return whether the connection ends behind them."""
        proxy, cut = self._proxy, False
        with proxy._lock:
            breaks = {at for at in proxy.break_at if proxy.count <= at < proxy.count + len(piece)}
            if breaks:
                del piece[min(breaks) - proxy.count :]
                proxy.break_at.discard(min(breaks))
                cut = True
            if proxy.break_every is not None and self._back + len(piece) >= proxy.break_every:
                del piece[max(0, proxy.break_every - self._back) :]
                cut = True
            for at in [at for at in proxy.corrupt_at if proxy.count <= at < proxy.count + len(piece)]:
                piece[at - proxy.count] ^= 0x10
                proxy.corrupt_at.discard(at)
            proxy.count += len(piece)
            self._back += len(piece)
            due = proxy.after is not None and proxy.count >= proxy.after
            if due:
                proxy.after = None
        if due:
            proxy.call()
        return cut


def _shut(sock):
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def eventually(true, seconds=30.0):
    """Wait for something to come true."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)
