"""The proxy that other tests rely on does what it is asked, and nothing else."""

import http.client
import socket
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.fault_proxy import FaultProxy, eventually, reply

DATA = bytes(range(256)) * 1024


class Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass


@pytest.fixture
def port(tmp_path):
    (tmp_path / "data").write_bytes(DATA)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def fetch(proxy, times=1):
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=10)
    try:
        for _ in range(times):
            connection.request("GET", "/data")
            found = connection.getresponse()
            body = found.read()
        return found.status, body
    finally:
        connection.close()


def test_without_faults_it_passes_everything_on(port):
    calls = []
    with FaultProxy(port, 1000, partial(calls.append, 1)) as proxy:
        assert fetch(proxy, 3) == (200, DATA)
        assert (proxy.connections, calls, proxy.requests) == (1, [1], [])
        assert 3 * len(DATA) < proxy.count < 3 * len(DATA) + 2000


def test_it_breaks_connections_at_the_byte(port):
    with FaultProxy(port, break_at=[70_000]) as proxy:
        with pytest.raises(http.client.IncompleteRead):
            fetch(proxy)
        assert proxy.count == 70_000
        assert fetch(proxy) == (200, DATA)
    with FaultProxy(port, break_every=100_000) as proxy:
        for number in (1, 2):
            with pytest.raises(http.client.IncompleteRead):
                fetch(proxy)
            assert proxy.count == number * 100_000


def test_it_flips_one_bit(port):
    with FaultProxy(port, corrupt_at=[100_000]) as proxy:
        _, body = fetch(proxy)
        assert sum(one != two for one, two in zip(body, DATA, strict=True)) == 1
        assert fetch(proxy) == (200, DATA)


def test_it_answers_itself_and_changes_heads(port):
    answers = [reply(404), None, reply(302, Location="http://elsewhere/")]
    with FaultProxy(port, answer=lambda head: answers.pop(0)) as proxy:
        assert fetch(proxy) == (404, b"")
        assert fetch(proxy, 2) == (302, b"")
        assert proxy.requests == ["GET /data HTTP/1.1"] * 3

    def rewrite(asked, head):
        assert asked.startswith(b"GET /data")
        return head.replace(b"200 OK", b"206 Partial Content")

    with FaultProxy(port, rewrite=rewrite) as proxy:
        assert fetch(proxy, 2) == (206, DATA)


def test_it_is_slow_and_ends_all_the_same(port):
    with FaultProxy(port, delay=30.0) as proxy, socket.create_connection(("127.0.0.1", proxy.port)) as sock:
        sock.sendall(b"GET /data HTTP/1.0\r\n\r\n")
        eventually(lambda: proxy.connections == 1)
