"""What recover-ckpt serve answers to requests that ask for too much, by another name, or in another form."""

import http.client
import json
import os
import socket
import threading
import time

import pytest

from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.ports import free_port
from tests.support.serving import make_certificates, serving

NAME = "test-1_8.ckpt"
FIRST = f"ckpt_dir0/{NAME}"


@pytest.fixture
def tree(tmp_path):
    made = make_tree(
        tmp_path / "tree", data_parallel=2, model_parallel=1, steps=[Step(1, 8)], parameters={"w": 1 << 20}
    )
    save_manifests(made)
    return made


def ask(server, method, path, body=None, **headers):
    """Return status, headers and body of an answer to a request as it stands here."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection._validate_path = lambda path: None
    try:
        connection.putrequest(method, path, skip_accept_encoding=True, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        if body is not None:
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        found = connection.getresponse()
        return found.status, found.headers, found.read()
    finally:
        connection.close()


def wanted(tree, *paths):
    states = [(path, (tree / path).stat()) for path in paths]
    files = [{"path": path, "bytes": state.st_size, "mtime_ns": state.st_mtime_ns} for path, state in states]
    return json.dumps({"version": 1, "files": files}).encode()


def digested(server):
    [line] = [
        line
        for line in ask(server, "GET", "/metrics")[2].decode().splitlines()
        if line.startswith("ms_recover_digested_bytes_total ")
    ]
    return int(float(line.split()[1]))


def test_a_file_that_is_asked_for_twice_in_one_request_is_refused(tree):
    with serving(tree) as [server]:
        status, _, said = ask(server, "POST", "/v1/digests", wanted(tree, *[FIRST] * 200))
        assert (status, f"{FIRST} is asked for twice" in said.decode()) == (400, True)
        assert digested(server) == 0


def test_a_file_is_read_once_in_one_state_however_many_ask(tree):
    size = (tree / FIRST).stat().st_size
    body, answers = wanted(tree, FIRST), []
    with serving(tree) as [server]:

        def post():
            answers.append(ask(server, "POST", "/v1/digests", body))

        threads = [threading.Thread(target=post) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        post()
        assert {status for status, *_ in answers} == {200}
        lines = [[json.loads(line) for line in said.splitlines()] for *_, said in answers]
        digests = {tuple(line["digests"]) for found in lines for line in found if "digests" in line}
        assert len(digests) == 1
        assert len(answers) == 13
        assert all(found[-1] == {"done": True} for found in lines)
        assert digested(server) == size
        os.utime(tree / FIRST, ns=(1, 10**18))
        assert ask(server, "POST", "/v1/digests", wanted(tree, FIRST))[0] == 200
        assert digested(server) == 2 * size


def test_a_damaged_slice_and_the_one_it_is_repaired_with_have_different_tags(tree):
    path = tree / FIRST
    whole, before = path.read_bytes(), path.stat()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    with serving(tree) as [server]:
        tags = []
        for data, modified in ((whole, None), (bytes(damaged), before.st_mtime_ns), (whole, before.st_mtime_ns)):
            time.sleep(0.02)  # the clock of a file system may stand still for a tick
            path.write_bytes(data)
            if modified is not None:
                os.utime(path, ns=(modified, modified))
            tags.append(ask(server, "HEAD", f"/{FIRST}")[1]["ETag"])
        assert len(set(tags)) == 3
        status, headers, _ = ask(server, "GET", f"/{FIRST}", Range="bytes=0-9", If_Match=tags[1])
        assert (status, headers["ETag"]) == (412, tags[2])
        assert ask(server, "GET", f"/{FIRST}", Range="bytes=0-9", If_Match=tags[2])[0] == 206
        assert ask(server, "POST", "/v1/digests", wanted(tree, FIRST))[0] == 200
        known = ask(server, "HEAD", f"/{FIRST}")[1]
        assert known["ETag"].strip('"').endswith(known["X-Ms-Recover-Digest"])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:29610", 200),
        ("127.9.9.9", 200),
        ("localhost:80", 200),
        ("LOCALHOST.", 200),
        ("a.localhost", 200),
        ("[::1]:29610", 200),
        (socket.gethostname(), 200),
        ("attacker.example", 421),
        ("127.0.0.1.attacker.example", 421),
        ("localhost.attacker.example:29610", 421),
        ("10.0.0.1", 421),
        ("", 421),
        ("[", 421),
    ],
)
def test_without_a_token_only_requests_to_this_host_are_answered(tree, server_without_token, host, status):
    found, headers, said = ask(server_without_token, "GET", "/", Host=host)
    assert found == status, said
    assert headers["Server"] == "ms_recover"
    if status == 421:
        assert b"localhost" in said
        assert NAME.encode() not in said


@pytest.fixture(scope="module")
def server_without_token(tmp_path_factory):
    with serving(make_tree(tmp_path_factory.mktemp("served"), data_parallel=1, model_parallel=1)) as [server]:
        yield server


def test_with_a_token_any_host_is_right(tree, tmp_path):
    token = tmp_path / "token"
    token.write_text("a token of sixteen bytes or more")
    token.chmod(0o600)
    with serving(tree, options=["--token-file", token]) as [server]:
        found = ask(server, "GET", "/", Host="node2.example", Authorization=f"Bearer {token.read_text()}")
        assert found[0] == 200


def test_a_target_in_absolute_form_is_answered(server_without_token):
    port = server_without_token.port
    for target in (
        f"http://127.0.0.1:{port}/healthz",
        f"HTTP://localhost/{FIRST}",
        "http://localhost",
        "http://[::1]/",
    ):
        assert ask(server_without_token, "GET", target)[0] == 200, target
    assert ask(server_without_token, "GET", f"http://localhost/{FIRST}", Host="attacker.example")[0] == 200
    for target in ("http://attacker.example/", "http://attacker.example"):
        assert ask(server_without_token, "GET", target)[0] == 421, target
    for target in ("http:/healthz", "ftp://localhost/healthz", "healthz"):
        assert ask(server_without_token, "GET", target)[0] == 400, target


def test_errors_of_the_parser_name_no_other_program(server_without_token):
    for data in (
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: \0\r\n\r\n",
    ):
        with socket.create_connection(("127.0.0.1", server_without_token.port), timeout=30) as client:
            client.sendall(data)
            head = client.makefile("rb").read().partition(b"\r\n\r\n")[0].lower()
        assert b"\r\nserver: ms_recover" in head, data[:40]
        assert b"aiohttp" not in head
        assert b"python" not in head


@pytest.mark.parametrize("with_authority", [False, True])
def test_an_expired_certificate_is_refused_before_anything_is_served(tree, tmp_path, recover_ckpt, with_authority):
    where = tmp_path / "certificates"
    where.mkdir()
    make_certificates(where)
    files = ["--certificate", where / "expired.pem", "--key", where / "expired.key"]
    files += ["--authority", where / "ours.ca"] if with_authority else []
    served = recover_ckpt("serve", tree, "--port", free_port(), *files)
    assert served.code == 2
    assert "expired.pem" in served.err
    assert "has expired" in served.err
    assert ("for clients" in served.err) == with_authority
