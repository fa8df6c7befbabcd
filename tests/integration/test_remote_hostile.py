"""Servers and clients that are not who they should be, or not what they should be."""

import http.client
import json
import os
import resource
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest

from ms_recover.errors import InputError, MissingInputError, UsageError, VerificationError
from ms_recover.model.actions import FileState
from ms_recover.model.steps import Step
from ms_recover.scanning.served import inventory_of
from ms_recover.stores.http_access import Access
from ms_recover.stores.http_client import Request
from ms_recover.stores.http_store import HttpStore
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import never
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.command_line import in_this_process
from tests.support.fault_proxy import FaultProxy, eventually, reply
from tests.support.ports import free_port
from tests.support.serving import Served, leftovers, serving, split

NAME = "test-1_8.ckpt"
TOKEN, OTHER = "a token of sixteen bytes or more", "some other token of such a length"


@pytest.fixture
def nodes(tmp_path):
    """Three ranks that hold the same: a node that lost its own, and two nodes."""
    tree = make_tree(tmp_path / "whole", data_parallel=3, model_parallel=1, steps=[Step(1, 8)])
    save_manifests(tree)
    return split(tree, tmp_path, here=(), there=(1,), other=(2,))


class Liar:
    """Answers requests for a slice by itself; the server does the rest."""

    def __init__(self, slice_):
        self.data, status = slice_.read_bytes(), slice_.stat()
        self.headers = {"X_Ms_Recover": "1", "X_Ms_Recover_Modified_Ns": status.st_mtime_ns, "ETag": '"lie"'}

    def __call__(self, head):
        if not head.startswith(b"GET ") or b".ckpt HTTP" not in head:
            return None
        lines = [line for line in head.split(b"\r\n") if line.lower().startswith(b"range: bytes=")]
        start, end = (int(part) for part in lines[0].partition(b"=")[2].split(b"-"))
        return self.lie(start, end + 1)

    def part(self, start, end, body, size=None, **more):
        size = len(self.data) if size is None else size
        return reply(206, body, Content_Range=f"bytes {start}-{end - 1}/{size}", **self.headers, **more)


class WrongBytes(Liar):
    def lie(self, start, end):
        return self.part(start, end, bytes(end - start))


class Short(Liar):
    def lie(self, start, end):
        return self.part(start, end, self.data[start : end - 10])


class TooLong(Liar):
    def lie(self, start, end):
        return self.part(start, end, self.data[start:end] + b"more")


class Shifted(Liar):
    def lie(self, start, end):
        return self.part(start + 1, end + 1, self.data[start:end])


class OtherSize(Liar):
    def lie(self, start, end):
        return self.part(start, end, self.data[start:end], size=len(self.data) + 5)


class OneBit(Liar):
    def lie(self, start, end):
        data = bytearray(self.data[start:end])
        data[len(data) // 2] ^= 1
        return self.part(start, end, bytes(data))


class Encoded(Liar):
    def lie(self, start, end):
        return self.part(start, end, self.data[start:end], Content_Encoding="gzip")


class Elsewhere(Liar):
    def lie(self, start, end):
        return reply(302, Location="http://127.0.0.2:1/secret", **self.headers)


class Missing(Liar):
    def lie(self, start, end):
        return reply(404, **self.headers)


class Denied(Liar):
    def lie(self, start, end):
        return reply(403, **self.headers)


class Failing(Liar):
    def lie(self, start, end):
        return reply(500, **self.headers)


LIARS = [WrongBytes, Short, TooLong, Shifted, OtherSize, OneBit, Encoded, Elsewhere, Missing, Denied, Failing]


def test_a_source_that_lies_is_dropped_for_another(nodes):
    here, there, other = nodes
    with serving(there, other) as [behind, honest], FaultProxy(behind.port) as liar:
        for lying in LIARS:
            liar.answer = lying(there / "ckpt_dir1" / NAME)
            alone = in_this_process("apply", here, "--from", liar.address, "--world-size", "3", "--timeout", "2")
            assert alone.code in (1, 3, 5), lying
            assert liar.address in alone.err + alone.out
            assert not list(here.rglob("*.ckpt")), lying
            assert not leftovers(here), lying
        for lying in LIARS[:2]:
            liar.answer = lying(there / "ckpt_dir1" / NAME)
            done = in_this_process("apply", here, "--from", liar.address, "--from", honest.address, "--json")
            assert done.code == 5
            assert "rank 1: " in done.json["results"][0]["dropped"][0]
            [path] = here.rglob("*.ckpt")
            assert path.read_bytes() == (other / "ckpt_dir2" / NAME).read_bytes()
            path.unlink()
            path.with_name(f"{NAME}.manifest.json").unlink()


def test_broken_connections_at_every_chunk_and_wrong_bytes_never_give_a_wrong_slice(tmp_path, recover_ckpt):
    whole = make_tree(tmp_path / "whole", data_parallel=2, model_parallel=1, parameters={"w": 1 << 20})
    save_manifests(whole)
    here, there = split(whole, tmp_path, here=(), there=(1,))
    right = (whole / "ckpt_dir0" / NAME).read_bytes()
    command = ["apply", here, "--world-size", "2"]
    with serving(there) as [server]:
        with FaultProxy(server.port, break_every=300_000) as proxy:
            done = recover_ckpt(*command, "--from", proxy.address)
            assert done.code == 0, done.err
            assert done.err.count("resuming at byte") > 10
            assert (here / "ckpt_dir0" / NAME).read_bytes() == right
        (here / "ckpt_dir0" / NAME).unlink()
        with FaultProxy(server.port) as proxy:
            assert recover_ckpt("plan", here, "--world-size", "2", "--from", proxy.address).code == 0
            proxy.corrupt_at = {proxy.count + (2 << 20)}
            wrong = recover_ckpt(*command, "--from", proxy.address)
            assert wrong.code == 5, wrong.err
            assert not (here / "ckpt_dir0" / NAME).exists()
            assert recover_ckpt(*command, "--from", proxy.address).code == 0
    assert (here / "ckpt_dir0" / NAME).read_bytes() == right


def test_a_slice_that_is_replaced_in_the_middle_never_mixes(tmp_path):
    (tmp_path / "ckpt_dir0").mkdir()
    path = tmp_path / "ckpt_dir0" / NAME
    make_tree(tmp_path, data_parallel=1, model_parallel=1, parameters={"w": 8 << 20})

    def replace():
        new = path.with_name("new")
        new.write_bytes(bytes(path.stat().st_size))
        new.rename(path)

    taken = bytearray()
    with serving(tmp_path) as [server], FaultProxy(server.port) as proxy, HttpStore(f"http://{proxy.address}") as store:
        opened = store.open(f"ckpt_dir0/{NAME}")
        proxy.after, proxy.call, proxy.break_at = proxy.count + (4 << 20), replace, {proxy.count + (5 << 20)}
        with pytest.raises(VerificationError, match="chang"):
            opened.read_range(0, opened.size, taken.extend, never)
        with pytest.raises(VerificationError):
            opened.check_unchanged()


def test_each_of_several_connections_for_one_slice_may_find_another_tag(tmp_path):
    """The server knows a digest from now on: the second connection hears of it when the first knows it already."""
    make_tree(tmp_path, data_parallel=1, model_parallel=1, parameters={"w": 1 << 20})
    path, taken, known = f"ckpt_dir0/{NAME}", {0: bytearray(), 1: bytearray()}, threading.Event()
    both, later = threading.Barrier(2), threading.Lock()

    def hold(asked, head):
        if asked.startswith(b"GET ") and b" 412 " in head:
            both.wait(30)
            if not later.acquire(blocking=False):
                assert known.wait(30)
        return head

    def take(half):
        opened.read_range(half * middle, half * middle + middle, taken[half].extend, never)
        known.set()

    with serving(tmp_path) as [server], FaultProxy(server.port) as proxy, HttpStore(f"http://{proxy.address}") as store:
        opened = store.open(path)
        state, middle = store.stat(path).state, opened.size // 2
        opened.read_range(0, 1, lambda _: None, never)
        assert store.digest_there(path, state, never) is not None
        proxy.rewrite = hold
        threads = [threading.Thread(target=take, args=(half,)) for half in taken]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert taken[0] + taken[1] == (tmp_path / path).read_bytes()[: 2 * middle]


@pytest.mark.parametrize("lie", ["huge", "garbage", "escaping", "dumb", "page"])
def test_an_inventory_that_cannot_be_is_refused(nodes, lie, recover_ckpt):
    here, there, _ = nodes

    def inventory(head):
        if b"/v1/inventory" not in head:
            return None
        ours = {"X_Ms_Recover": "1"}
        if lie == "huge":
            return reply(200, **ours).replace(b"Content-Length: 0", b"Content-Length: 1125899906842624")
        if lie == "garbage":
            return reply(200, b'{"version":1,"inventory":{"ranks":[' + b"[" * 5000 + b"]}}", **ours)
        if lie == "escaping":
            return reply(200, escaped, **ours)
        return reply(200, b"\0 not a message", **ours) if lie == "dumb" else reply(200, b"<html>welcome</html>")

    with serving(there) as [server], FaultProxy(server.port, answer=inventory) as liar:
        sent = json.loads(get(server, "/v1/inventory")[2])
        sent["inventory"]["slices"][0]["place"] = ["../ckpt_dir", "/evil-1_8.ckpt"]
        escaped = json.dumps(sent).encode()
        done = recover_ckpt("apply", here, "--from", liar.address)
    assert done.code == 3, done.err
    assert not list(here.iterdir())


def get(server, path, method="GET", **headers):
    """Return status, headers and body of an answer to a request for a path as it stands here."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection._validate_path = lambda path: None
    try:
        connection.putrequest(method, path, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        found = connection.getresponse()
        return found.status, found.headers, found.read()
    finally:
        connection.close()


def test_only_files_that_a_scan_knows_are_read(nodes, tmp_path):
    _, there, other = nodes
    secret = tmp_path / "secret-1_8.ckpt"
    secret.write_bytes(b"secret")
    (there / "ckpt_dir1" / "notes.txt").write_text("secret")
    (there / "ckpt_dir1" / "leads-1_8.ckpt").symlink_to(other / "ckpt_dir2" / NAME)
    (there / "ckpt_dir9").symlink_to(other / "ckpt_dir2")
    os.mkfifo(there / "ckpt_dir1" / "pipe-1_8.ckpt")
    with serving(there) as [server], HttpStore(server.url) as store:
        inventory = inventory_of(store)
        assert [file.path for file in inventory.slices if file.problem is None] == [f"ckpt_dir1/{NAME}"]
        assert "leads out of the tree" in str(inventory.notes)
        assert [one.name for one in store.list("")] == ["ckpt_dir1"]
        names = [one.name for one in store.list("ckpt_dir1")]
        assert names == ["group_info.pb", NAME, f"{NAME}.manifest.json"]
        for path in (
            "/../secret-1_8.ckpt",
            "/ckpt_dir1/../../secret-1_8.ckpt",
            "/%2e%2e/secret-1_8.ckpt",
            "/%2e%2e%2fsecret-1_8.ckpt",
            "/%252e%252e/secret-1_8.ckpt",
            "/..%5csecret-1_8.ckpt",
            f"/{secret}",
            f"//{secret}",
            "/ckpt_dir1/notes.txt",
            "/ckpt_dir1/leads-1_8.ckpt",
            "/ckpt_dir1/pipe-1_8.ckpt",
            f"/ckpt_dir9/{NAME}",
            "/ckpt_dir9/",
            "/ckpt_dir1/%00",
            f"/ckpt_dir1/{NAME}%00.txt",
            f"/ckpt_dir1//{NAME}",
            f"/./ckpt_dir1/{NAME}",
            f"/ckpt_dir1/{NAME}/",
            "/" + "x" * 5000,
        ):
            status, _, body = get(server, path)
            assert status in (400, 404), path
            assert b"secret" not in body.replace(b"secret-1_8", b"")
        state = store.stat(f"ckpt_dir1/{NAME}").state
        changed = FileState(state.bytes, state.mtime_ns + 1)
        with pytest.raises(VerificationError, match="not what the plan saw"):
            store.open(f"ckpt_dir1/{NAME}", changed).read_at(0, 1)
        with pytest.raises(VerificationError, match="not what the plan saw"):
            store.digest_there(f"ckpt_dir1/{NAME}", changed, never)
        # What was a slice when the tree was scanned is a way out now.
        path = there / "ckpt_dir1" / NAME
        path.unlink()
        path.symlink_to(other / "ckpt_dir2" / NAME)
        with pytest.raises(MissingInputError):
            store.open(f"ckpt_dir1/{NAME}", state).read_at(0, 1)
        with pytest.raises(VerificationError):
            store.digest_there(f"ckpt_dir1/{NAME}", state, never)


def test_a_token_lets_in_and_keeps_out(nodes, tmp_path, recover_ckpt):
    here, there, _ = nodes
    token, other = tmp_path / "token", tmp_path / "other token"
    for path, text in ((token, TOKEN), (other, OTHER)):
        path.write_text(text)
        path.chmod(0o600)
    with serving(there, options=["--token-file", token]) as [server]:
        command = ["apply", here, "--from", server.address, "--world-size", "3", "--ranks", "0"]
        for wrong in ([], ["--token-file", other]):
            refused = recover_ckpt(*command, *wrong)
            assert refused.code == 3
            assert "token" in refused.err
            assert TOKEN not in refused.err + refused.out
        assert not list(here.iterdir())
        for path in ("/", "/metrics", "/v1/inventory", f"/ckpt_dir1/{NAME}", "/nowhere"):
            assert get(server, path)[0] == 401
            assert get(server, path, Authorization=f"Basic {TOKEN}")[0] == 401
            assert get(server, path, Authorization="Bearer é")[0] in (400, 401)
        assert get(server, "/healthz")[0] == 200
        assert get(server, "/", Authorization=f"bearer {TOKEN}")[0] == 200
        assert recover_ckpt(*command, env={"MS_RECOVER_TOKEN": TOKEN}).code == 0
    token.chmod(0o644)
    assert recover_ckpt(*command, "--token-file", token).code == 2


def test_off_loopback_a_token_and_tls_are_required(nodes, tmp_path, recover_ckpt):
    here, there, _ = nodes
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    served = recover_ckpt("serve", there, "--bind", "0.0.0.0", "--port", free_port())
    assert served.code == 2
    assert "a token (" in served.err
    assert "TLS (" in served.err
    served = recover_ckpt("serve", there, "--bind", "0.0.0.0", "--port", free_port(), "--token-file", token)
    assert served.code == 2
    assert "TLS (" in served.err
    asked = recover_ckpt("apply", here, "--from", "192.0.2.1:29610", "--timeout", "1")
    assert asked.code == 2
    assert "token" in asked.err
    plain = recover_ckpt("apply", here, "--from", "http://192.0.2.1:29610/", "--token-file", token, "--timeout", "1")
    assert plain.code == 2
    assert "--insecure" in plain.err
    open_server = Served(there, "--bind", "0.0.0.0", "--insecure")
    try:
        assert recover_ckpt("plan", here, "--from", open_server.address, "--world-size", "3").code == 0
    finally:
        code, said = open_server.end()
    assert code == 0
    assert "no a token and TLS" in said or "whoever reaches this port can read the tree" in said


def test_nobody_there_and_other_mistakes_are_told(nodes, tmp_path, recover_ckpt):
    here, there, _ = nodes
    nobody = recover_ckpt("apply", here, "--from", f"127.0.0.1:{free_port()}", "--timeout", "1")
    assert nobody.code == 1
    assert "recover-ckpt serve" in nobody.err
    for wrong in (
        ["apply", here, "--from", "nonsense:port"],
        ["apply", here, "--from", "gopher://127.0.0.1/"],
        ["apply", here, "--ranks", "0"],
        ["plan", here, "--from", "127.0.0.1:1", "-o", tmp_path / "plan.json"],
        ["apply", there / "ckpt_dir1" / NAME, "--from", "127.0.0.1:1"],
    ):
        assert recover_ckpt(*wrong).code == 2, wrong
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy = recover_ckpt("serve", there, "--port", taken.getsockname()[1])
    assert busy.code == 1
    assert "--port" in busy.err
    assert recover_ckpt("serve", tmp_path / "nowhere").code == 3


def test_no_secret_of_a_url_is_shown(nodes, recover_ckpt):
    here, there, _ = nodes
    with serving(there) as [server]:
        secret = f"http://somebody:hushhush@127.0.0.1:{server.port}"
        done = recover_ckpt("plan", here, "--from", secret, "--world-size", "3", "-vv")
        assert done.code == 0, done.err
        assert "hushhush" not in done.out + done.err


def test_strangers_do_not_disturb(nodes):
    _, there, _ = nodes
    with serving(there) as [server], HttpStore(server.url) as store:
        for data in (
            b"",
            b"\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00",
            b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\nzz\r\n",
            b"POST /v1/digests HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
            b"POST /v1/digests HTTP/1.1\r\nContent-Length: 5\r\n\r\n[[[[[",
            b"DELETE / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
            b"GET / HTTP/1.1\r\nX: " + b"y" * 1_000_000 + b"\r\n\r\n",
            b"GET /" + b"x" * 1_000_000 + b" HTTP/1.1\r\n\r\n",
            os.urandom(4096),
        ):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as stranger:
                with suppress(OSError):
                    stranger.sendall(data)
                    stranger.shutdown(socket.SHUT_WR)
                answer = b""
                with suppress(OSError):
                    while len(answer) < 12 and (more := stranger.recv(1 << 16)):
                        answer += more
                assert not answer or int(answer.split()[1]) >= 400, (data[:60], answer[:60])
        assert len(inventory_of(store).slices) == 1


def test_a_request_for_digests_that_cannot_be_is_refused(nodes):
    _, there, _ = nodes
    with serving(there) as [server], HttpStore(server.url) as store:
        for data in (
            b"{",
            b"[]",
            b'{"version":2,"files":[]}',
            b'{"version":1,"files":[{"path":"../x","bytes":1,"mtime_ns":1}]}',
            b"\xff",
        ):
            with store.client.ask(Request(method="POST", path="v1/digests", body=data)) as answer:
                assert answer.status == 400
        assert inventory_of(store).slices  # and goes on


def test_three_thousand_connections_keep_nobody_out(nodes, recover_ckpt):
    here, there, _ = nodes
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4000:
        pytest.skip("too few files may be open")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4000 if hard == resource.RLIM_INFINITY else hard, hard))
    held = []
    with serving(there) as [server]:
        try:
            for number in range(3000):
                held.append(socket.create_connection(("127.0.0.1", server.port), timeout=30))
                if number % 3 == 0:
                    held[-1].sendall(b"GET / HTTP/1.1\r\nX: ")
            done = recover_ckpt("plan", here, "--from", server.address, "--world-size", "3")
            assert done.code == 0, done.err
            metrics = get(server, "/metrics")[2].decode()
            assert "ms_recover_open_connections 5" in metrics
            assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < 700
        finally:
            for sock in held:
                sock.close()
        eventually(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) < 50)


@contextmanager
def served_here(tree, monkeypatch, **limits):
    """Serve from a thread of this process, with other limits."""
    from ms_recover.serving import connections, sending, server

    for name, value in limits.items():
        monkeypatch.setattr(connections if hasattr(connections, name) else sending, name, value)
    port, ready, stopped = free_port(), threading.Event(), []
    thread = threading.Thread(
        target=lambda: stopped.append(
            server.serve(str(tree), port=port, access=Access(), idle=1.0, started=lambda at: ready.set())
        )
    )
    thread.start()
    try:
        assert ready.wait(30)
        yield port
    finally:
        thread.join(60)
        assert stopped == ["idle"]


def test_clients_that_are_too_slow_are_cut_off(tmp_path, monkeypatch):
    tree = make_tree(tmp_path / "tree", data_parallel=1, model_parallel=1, parameters={"w": 16 << 20})

    def cut_off(port, first, more=b"", reads=False):
        """Return after how many seconds the server ends a connection on which this is sent."""
        with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(first)
            began = time.monotonic()
            with suppress(OSError):
                while time.monotonic() - began < 15:
                    sock.settimeout(0.1)
                    with suppress(TimeoutError):
                        if not sock.recv(1) and not reads:
                            break
                    sock.settimeout(20)
                    sock.sendall(more)
            return time.monotonic() - began

    with served_here(tree, monkeypatch, HEAD_S=1.0, IDLE_S=2.0, SEND_S=1.0, _LOOK_S=0.1) as port:
        slow = f"GET /ckpt_dir0/{NAME} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        cases = [(b"",), (b"GET / HT",), (b"GET / HTTP/1.1\r\n", b"X: y\r\n"), (slow,)]
        found = []
        threads = [threading.Thread(target=lambda case=case: found.append(cut_off(port, *case))) for case in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(found) == 4
        assert max(found) < 10
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        kept.request("GET", "/healthz")
        assert kept.getresponse().read() == b"ok\n"
        sock = kept.sock
        with suppress(ConnectionResetError):
            assert sock.recv(1) == b""  # between two requests, too
        kept.close()


def test_a_client_that_goes_ends_the_digests_that_it_wanted(tmp_path, monkeypatch):
    tree = make_tree(tmp_path / "tree", data_parallel=2, model_parallel=1, parameters={"w": 1 << 20})
    from ms_recover.serving import app
    from ms_recover.serving import tree as served

    ended, working = threading.Event(), threading.Event()

    def digests(self, wanted, progress, jobs):
        working.set()
        try:
            while True:
                progress(1)
                time.sleep(0.01)
        finally:
            ended.set()

    monkeypatch.setattr(served.ServedTree, "digests", digests)
    monkeypatch.setattr(app, "_BEAT_S", 0.1)
    with served_here(tree, monkeypatch) as port, HttpStore(f"http://127.0.0.1:{port}", Access()) as store:
        state = store.stat(f"ckpt_dir0/{NAME}").state
        with pytest.raises(StoppedError):
            store.digest_there(f"ckpt_dir0/{NAME}", state, working.is_set)
        assert ended.wait(20)


def test_answers_about_digests_that_cannot_be_are_refused(nodes):
    _, there, _ = nodes
    lines = []
    with (
        serving(there) as [server],
        FaultProxy(
            server.port,
            answer=lambda head: reply(200, b"\n".join(lines), X_Ms_Recover="1") if b"/v1/digests" in head else None,
        ) as liar,
        HttpStore(f"http://{liar.address}", Access(), timeout=2) as store,
    ):
        file = inventory_of(store).slices[0]
        for lie in (
            [b"{"],
            [b"[]"],
            [b'{"done":true}'],
            [b'{"path":"x","digests":[]}'],
            [b'{"path":"%s","digests":["md5:1"]}' % file.path.encode()],
            [b'{"path":"%s","digests":["xxh3_128:%s"]}' % (file.path.encode(), b"0" * 32), b'{"done":true}'],
            [b"[" * 100_000],
        ):
            lines[:] = [*lie, b""]
            with pytest.raises(InputError, match="invalid answer"):
                store.digests([file], lambda count: None)


@pytest.mark.parametrize("missing", ["aiohttp", "prometheus_client"])
def test_without_a_package_it_says_what_to_install(missing, monkeypatch):
    from ms_recover.cli.serve import need_packages

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else name)
    with pytest.raises(UsageError, match=rf"needs {missing}: pip install '\.\[serve\]'"):
        need_packages()
