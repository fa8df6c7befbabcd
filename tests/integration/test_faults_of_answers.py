"""Faults of a server's answers are shown as what they are, and the exit code is that of a source."""

import json
import re
import threading
import time

import pytest

from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.fault_proxy import FaultProxy, reply
from tests.support.lying_server import LyingServer
from tests.support.serving import leftovers, serving, split

NAME = "test-1_8.ckpt"
SLOW = ["--timeout", "0.5", "--min-rate", "20000"]
ENVIRONMENT = {"MS_RECOVER_TIMEOUT": "0.5", "MS_RECOVER_MIN_RATE": "20000"}


@pytest.fixture
def nodes(tmp_path):
    """Three ranks that hold the same, without manifests: a node that lost its own, and two nodes."""
    tree = make_tree(
        tmp_path / "whole", data_parallel=3, model_parallel=1, steps=[Step(1, 8)], parameters={"w": 300_000}
    )
    return split(tree, tmp_path, here=(), there=(1,), other=(2,))


def of_slices(change):
    """Return a rewriting of the heads of answers about slices."""

    def rewrite(asked, head):
        return change(asked, head) if b".ckpt HTTP" in asked else head

    return rewrite


FAULTS = {
    "encoded": (lambda asked, head: head + b"\r\nContent-Encoding: gzip", "comes encoded (gzip)"),
    "transfer coding": (
        lambda asked, head: (
            re.sub(rb"(?i)\r\ncontent-length: *\d+", b"", head) + b"\r\nTransfer-Encoding: gzip, chunked"
        ),
        "comes encoded (gzip, chunked)",
    ),
    "length": (
        lambda asked, head: re.sub(rb"(?i)(content-length: *)\d+", rb"\g<1>7", head) if b" 206 " in head else head,
        "its length is not what the header says",
    ),
    "range": (
        lambda asked, head: re.sub(rb"(?i)(content-range: bytes )\d+", rb"\g<1>3", head),
        "other bytes come than were asked for",
    ),
    "another port": (
        lambda asked, head: b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://127.0.0.1:1/x",
        "redirects to http://127.0.0.1:1, and nothing is read from another server",
    ),
    "no place": (
        lambda asked, head: b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: http://[",
        "redirects to no possible place",
    ),
    "refused": (lambda asked, head: b"HTTP/1.1 418 Teapot\r\nContent-Length: 0", "the server refuses (418 Teapot)"),
}


@pytest.mark.parametrize("command", ["scan", "plan", "verify"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_an_answer_is_shown_as_what_it_is(nodes, recover_ckpt, fault, command):
    _, there, _ = nodes
    change, words = FAULTS[fault]
    with serving(there) as [server], FaultProxy(server.port, rewrite=of_slices(change)) as proxy:
        done = recover_ckpt(command, f"http://{proxy.address}", env=ENVIRONMENT)
    assert done.code == 3, done.err
    assert words in done.err
    assert "not a file" not in done.out + done.err


def test_an_answer_that_is_shorter_than_its_header_says_is_named_so(nodes, recover_ckpt):
    _, there, _ = nodes

    def listing(head):
        if b"GET / " not in head:
            return None
        return reply(200, b"[]", Content_Type="application/json").replace(b"Content-Length: 2", b"Content-Length: 9")

    with serving(there) as [server], FaultProxy(server.port, answer=listing) as proxy:
        threading.Timer(1.0, proxy.cut).start()
        done = recover_ckpt("scan", f"http://{proxy.address}", env={"MS_RECOVER_TIMEOUT": "5"})
    assert done.code == 1
    assert "7 bytes less come than the header of the answer says" in done.err


def test_a_byte_now_and_then_holds_no_command_for_ever(nodes, recover_ckpt):
    here, there, _ = nodes
    with serving(there) as [server]:
        for honest in (0, 1):
            with LyingServer(server.port, honest, ours=True, only="a_byte_now_and_then", honest=honest) as slow:
                began = time.monotonic()
                done = recover_ckpt("plan", here, "--from", slow.address, "--world-size", "3", *SLOW)
                assert done.code == 1, (honest, done.err)
                assert time.monotonic() - began < 30
                assert re.search("comes too slowly|cannot be reached|cut off|gone", done.err)


@pytest.mark.parametrize(("lie", "words"), [("a_byte_now_and_then", "comes too slowly"), ("encoded", "comes encoded")])
def test_a_source_whose_inventory_does_not_come_is_left_out_beside_others(nodes, recover_ckpt, lie, words):
    here, there, other = nodes
    with serving(there, other) as [first, second], LyingServer(first.port, 1, ours=True, only=lie) as slow:
        command = ["plan", here, "--from", slow.address, "--from", second.address, "--world-size", "3", "--ranks", "0"]
        done = recover_ckpt(*command, *SLOW, "--json")
    assert done.code == 0, done.err
    assert any(words in one and "left out" in one for one in done.json["warnings"])


def test_a_slow_source_is_left_for_the_next_replica(nodes, recover_ckpt):
    here, there, other = nodes
    save_manifests(there.parent / "whole")
    for node, rank in ((there, 1), (other, 2)):
        name = f"ckpt_dir{rank}/{NAME}.manifest.json"
        (node / name).write_bytes((node.parent / "whole" / name).read_bytes())
    with (
        serving(there, other) as [first, second],
        FaultProxy(first.port, chunk=2000, delay=0.0) as slow,
    ):
        command = ["apply", here, "--from", slow.address, "--from", second.address, "--world-size", "3", "--ranks", "0"]

        def drip(asked, head):
            if b".ckpt HTTP" in asked and b"GET" in asked:
                slow.delay = 0.3
            return head

        slow.rewrite = drip
        done = recover_ckpt(*command, *SLOW, "--json")
    assert done.code == 5, done.err
    assert "comes too slowly" in done.json["results"][0]["dropped"][0]
    assert (here / "ckpt_dir0" / NAME).read_bytes() == (other / "ckpt_dir2" / NAME).read_bytes()
    assert not leftovers(here)


def test_a_source_whose_digests_do_not_come_is_left_for_the_next_replica(nodes, recover_ckpt):
    here, there, other = nodes
    with (
        serving(there, other) as [first, second],
        LyingServer(first.port, 0, ours=True, only="work_without_end", honest=1) as slow,
    ):
        command = ["--from", slow.address, "--from", second.address, "--world-size", "3", "--ranks", "0", *SLOW]
        done = recover_ckpt("plan", here, *command, "--json")
        assert done.code == 0, done.err
        assert "what it has is passed over" in done.err
        (action,) = done.json["actions"]
        assert action["rank"] == 0
        assert second.address.partition("//")[2] in json.dumps(action)


def answers_digests(lines):
    """Return an answer to requests for digests, and to no others."""
    return lambda head: reply(200, lines, X_Ms_Recover="1") if b"POST /v1/digests" in head else None


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (b"[]\n", "invalid answer (it is not a JSON object)"),
        (b'{"path":"\\ud800"}\n', "invalid answer (something that is no text)"),
        (b'{"working":0}\n' * 100_000, "invalid answer (one line about its work follows the other)"),
        (b'{"working":1}\n' * 100_000, "invalid answer (one line about its work follows the other)"),
        (b'{"path":' + b"[" * 100_000, "cut off"),
        (b'{"path":' + b"[" * 100_000 + b"\n", "invalid answer (it has too many entries)"),
    ],
)
def test_answers_about_digests_have_a_bound(nodes, recover_ckpt, lines, words):
    here, there, other = nodes
    with serving(there, other) as [one, two], FaultProxy(one.port, answer=answers_digests(lines)) as liar:
        command = ["plan", here, "--from", liar.address, "--from", two.address, "--world-size", "3"]
        done = recover_ckpt(*command, "--timeout", "1")
    assert done.code == (1 if words == "cut off" else 3)
    assert words in done.err


def test_lines_about_no_work_do_not_count(nodes, recover_ckpt):
    here, there, _ = nodes
    said = []
    with serving(there) as [server]:
        for seed in range(3):  # lines of 0 bytes, lines of 1 byte, empty lines
            with LyingServer(server.port, seed, ours=True, only="work_without_end", honest=1) as slow:
                done = recover_ckpt("plan", here, "--from", slow.address, "--world-size", "3", *SLOW)
            assert done.code in (1, 3), done.err
            assert "comes too slowly" in done.err or "invalid answer" in done.err
            said.append(done.err)
    assert any("comes too slowly" in one for one in said)


def test_lines_about_work_count_for_a_server_that_sends_nothing_else(nodes, recover_ckpt):
    here, there, _ = nodes

    def working(head):
        if b"POST /v1/digests" not in head:
            return
        proxy.delay = 0.4  # of each line, and of the answer of the real server behind them
        return

    with serving(there) as [server], FaultProxy(server.port, answer=working, chunk=40) as proxy:
        done = recover_ckpt("plan", here, "--from", proxy.address, "--world-size", "3", *SLOW)
    assert done.code == 0, done.err
