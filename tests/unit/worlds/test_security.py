import asyncio
import contextlib
import os
import shutil
import signal
import subprocess

import numpy as np
import pytest

from ms_recover.errors import BrokenWorldError, UsageError
from ms_recover.worlds import Security, WorldManager, authentication, handshake, wire
from ms_recover.worlds.handshake import Hello, MessageType, Purpose
from ms_recover.worlds.security import TLS_VARIABLES, prove

pytestmark = pytest.mark.processes  # every world has a helper process

TOKEN = b"0123456789abcdef"
HELLO = Hello(Purpose.RENDEZVOUS, 0, 1, 2, 1, 1, 3000, b"n" * 32, "w")


async def barrier(manager, rank):
    await manager.communicator.barrier(world="w")
    return int((await manager.communicator.all_reduce(np.array([rank + 1]), world="w"))[0])


def test_the_token_is_read_from_a_file_or_the_environment(tmp_path):
    path = tmp_path / "token"
    path.write_bytes(TOKEN + b"\n")
    path.chmod(0o600)
    assert Security.from_environment({"MS_RECOVER_WORLDS_TOKEN_FILE": str(path)}).token == TOKEN
    assert Security.from_environment({"MS_RECOVER_WORLDS_TOKEN": TOKEN.decode()}).token == TOKEN
    assert Security.from_environment({}).token == b""
    assert TOKEN.decode() not in repr(Security(TOKEN))
    path.chmod(0o644)
    for environment in (
        {"MS_RECOVER_WORLDS_TOKEN_FILE": str(path)},
        {"MS_RECOVER_WORLDS_TOKEN_FILE": str(tmp_path / "none")},
        {"MS_RECOVER_WORLDS_TOKEN": "short"},
        {"MS_RECOVER_WORLDS_TOKEN": TOKEN.decode(), "MS_RECOVER_WORLDS_TOKEN_FILE": str(path)},
    ):
        with pytest.raises(UsageError):
            Security.from_environment(environment)


def test_an_address_that_is_not_loopback_needs_a_token():
    async def main():
        async with WorldManager(security=Security()) as manager:
            for rank in (0, 1):
                for address in ("0.0.0.0", "192.0.2.1", "::"):
                    with pytest.raises(UsageError, match=r"not loopback.*--token-file"):
                        await manager.initialize_world("w", rank, 2, addr=address, port=29999, timeout=5)

    asyncio.run(main())


def test_members_with_the_same_token_make_a_world(together):
    assert together(barrier, 3, [Security(TOKEN)] * 3) == [6] * 3


def test_the_transcript_is_unambiguous():
    assert prove(b"k", "host", b"ab", b"c") != prove(b"k", "host", b"a", b"bc")
    assert prove(b"k", "host", b"ab") != prove(b"k", "guest", b"ab")


def with_intruders(port, visit, *, security=None, size=2):
    """Make a world while others connect to its rendezvous; the world must be made all the same."""
    at = port()
    security = security or Security()

    async def main():
        async with WorldManager(security=security) as host, WorldManager(security=security) as client:
            making = asyncio.ensure_future(host.initialize_world("w", 0, size, port=at, timeout=60))
            await asyncio.sleep(0.05)
            result = await asyncio.wait_for(visit(at), 60)
            assert not making.done()
            await client.initialize_world("w", 1, size, port=at, timeout=60)
            await making
            assert await asyncio.gather(barrier(host, 0), barrier(client, 1)) == [3, 3]
        return result

    return asyncio.run(main())


async def talk(port, *pieces):
    """Send bytes to the rendezvous; return the answer, up to the end of the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
    answer = await reader.read()
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"GET / HTTP/1.0\r\n\r\n", b"not a handshake"),
        (b"MSRH\x63\x01\x00\x10" + b"x" * 16, b"version 99"),
        (b"MSRH\x01\x01\xff\xff" + b"x" * 16, b"65535 bytes"),
        (b"MSRH\x01\x03\x00\x20" + b"x" * 32, b"received PROOF, expected HELLO"),
        (handshake.pack(MessageType.HELLO, b""), b"invalid HELLO of 0 bytes"),
        (handshake.pack(MessageType.HELLO, handshake.pack_hello(HELLO)[:-1] + b"\xff"), b"UTF-8"),
    ],
)
def test_invalid_handshakes_are_refused_and_do_not_disturb_the_world(port, said, answer):
    assert answer in with_intruders(port, lambda at: talk(at, said))


def test_wrong_proof_and_wrong_world_are_refused(port):
    async def wrong_proof(at):
        return await talk(
            at,
            handshake.pack(MessageType.HELLO, handshake.pack_hello(HELLO)),
            handshake.pack(MessageType.PROOF, b"x" * 32),
        )

    assert b"wrong token" in with_intruders(port, wrong_proof, security=Security(TOKEN))

    async def wrong_world(at):
        refused = []
        for change in ({"world": "other"}, {"size": 3}, {"purpose": Purpose.PEER}):
            sock, _ = await authentication.connect("127.0.0.1", at, HELLO._replace(**change), b"", Security())
            with pytest.raises(authentication.HandshakeRefusedError) as caught:
                await authentication.read_message(sock, MessageType.WELCOME, handshake.MAX_MESSAGE)
            sock.close()
            refused.append(str(caught.value))
        return refused

    assert all("this is the rendezvous of world 'w' of size 2" in words for words in with_intruders(port, wrong_world))


def test_a_wrong_token_fails_the_connecting_member_at_once(port):
    async def visit(at):
        async with WorldManager(security=Security(TOKEN[::-1])) as client:
            with pytest.raises(BrokenWorldError, match="another token") as caught:
                await client.initialize_world("w", 1, 2, port=at, timeout=60)
            return caught.value.cause

    assert with_intruders(port, visit, security=Security(TOKEN)) == "protocol"


def test_a_second_claim_to_a_rank_is_refused_and_a_dead_one_is_replaced(port):
    at = port()

    async def main():
        async with WorldManager() as host, WorldManager() as b, WorldManager() as c:
            making = [asyncio.ensure_future(host.initialize_world("w", 0, 3, port=at, timeout=60))]
            await asyncio.sleep(0.05)
            greeting = HELLO._replace(size=3)
            first, _ = await authentication.connect("127.0.0.1", at, greeting, b"", Security())
            await asyncio.sleep(0.05)
            second, _ = await authentication.connect("127.0.0.1", at, greeting, b"", Security())
            with pytest.raises(authentication.HandshakeRefusedError, match="duplicate rank 1"):
                await authentication.read_message(second, MessageType.WELCOME, handshake.MAX_MESSAGE)
            second.close()
            first.close()
            making += [
                asyncio.ensure_future(m.initialize_world("w", r, 3, port=at, timeout=60)) for r, m in ((1, b), (2, c))
            ]
            await asyncio.gather(*making)

    asyncio.run(main())


def test_connections_that_are_not_authenticated_in_time_are_closed(port, monkeypatch):
    monkeypatch.setattr(authentication, "HANDSHAKE_S", 0.3)

    async def visit(at):
        silent = [asyncio.open_connection("127.0.0.1", at) for _ in range(100)]
        pairs = await asyncio.gather(*silent)
        pairs[0][1].write(b"MSRH")
        answers = await asyncio.gather(*(reader.read() for reader, _ in pairs))
        for _, writer in pairs:
            writer.close()
        return answers

    assert with_intruders(port, visit) == [b""] * 100


def test_garbage_in_an_open_world_breaks_it_and_it_alone(port):
    """Invalid bytes from a member are a fault of this world; another world of the same process is not affected."""
    ports = [port(), port()]

    async def main():
        async with WorldManager() as host, WorldManager() as other:
            for name, at in zip(("w", "x"), ports, strict=True):
                await asyncio.gather(
                    host.initialize_world(name, 0, 2, port=at, timeout=60),
                    other.initialize_world(name, 1, 2, port=at, timeout=60),
                )
            link = other._worlds["w"]._links[0]
            link.send(b"x" * wire.FIXED_SIZE, None)
            with pytest.raises(BrokenWorldError) as caught:
                await host.communicator.recv(1, world="w")
            assert caught.value.cause == "protocol"
            await asyncio.gather(*(m.communicator.barrier(world="x") for m in (host, other)))

    asyncio.run(main())


@pytest.fixture
def certificates(tmp_path):
    """An authority and one certificate by it, and one by another authority."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=tmp_path, check=True, capture_output=True, timeout=60)

    for name in ("right", "wrong"):
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
        openssl(
            "req", "-x509", *key, "-keyout", f"{name}.ca.key", "-out", f"{name}.ca", "-subj", "/CN=ca", "-days", "2"
        )
        openssl("req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=member")
        signer = ["-CA", f"{name}.ca", "-CAkey", f"{name}.ca.key", "-CAcreateserial"]
        openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.pem", "-days", "2")

    def security(name, authority="right"):
        paths = (str(tmp_path / f"{name}.{kind}") for kind in ("pem", "key"))
        return Security(TOKEN).mutual_tls(*paths, str(tmp_path / f"{authority}.ca"))

    return security


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "TLS"])
def test_what_peers_say_they_passed_is_what_came(together, certificates, secure):
    """Otherwise a connection would seem to hold bytes, or not seem so. A helper that replaces another knows it, too."""

    async def work(manager, rank):
        link = manager._worlds["w"]._links[1 - rank]
        for length in (1, 100, 70_000, 5_000_000):
            sending = manager.communicator.send(np.zeros(length, np.uint8), 1 - rank, world="w")
            await asyncio.gather(sending, manager.communicator.recv(1 - rank, world="w"))
            if rank and length == 100:
                os.kill(manager.watchdog.pid, signal.SIGKILL)  # a helper of the program under test
        (watch,) = manager.watchdog._watches.values()
        while watch.passed.get(1 - rank) != link._received or manager.watchdog.replaced < rank:
            await asyncio.sleep(0.01)
        assert link._received > length
        await manager.communicator.barrier(world="w")

    together(work, 2, [certificates("right")] * 2 if secure else [], heartbeat=1.0, limit=60)


def test_all_traffic_works_over_tls(together, certificates):
    async def work(manager, rank):
        c = manager.communicator
        for length in (1, 100_000, 2_000_000):
            got = await c.all_reduce(np.arange(float(length)) + rank, world="w")
            assert np.array_equal(got, 3 * np.arange(float(length)) + 3)
        if rank == 0:
            await c.send(np.ones(1_000_000), 1, world="w")
        if rank == 1:
            await asyncio.sleep(0.2)  # it is held, with some of it in the TLS buffer
            assert (await c.recv(0, world="w")).sum() == 1_000_000
        await c.barrier(world="w")

    together(work, 3, [certificates("right")] * 3)


@pytest.mark.parametrize("length", [1, 20_000])
@pytest.mark.parametrize("first", ["send", "receive"])
def test_what_was_sent_over_tls_arrives_although_its_sender_left_with_unread_data(
    together, certificates, length, first
):
    async def work(manager, rank):
        c = manager.communicator
        if rank:
            await c.barrier(world="w")
            for number in range(3):
                await c.send(np.full(length, number), 0, world="w", tag=1)
            return
        for _ in range(20):
            await c.send(np.zeros(1000), 1, world="w", tag=2)  # nobody receives them
        await c.barrier(world="w")
        await asyncio.sleep(0.2)
        if first == "send":
            with contextlib.suppress(BrokenWorldError):
                await c.send(np.zeros(10_000), 1, world="w", tag=2)
        for number in range(3):
            assert (await c.recv(1, world="w", tag=1) == number).all()
        with pytest.raises(BrokenWorldError):
            await c.recv(1, world="w", tag=1)

    together(work, 2, [certificates("right")] * 2, limit=30)


@pytest.mark.parametrize(
    ("authority", "words"), [("right", "does not accept this member's certificate"), ("wrong", "not accepted here")]
)
def test_certificate_of_another_authority_is_refused_at_once(port, certificates, authority, words):
    """On either side."""

    async def visit(at):
        async with WorldManager(security=certificates("wrong", authority)) as client:
            with pytest.raises(BrokenWorldError, match=words) as caught:
                await client.initialize_world("w", 1, 2, port=at, timeout=3600)
            return caught.value.cause

    assert with_intruders(port, visit, security=certificates("right")) == "protocol"


@pytest.mark.parametrize("host_uses_tls", [True, False])
def test_tls_on_one_side_only_is_named_in_the_timeout(port, certificates, host_uses_tls):
    """Another program may listen there at the moment: that is no reason to give up at once."""
    plain, secured = Security(TOKEN), certificates("right")

    async def visit(at):
        async with WorldManager(security=plain if host_uses_tls else secured) as client:
            with pytest.raises(BrokenWorldError) as caught:
                await client.initialize_world("w", 1, 2, port=at, timeout=1)
            return caught.value

    error = with_intruders(port, visit, security=secured if host_uses_tls else plain)
    assert error.cause == "timeout"
    assert "TLS" in error.words


def test_tls_is_set_up_from_the_environment(together, certificates, tmp_path):
    certificates("right")
    names = dict(zip(TLS_VARIABLES, ("right.pem", "right.key", "right.ca"), strict=True))
    files = {variable: str(tmp_path / name) for variable, name in names.items()}
    security = Security.from_environment({**files, "MS_RECOVER_WORLDS_TOKEN": TOKEN.decode()})
    assert security.token == TOKEN
    assert security.host_tls is not None
    assert together(barrier, 2, [security] * 2) == [3, 3]
    assert Security.from_environment(dict.fromkeys(files, "")) == Security()
    for variable in files:
        with pytest.raises(UsageError, match=f"all three or none; missing: {variable}$"):
            Security.from_environment({**files, variable: ""})
    with pytest.raises(UsageError, match="other nodes would not accept the certificate"):
        Security.from_environment({**files, TLS_VARIABLES[2]: str(tmp_path / "wrong.ca")})


def test_invalid_files_for_tls_are_named_and_no_password_is_asked_for(certificates, tmp_path):
    certificates("right")
    encrypt = ["pkey", "-in", "right.key", "-aes128", "-passout", "pass:a password", "-out", "encrypted.key"]
    subprocess.run(["openssl", *encrypt], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    (tmp_path / "open.key").write_bytes((tmp_path / "right.key").read_bytes())
    (tmp_path / "open.key").chmod(0o644)
    for name in ("encrypted.key", "right.csr"):
        (tmp_path / name).chmod(0o600)
    for certificate, key, authority, words in (
        ("none", "right.key", "right.ca", "No such file"),
        ("right.pem", ".", "right.ca", "Is a directory"),
        ("right.key", "right.key", "right.ca", "no certificate in PEM"),
        ("right.pem", "right.key", "right.key", "no certificate in PEM"),
        ("right.pem", "right.csr", "right.ca", "no private key"),
        ("right.pem", "wrong.key", "right.ca", "does not match the certificate"),
        ("right.pem", "encrypted.key", "right.ca", "is encrypted"),
        ("right.pem", "open.key", "right.ca", "chmod 600"),
    ):
        with pytest.raises(UsageError, match=words):
            Security(TOKEN).mutual_tls(*(str(tmp_path / name) for name in (certificate, key, authority)))


def test_the_helper_gets_no_secret_by_its_command_line(together):
    async def work(manager, rank):
        words = []
        while len(words) < 2:  # it is still being started
            await asyncio.sleep(0.01)
            with open(f"/proc/{manager.watchdog.pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
        assert words[-2] == str(os.getpid()).encode()
        assert len(words) == 6

    together(work, 2, [Security(TOKEN)] * 2)
