"""A web server on loopback that draws its lies at random, beside honest answers that it has from a real one."""

import gzip
import http.client
import json
import re
import socket
import struct
import threading
import time
from contextlib import suppress
from functools import cache
from random import Random

_END = b"\r\n\r\n"
_MOST_SENT = 80 << 20
_LONGEST_S = 90
_PAUSE_S = 0.3


class LyingServer:
    """Answers with what `recover-ckpt serve` at `port` says, or with a lie about it; a context manager.

    Parameters
    ----------
    seed : int
        Of what it draws.
    ours : bool
        Whether it is as recover-ckpt serve, or as another web server that lists folders.
    only : str, optional
        The one lie that it tells, each time.
    share : float
        Part of the answers that are lies.
    honest : int
        Answers before the first lie.

    Attributes
    ----------
    lies : list of str
        What was said, and of what.
    inventory_bytes : int
        Bytes of inventories that were sent.
    """

    def __init__(self, port, seed, *, ours, only=None, share=0.4, honest=0):
        self._behind, self._random, self.ours, self._only, self._share = port, Random(seed), ours, only, share
        self._honest = honest
        self.lies, self.inventory_bytes = [], 0
        self._ending = threading.Event()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self._listener.getsockname()[1]
        self.address, self.url = f"127.0.0.1:{self.port}", f"http://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._ending.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._attend, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _attend(self, client):
        with client, suppress(OSError):
            client.settimeout(1)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = b""
            while not self._ending.is_set():
                while _END not in data:
                    try:
                        more = client.recv(1 << 16)
                    except TimeoutError:
                        if self._ending.is_set():
                            return
                        continue
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(_END)
                length = re.search(rb"\r\ncontent-length:[ \t]*(\d+)", head, re.IGNORECASE)
                while length and len(data) < int(length[1]):
                    data += client.recv(1 << 16)
                body, data = (data[: int(length[1])], data[int(length[1]) :]) if length else (b"", data)
                if not self._answer(client, head, body):
                    return

    def _answer(self, client, head, body):
        """Answer one request; whether the connection goes on."""
        method, target = head.split(b" ", 2)[:2]
        with self._lock:
            lies = (self._only is not None or self._random.random() < self._share) and self._honest <= 0
            self._honest -= 1
            name = (self._only or self._random.choice(sorted(LIES))) if lies else "the truth"
            drawn = Random(self._random.random())
        status, headers, said = self._truth(method.decode(), target.decode("latin-1"), head, body)
        self.lies.append(f"{name}: {method.decode()} {target.decode('latin-1')[:80]}")
        is_inventory, sent, until = b"v1/inventory" in target, 0, time.monotonic() + _LONGEST_S
        answer = (LIES[name] if lies else truth)(drawn, status, dict(headers), said, method == b"HEAD")
        client.settimeout(20)
        try:
            for piece in answer:
                if isinstance(piece, float):
                    self._ending.wait(piece)
                elif piece is RESET:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    return False
                else:
                    client.sendall(piece)
                    sent += len(piece)
                if sent > _MOST_SENT or time.monotonic() > until or self._ending.is_set():
                    return False
        finally:
            self.inventory_bytes += sent if is_inventory else 0
        return not lies

    def _truth(self, method, target, head, body):
        """Return status, headers and body of the server behind."""
        if not self.ours and "v1/" in target:
            return 404, {"Content-Type": "text/html"}, b"<html>no</html>"
        lines = [line.split(b":", 1) for line in head.split(b"\r\n")[1:]]
        kept = {name.decode(): value.strip().decode("latin-1") for name, value in lines if name.lower() != b"host"}
        connection = http.client.HTTPConnection("127.0.0.1", self._behind, timeout=30)
        try:
            connection.request(method, target, body or None, kept)
            found = connection.getresponse()
            headers = {name: value for name, value in found.headers.items() if name.lower() not in _OWN}
            if not self.ours:
                headers = {name: value for name, value in headers.items() if not name.lower().startswith("x-ms")}
            if method == "HEAD":
                headers["Content-Length"] = found.headers.get("Content-Length", "0")
            return found.status, headers, found.read()
        except OSError:
            return 500, {}, b""
        finally:
            connection.close()


RESET = object()
"""Ends a connection with a reset."""

_OWN = ("content-length", "transfer-encoding", "connection", "date")
LIES = {}


def lie(tell):
    """Add a lie: called with what is drawn from, status, headers, body, and whether it is an answer to HEAD."""
    LIES[tell.__name__] = tell
    return tell


def start(status, headers):
    """Return the head of an answer."""
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode("latin-1", "replace") + _END


def truth(drawn, status, headers, body, is_head):
    """Yield the honest answer."""
    if not is_head:
        headers["Content-Length"] = len(body)
    yield start(status, headers)
    if not is_head:
        yield body


def told(body_of):
    """Add a lie that is an answer with another body."""

    def tell(drawn, status, headers, body, is_head):
        yield from truth(drawn, 200 if status >= 300 else status, headers, body_of(drawn, body), is_head)

    tell.__name__ = body_of.__name__
    return lie(tell)


@cache
def repeated(piece, length):
    """Return so many bytes of one piece."""
    return piece * (length // len(piece) + 1)


@lie
def another_length(drawn, status, headers, body, is_head):
    texts = (0, 1, len(body) + 1, max(0, len(body) - 7), 10**15, 10**30, "9" * 6000, -5, "abc", "5, 5", "+3", "")
    headers["Content-Length"] = drawn.choice(texts)
    yield start(status, headers)
    yield b"" if is_head else body


@lie
def no_length(drawn, status, headers, body, is_head):
    yield start(status, {**headers, "Connection": "close"})
    yield b"" if is_head else body


@lie
def flood_without_length(drawn, status, headers, body, is_head):
    yield start(200, headers)
    piece = drawn.choice(
        (b"\n", b" ", b"x", b"[", b'{"name":"a"},', b'["",""],', b'"', b'{"working":0}\n', b"<a href=", b"<!--")
    )
    while True:
        yield repeated(piece, 1 << 16)


@lie
def chunks(drawn, status, headers, body, is_head):
    yield start(status, {**headers, "Transfer-Encoding": "chunked"})
    size = drawn.choice((1, 7, 1000, 1 << 20))
    for place in range(0, min(len(body), 400 * size), size):
        piece = body[place : place + size]
        yield f"{len(piece):x};x={'y' * drawn.choice((0, 10, 3000))}\r\n".encode() + piece + b"\r\n"
    yield b"0\r\n\r\n"


@lie
def nonsense_in_chunks(drawn, status, headers, body, is_head):
    yield start(status, {**headers, "Transfer-Encoding": drawn.choice(("chunked", "gzip, chunked", "CHUNKED", "x"))})
    nonsense = (
        b"-5\r\nabc",
        b"0x10\r\n",
        b"zz\r\n",
        b"F" * 5000,
        b"5\r\nabcdefgh\r\n",
        b"\r\n",
        b"fffffffffffffff\r\nab",
        b"5",
    )
    yield drawn.choice(nonsense)


@lie
def endless_small_chunks(drawn, status, headers, body, is_head):
    yield start(status, {**headers, "Transfer-Encoding": "chunked"})
    while True:
        yield repeated(drawn.choice((b"1\r\nx\r\n", b"1\r\n\n\r\n", b"2;aaaaaaaaaaaaaaaaaaaaaaa\r\n[[\r\n")), 1 << 16)


@lie
def endless_trailers(drawn, status, headers, body, is_head):
    yield start(status, {**headers, "Transfer-Encoding": "chunked"})
    yield b"%x\r\n" % len(body) + body + b"\r\n0\r\n" if body else b"0\r\n"
    while True:
        yield repeated(b"X-Trailer: y\r\n", 1 << 16)


@lie
def interim_answers(drawn, status, headers, body, is_head):
    head = drawn.choice((b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n"))
    for _ in range(drawn.choice((1, 3, 100_000))):
        yield repeated(head, drawn.choice((len(head) - 1, 1 << 16)))
    yield from truth(drawn, status, headers, body, is_head)


@lie
def endless_headers(drawn, status, headers, body, is_head):
    yield start(status, headers)[:-2]
    while True:
        yield drawn.choice((repeated(b"X-A: b\r\n", 1 << 12), b"X-B: " + repeated(b"c", 60_000) + b"\r\n"))


@lie
def header_line_without_end(drawn, status, headers, body, is_head):
    yield b"HTTP/1.1 200 " + repeated(b"x", drawn.choice((100, 1 << 20)))
    while True:
        yield repeated(b"y", 1 << 16)


@lie
def another_status(drawn, status, headers, body, is_head):
    number = drawn.choice(
        (100, 101, 103, 200, 204, 206, 301, 304, 400, 401, 403, 404, 410, 412, 416, 418, 429, 500, 503, 599, 999)
    )
    headers["Retry-After"] = drawn.choice(("0", "1", "99999", "never", "9" * 5000))
    yield from truth(drawn, number, headers, body, is_head)


@lie
def redirect(drawn, status, headers, body, is_head):
    places = (
        "",
        "/",
        "./",
        "/v1/inventory",
        "http://127.0.0.2:1/x",
        "http://127.0.0.1:1/",
        "https://127.0.0.1/",
        "//[",
        "http://[::1",
        "/\xe4\xf6",
        "/a b",
        "/" + "x" * 60_000,
        "ftp://x/",
        "http://a:b@127.0.0.1:99999/",
        "javascript:1",
        "\t",
    )
    headers["Location"] = drawn.choice(places)
    yield from truth(drawn, drawn.choice((301, 302, 303, 307, 308)), headers, b"", is_head)


@lie
def encoded(drawn, status, headers, body, is_head):
    headers["Content-Encoding"] = drawn.choice(("gzip", "br", "deflate", "identity, gzip", "x" * 5000))
    yield from truth(drawn, status, headers, bomb(), is_head)


@cache
def bomb():
    """Return 64 MiB of zeros as gzip has them."""
    return gzip.compress(bytes(64 << 20), 1)


@lie
def another_type(drawn, status, headers, body, is_head):
    headers["Content-Type"] = drawn.choice(
        ("", "text/html", "application/json", "image/png", "x" * 5000, "text/html;charset=utf-7")
    )
    yield from truth(drawn, status, headers, body, is_head)


@lie
def another_range(drawn, status, headers, body, is_head):
    headers["Content-Range"] = drawn.choice(
        ("bytes 0-0/1", "bytes 5-2/9", f"bytes 0-{len(body)}/{10**17}", "x", f"bytes 0-9/{'9' * 5000}")
    )
    yield from truth(drawn, drawn.choice((200, 206)), headers, body, is_head)


@lie
def another_state(drawn, status, headers, body, is_head):
    headers |= {
        "ETag": drawn.choice(('"x"', "W/", "", '"' * 5000)),
        "X-Ms-Recover-Modified-Ns": drawn.choice(("0", "-1", "9" * 19, "x", "9" * 5000)),
    }
    headers["Last-Modified"] = drawn.choice(("x", "Mon, 99 Foo 99999 99:99:99", "Thu, 01 Jan 1970 00:00:00 GMT"))
    headers["X-Ms-Recover-Digest"] = drawn.choice(("xxh3_128:" + "0" * 32, "x" * 1000))
    yield from truth(drawn, status, headers, body, is_head)


@told
def half(drawn, body):
    return body[: drawn.randrange(len(body) + 1)]


@told
def twice(drawn, body):
    return body * drawn.choice((2, 3, 1000 if len(body) < 10_000 else 2))


@told
def flipped(drawn, body):
    changed = bytearray(body or b"x")
    for _ in range(drawn.choice((1, 10, 1000))):
        changed[drawn.randrange(len(changed))] ^= 1 << drawn.randrange(8)
    return bytes(changed)


@told
def noise(drawn, body):
    return drawn.randbytes(drawn.choice((0, 1, 1000, 1 << 20)))


@told
def nested(drawn, body):
    return drawn.choice((b"[", b'{"a":', b'[{"name":', b"<div>", b'{"version":1,"inventory":[')) * drawn.choice(
        (50, 900, 200_000, 5_000_000)
    )


@told
def many_entries(drawn, body):
    count = drawn.choice((1000, 140_000, 2_000_000))
    row = drawn.choice(
        (b'{"name":"%d","type":"file","size":1,"mtime_ns":1}', b"{}", b"[]", b"%d", b'"a%d"', b'{"a":1,"b":2,"%d":3}')
    )
    rows = b",".join(row.replace(b"%d", b"%d" % number) for number in range(count))
    return drawn.choice(
        (b"[%s]", b'{"version":1,"inventory":{"ranks":[%s]}}', b'{"version":1,"inventory":{"notes":[%s]}}')
    ).replace(b"%s", rows)


@told
def many_links(drawn, body):
    piece = drawn.choice(
        (b'<a href="rank_%d/">x</a>\n', b'<a href="', b"<!--", b"<a href=x%d <", b"&#x110000;", b"<script>")
    )
    return b"<html><title>Index of /</title>" + piece * drawn.choice((10, 100_000)) + drawn.choice((b"", b"</html>"))


@told
def huge_numbers(drawn, body):
    number = drawn.choice(
        (b"9" * 30, b"9" * 5_000, b"9" * 2_000_000, b"1e999999", b"NaN", b"-Infinity", b"-0.0", b"1" + b"0" * 17)
    )
    return re.sub(rb"(?<=[:\[,])-?\d+", number, body, count=drawn.choice((1, 3)))


@told
def another_value(drawn, body):
    with suppress(ValueError):
        return json.dumps(_changed(drawn, json.loads(body))).encode()
    return body[::-1]


def _changed(drawn, value):
    """Return a JSON value with one of its members changed."""
    if isinstance(value, dict) and value and drawn.random() < 0.95:
        key = drawn.choice(sorted(value))
        return {**value, key: _changed(drawn, value[key])}
    if isinstance(value, list) and value and drawn.random() < 0.95:
        place = drawn.randrange(len(value))
        return [*value[:place], _changed(drawn, value[place]), *value[place + 1 :]]
    return drawn.choice(
        (
            None,
            True,
            -1,
            0,
            1 << 62,
            1 << 70,
            0.5,
            "",
            "x",
            "\ud800",
            "../..",
            "/etc/x",
            "\0",
            "\x1b[2J",
            "a" * 100_000,
            [],
            {},
        )
    )


@told
def large_inventory(drawn, body):
    try:
        sent = json.loads(body)
        inventory = sent["inventory"]
        [one, *_], [group, *_] = inventory["slices"], inventory["group_files"]
    except (ValueError, TypeError, KeyError):
        return body
    count = drawn.choice((2_000, 100_000, 700_000))
    kind = drawn.choice(("slices", "notes", "ranks", "groups", "manifests", "tables", "halves"))
    if kind == "slices":
        inventory["slices"] = [{**one, "rank": rank} for rank in range(min(count, 150_000))]
    elif kind == "notes":
        inventory["notes"] = [["", ""]] * 10 * count
    elif kind == "ranks":
        inventory["ranks"] = list(range(count))
    elif kind == "groups":
        inventory["group_files"] = [{**group, "info": {**group["info"], "restore_ranks": list(range(count))}}] * 20
    elif kind == "manifests":
        inventory["slices"] = [
            {**one, "rank": rank, "manifest": (one["manifest"] or "") * 5} for rank in range(count // 20)
        ]
    elif kind == "tables":
        inventory["parameters"] = [[["p", "Float32", [], 4]]] * count
    else:
        inventory["notes"] = [["\ud800", ""]] * 10 * count
    return json.dumps(sent, separators=(",", ":")).encode()


@told
def half_characters(drawn, body):
    name = drawn.choice((rb"\ud800", rb"\udcff", rb"\udfff\ud800", b"\xff", b"\xed\xa0\x80"))
    return re.sub(rb'"(?:name|prefix|path)": ?"', lambda found: found[0] + name, body)


@told
def lines_about_work(drawn, body):
    line = drawn.choice(
        (
            b'{"working":0}\n',
            b'{"working":1}\n',
            b'{"working":1152921504606846975}\n',
            b'{"done":true}\n',
            b"\n",
            b"[]\n",
        )
    )
    return line * drawn.choice((10, 1_000_000)) + body


@lie
def a_byte_now_and_then(drawn, status, headers, body, is_head):
    text = b"".join(truth(drawn, status, headers, body or b"x", is_head))
    place = drawn.choice((0, len(text) // 2, text.find(_END) + 4))
    yield text[:place]
    for number in range(place, len(text)):
        yield text[number : number + 1]
        yield drawn.choice((0.05, _PAUSE_S))
    while True:
        yield b"\n"
        yield _PAUSE_S


@lie
def work_without_end(drawn, status, headers, body, is_head):
    yield start(200, headers)
    line = drawn.choice((b"\n", b'{"working":0}\n', b'{"working":1}\n'))
    while True:
        yield line
        yield drawn.choice((0.05, _PAUSE_S))


@lie
def silence(drawn, status, headers, body, is_head):
    text = b"".join(truth(drawn, status, headers, body, is_head))
    yield text[: drawn.choice((0, 5, len(text) // 2, len(text) - 1))]
    while True:
        yield 1.0


@lie
def a_broken_connection(drawn, status, headers, body, is_head):
    text = b"".join(truth(drawn, status, headers, body, is_head))
    yield text[: drawn.randrange(len(text))]
    yield drawn.choice((RESET, 0.0))


@lie
def no_http(drawn, status, headers, body, is_head):
    yield drawn.choice(
        (
            b"SSH-2.0-x\r\n",
            b"HTTP/9.9 200 x\r\n\r\n",
            b"\0" * 1000,
            b"\x16\x03\x01\x02\x00",
            b"HTTP/1.1 abc\r\n\r\n",
            b"HTTP/1.1 200",
        )
    )
