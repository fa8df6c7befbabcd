"""Servers and clients that are not who they should be, or not what they should be."""

import asyncio
import os
import socket
import threading
import time
from contextlib import contextmanager, suppress
from functools import partial

import numpy as np
import pytest

from ms_recover.cli.peers import need_numpy
from ms_recover.errors import InputError, UsageError, VerificationError
from ms_recover.model.actions import FileState
from ms_recover.model.options import ScanOptions
from ms_recover.model.steps import Step
from ms_recover.remote.client import Peers
from ms_recover.remote.messages import SliceRequest, say_inventory, say_mode
from ms_recover.remote.peer import Address
from ms_recover.remote.served import ServedTree
from ms_recover.remote.server import Server
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.worlds.security import Security
from ms_recover.worlds.transfer import TRANSFER_WORLD, PayloadKind
from tests.support.serving import free_port, leftovers, serving, split

NAME = "test-1_8.ckpt"
TOKEN, OTHER = "a token of sixteen bytes or more", "some other token of such a length"


@pytest.fixture
def nodes(tmp_path):
    """Three ranks that hold the same: a node that lost its own, and two nodes."""
    tree = make_tree(tmp_path / "whole", data_parallel=3, model_parallel=1, steps=[Step(1, 8)])
    save_manifests(tree)
    return split(tree, tmp_path, here=(), there=(1,), other=(2,))


@contextmanager
def running(server_class, tree, token=b""):
    """Run a server of some class in a thread."""
    port, ready, loop = free_port(), threading.Event(), asyncio.new_event_loop()
    server = server_class(ServedTree(str(tree), ScanOptions()), "127.0.0.1", port, Security(token), 1)
    task = loop.create_task(server.run(None, lambda text, at: ready.set()))

    def run():
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(30)
        yield f"127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(60)
        assert not thread.is_alive()


class WrongBytes(Server):
    async def _give(self, channel, wanted):
        await channel.send(PayloadKind.CHUNK, b"\0" * wanted.state.bytes)
        await channel.send_message(say_mode(0o400))


class Short(Server):
    async def _give(self, channel, wanted):
        await channel.send(PayloadKind.CHUNK, b"\0" * 10)
        await channel.send_message(say_mode(0o400))


class TooLong(Server):
    async def _give(self, channel, wanted):
        await channel.send(PayloadKind.CHUNK, b"\0" * (wanted.state.bytes + 1))


class WrongDigest(Server):
    async def _give(self, channel, wanted):
        communicator = channel._communicator
        await communicator.send(np.array([PayloadKind.CHUNK, 8, 1, 2], np.uint64), 1, world=TRANSFER_WORLD)
        await communicator.send(np.zeros(8, np.uint8), 1, world=TRANSFER_WORLD)


@pytest.mark.parametrize("lying", [WrongBytes, Short, TooLong, WrongDigest])
def test_a_source_that_lies_is_dropped_for_another(nodes, lying, recover_ckpt):
    here, there, other = nodes
    with running(lying, there) as liar, serving(other) as [honest]:
        alone = recover_ckpt("apply", here, "--from", liar, "--world-size", "3")
        assert alone.code in (3, 5)
        assert liar in alone.err + alone.out
        assert not list(here.rglob("*.ckpt"))
        done = recover_ckpt("apply", here, "--from", liar, "--from", honest.address, "--json")
        assert done.code == 5
        assert "rank 1: " in done.json["results"][0]["dropped"][0]
    assert (here / "ckpt_dir0" / NAME).read_bytes() == (other / "ckpt_dir2" / NAME).read_bytes()
    assert not leftovers(here)


class Huge(Server):
    async def _answer(self, channel, request):
        await channel._communicator.send(
            np.array([PayloadKind.MESSAGE, 1 << 50, 0, 0], np.uint64), 1, world=TRANSFER_WORLD
        )


class Garbage(Server):
    async def _answer(self, channel, request):
        await channel.send_message(b'{"version":1,"inventory":{"ranks":[' + b"[" * 5000 + b"]}}")


class Escaping(Server):
    async def _answer(self, channel, request):
        await channel.send_message(say_inventory(self._escaped()))

    def _escaped(self):
        told = self._tree.to_json()
        told["slices"][0]["place"] = ["../ckpt_dir", "/evil-1_8.ckpt"]
        return told


class Dumb(Server):
    async def _answer(self, channel, request):
        await channel.send(PayloadKind.CHUNK, b"not a message")


@pytest.mark.parametrize("lying", [Huge, Garbage, Escaping, Dumb])
def test_an_inventory_that_cannot_be_is_refused(nodes, lying, recover_ckpt):
    here, there, _ = nodes
    with running(lying, there) as liar:
        done = recover_ckpt("apply", here, "--from", liar)
    assert done.code == 3
    assert not list(here.iterdir())


def test_only_slices_that_a_scan_knows_are_read(nodes, tmp_path):
    _, there, other = nodes
    secret = tmp_path / "secret-1_8.ckpt"
    secret.write_bytes(b"secret")
    (there / "ckpt_dir1" / "notes.txt").write_text("not a slice")
    (there / "ckpt_dir1" / "leads-1_8.ckpt").symlink_to(other / "ckpt_dir2" / NAME)
    (there / "ckpt_dir9").symlink_to(other / "ckpt_dir2")
    with serving(there) as [server], Peers([Address.parse(server.address)]) as peers:
        [inventory], [peer] = peers.served, peers.peers
        assert [file.path for file in inventory.slices] == [f"ckpt_dir1/{NAME}"]
        assert "leads out of the tree" in str(inventory.notes)
        got = bytearray()
        for path in ("../secret-1_8.ckpt", str(secret), "ckpt_dir1/notes.txt", "ckpt_dir1/group_info.pb"):
            status = secret.stat()
            state = FileState(status.st_size, status.st_mtime_ns)
            with pytest.raises((VerificationError, InputError)):
                peers.wait(partial(peer.fetch, SliceRequest(path, state), got.extend))
        linked = other / "ckpt_dir2" / NAME
        state = FileState(linked.stat().st_size, linked.stat().st_mtime_ns)
        for path in ("ckpt_dir1/leads-1_8.ckpt", f"ckpt_dir9/{NAME}"):
            with pytest.raises(VerificationError, match="no slice of the tree"):
                peers.wait(partial(peer.fetch, SliceRequest(path, state), got.extend))
        file = inventory.slices[0]
        changed = FileState(file.size, file.mtime_ns + 1)
        with pytest.raises(VerificationError, match="not what the plan saw"):
            peers.wait(partial(peer.fetch, SliceRequest(file.path, changed), got.extend))
        # What was a slice when the tree was scanned is a way out now.
        path = there / file.path
        path.unlink()
        path.symlink_to(linked)
        with pytest.raises(VerificationError, match="no file of the tree"):
            peers.wait(partial(peer.fetch, SliceRequest(file.path, state), got.extend))
        assert not got


def test_a_token_lets_in_and_keeps_out(nodes, tmp_path, recover_ckpt):
    here, there, _ = nodes
    token, other = tmp_path / "token", tmp_path / "other token"
    for path, text in ((token, TOKEN), (other, OTHER)):
        path.write_text(text)
        path.chmod(0o600)
    with serving(there, options=["--token-file", str(token)]) as [server]:
        command = ["apply", here, "--from", server.address, "--world-size", "3", "--ranks", "0"]
        for wrong in ([], ["--token-file", other]):
            refused = recover_ckpt(*command, *wrong)
            assert refused.code == 3
            assert "token" in refused.err
            assert TOKEN not in refused.err + refused.out
        assert not list(here.iterdir())
        assert recover_ckpt(*command, env={"MS_RECOVER_WORLDS_TOKEN": TOKEN}).code == 0
    token.chmod(0o644)
    assert recover_ckpt(*command, "--token-file", token).code == 2


def test_off_loopback_a_token_is_required(nodes, recover_ckpt):
    here, there, _ = nodes
    served = recover_ckpt("serve", there, "--bind", "0.0.0.0", "--port", free_port())
    assert served.code == 2
    assert "token" in served.err
    asked = recover_ckpt("apply", here, "--from", "192.0.2.1:29610", "--timeout", "1")
    assert asked.code == 2
    assert "token" in asked.err


def test_nobody_there_and_other_mistakes_are_told(nodes, tmp_path, recover_ckpt):
    here, there, _ = nodes
    nobody = recover_ckpt("apply", here, "--from", f"127.0.0.1:{free_port()}", "--timeout", "1")
    assert nobody.code == 1
    assert "recover-ckpt serve" in nobody.err
    for wrong in (
        ["apply", here, "--from", "nonsense:port"],
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


def knock(port):
    """Connect; while a server takes a client in its port is closed for a moment."""
    for _ in range(500):
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        time.sleep(0.02)
    raise AssertionError("nobody listens")


def test_strangers_do_not_disturb(nodes):
    _, there, _ = nodes
    with serving(there) as [server]:
        for data in (b"", b"GET / HTTP/1.0\r\n\r\n", os.urandom(4096)):
            with knock(server.port) as stranger:
                stranger.sendall(data)
        held = knock(server.port)
        try:
            with Peers([Address.parse(server.address)]) as peers:
                assert len(peers.served[0].slices) == 1
        finally:
            held.close()


def test_a_client_that_asks_what_cannot_be_is_refused(nodes):
    _, there, _ = nodes
    with serving(there) as [server], Peers([Address.parse(server.address)]) as peers:
        [peer] = peers.peers

        async def ask(data):
            channel = await peer._connect()
            await channel.send_message(data)
            return await channel.receive_message(1 << 16)

        for data in (b"{", b"[]", b'{"version":1,"ask":"everything"}', b'{"version":2,"ask":"inventory"}', b"\xff"):
            assert b'"refused"' in peers.wait(partial(ask, data))
        assert peers.wait(peer.inventory).slices  # and goes on


def test_without_numpy_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install numpy"):
        need_numpy()
