"""TLS between nodes: with the right certificates it works, and with others the message says what to do."""

import re
import shutil
import ssl
import subprocess
import sys
from contextlib import contextmanager

import pytest

from ms_recover.cli.options import PeerOptions
from ms_recover.cli.peers import security_of
from ms_recover.errors import UsageError
from ms_recover.model.steps import Step
from ms_recover.remote.tls import mismatch
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.worlds.security import Security, with_certificates
from tests.support.serving import Relay, Served, free_port, leftovers, serving, split

NAME = "test-1_8.ckpt"
VARIABLES = {"CERTIFICATE": "node2.pem", "KEY": "node2.key", "AUTHORITY": "ours.ca"}
TRUSTING = """
import sys
from ms_recover.remote.server import serve
from ms_recover.worlds.security import Security, with_certificates
root, port, *files = sys.argv[1:]
serve(root, port=int(port), security=Security().mutual_tls(*files), ready=lambda text: print(text, flush=True))
"""
"""A server that does not look at its own certificate, as one whose certificate expired while it ran."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make two authorities, two nodes of each, and certificates that nobody should accept."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
    where = tmp_path_factory.mktemp("certificates")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=where, check=True, capture_output=True, timeout=60)

    def sign(name, authority, days=2, extensions=()):
        openssl("req", *curve, "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signer = ["-CA", f"{authority}.ca", "-CAkey", f"{authority}.ca.key", "-CAcreateserial", *extensions]
        openssl("x509", "-req", "-in", f"{name}.csr", *signer, "-out", f"{name}.pem", "-days", str(days))

    for authority in ("ours", "theirs"):
        subject = ["-subj", f"/CN={authority}", "-days", "2"]
        openssl("req", "-x509", *curve, "-nodes", "-keyout", f"{authority}.ca.key", "-out", f"{authority}.ca", *subject)
    for name, authority, days in (("node1", "ours", 2), ("node2", "ours", 2), ("stranger", "theirs", 2)):
        sign(name, authority, days)
    sign("expired", "ours", -1)
    (where / "server.ext").write_text("extendedKeyUsage = serverAuth\n")
    sign("server-only", "ours", extensions=["-extfile", "server.ext"])
    openssl("pkey", "-in", "node1.key", "-aes128", "-passout", "pass:a password", "-out", "encrypted.key")
    (where / "both.ca").write_bytes((where / "ours.ca").read_bytes() + (where / "theirs.ca").read_bytes())
    (where / "text").write_text("these are neither\n")
    for path in where.iterdir():
        path.chmod(0o600)
    return where


@pytest.fixture
def tls(folder):
    """Return the options for a node."""

    def options(node, authority="ours", key=None):
        files = {
            "certificate": folder / f"{node}.pem",
            "key": folder / f"{key or node}.key",
            "authority": folder / f"{authority}.ca",
        }
        return [word for name, path in files.items() for word in (f"--{name}", str(path))]

    return options


@pytest.fixture
def nodes(tmp_path):
    """A node that lost its slice, and one that holds the same."""
    tree = make_tree(tmp_path / "whole", data_parallel=2, model_parallel=1, steps=[Step(1, 8)])
    save_manifests(tree)
    return split(tree, tmp_path, here=(), there=(1,))


@contextmanager
def trusting(tree, *files):
    """Run a server with these files, good or not; give its address."""
    port = free_port()
    command = [sys.executable, "-c", TRUSTING, str(tree), str(port), *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline().startswith("serving ")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_slices_come_over_tls(nodes, tls, recover_ckpt):
    here, there = nodes
    with serving(there, options=tls("node1")) as [server]:
        planned = recover_ckpt("plan", here, "--from", server.address, *tls("node2"))
        assert planned.code == 0, planned.err
        assert "--certificate" in planned.out  # the command that carries it out
        with Relay(server.port) as relay:
            done = recover_ckpt("apply", here, "--from", relay.address, *tls("node2"))
            assert done.code == 0, done.err
        assert relay.count > (there / "ckpt_dir1" / NAME).stat().st_size
        code, said = server.end()
        assert code == 0
        assert "Traceback" not in said
    assert (here / "ckpt_dir0" / NAME).read_bytes() == (there / "ckpt_dir1" / NAME).read_bytes()
    assert not leftovers(here)


def test_a_transfer_over_tls_is_taken_up_again(tls, tmp_path, recover_ckpt):
    whole = make_tree(tmp_path / "whole", data_parallel=2, model_parallel=1, parameters={"w": 8 << 20})
    here, there = split(whole, tmp_path, here=(), there=(1,))
    again = []
    with serving(there, options=tls("node1")) as [server]:

        def restart():
            server.kill()
            again.append(Served(there, *tls("node1"), port=server.port))

        with Relay(server.port, 20 << 20, restart) as relay:
            done = recover_ckpt("apply", here, "--from", relay.address, *tls("node2"), "--timeout", "30")
        [second] = again
        assert second.end()[0] == 0
        second.process.stdout.close()
        second.process.stderr.close()
    assert done.code == 0, done.err
    assert "resuming at byte" in done.err
    assert (here / "ckpt_dir0" / NAME).read_bytes() == (whole / "ckpt_dir0" / NAME).read_bytes()


def test_the_files_may_be_named_in_the_environment(nodes, tls, folder, recover_ckpt):
    here, there = nodes
    environment = {f"MS_RECOVER_WORLDS_{name}": str(folder / file) for name, file in VARIABLES.items()}
    with serving(there, options=tls("node1")) as [server]:
        assert recover_ckpt("plan", here, "--from", server.address, env=environment).code == 0
        partly = recover_ckpt("plan", here, "--from", server.address, env={**environment, "MS_RECOVER_WORLDS_KEY": ""})
        assert partly.code == 2
        assert "missing: --key (or MS_RECOVER_WORLDS_KEY)" in partly.err
        # An option goes before the variable; without --from the variables mean nothing.
        wrong = recover_ckpt("plan", here, "--from", server.address, "--key", folder / "none", env=environment)
        assert wrong.code == 2
        assert (
            recover_ckpt("plan", there, "--world-size", "2", env={**environment, "MS_RECOVER_WORLDS_KEY": ""}).code == 0
        )


def test_all_three_or_none(nodes, tls, recover_ckpt):
    here, there = nodes
    options = tls("node1")
    given = dict(zip(options[::2], options[1::2], strict=True))
    for name in given:
        for names in ({name}, given.keys() - {name}):
            few = {option[2:]: path if option in names else None for option, path in given.items()}
            with pytest.raises(UsageError, match="all three or none; missing: --") as caught:
                security_of(PeerOptions(**few))
            assert all((f"{option} (or" in str(caught.value)) == (option not in names) for option in given)
    for command in (["serve", there, "--port", free_port()], ["plan", here, "--from", "127.0.0.1:1"]):
        missing = recover_ckpt(*command, *options[:4])
        assert missing.code == 2
        assert "missing: --authority (or MS_RECOVER_WORLDS_AUTHORITY)" in missing.err
    without = recover_ckpt("apply", here, *options)
    assert without.code == 2
    assert "--from" in without.err


@pytest.mark.parametrize(
    ("certificate", "key", "authority", "words"),
    [
        ("none", "node1.key", "ours.ca", "No such file"),
        ("node1.pem", "none", "ours.ca", "No such file"),
        ("node1.pem", "node1.key", "none", "No such file"),
        ("text", "node1.key", "ours.ca", "no certificate in PEM"),
        ("node1.pem", "text", "ours.ca", "no private key in PEM"),
        ("node1.pem", "node1.key", "text", "no certificate in PEM"),
        ("node1.key", "node1.key", "ours.ca", "no certificate in PEM"),
        ("node1.pem", "node2.key", "ours.ca", "does not match the certificate"),
        ("node1.pem", "encrypted.key", "ours.ca", "is encrypted"),
        ("expired.pem", "expired.key", "ours.ca", "certificate has expired"),
        ("stranger.pem", "stranger.key", "ours.ca", "unable to get local issuer certificate"),
        ("server-only.pem", "server-only.key", "ours.ca", "purpose"),
    ],
)
def test_files_that_will_not_do_are_refused_before_anybody_is_asked(folder, certificate, key, authority, words):
    with pytest.raises(UsageError, match=words) as caught:
        with_certificates(Security(), *(str(folder / name) for name in (certificate, key, authority)))
    assert str(folder) in str(caught.value)


def test_commands_end_with_2_when_files_will_not_do(nodes, tls, folder, recover_ckpt):
    here, there = nodes
    for command in (["serve", there, "--port", free_port()], ["apply", here, "--from", "127.0.0.1:1"]):
        expired = recover_ckpt(*command, *tls("expired"))
        assert expired.code == 2
        assert "expired" in expired.err
    key = folder / "open.key"
    shutil.copyfile(folder / "node1.key", key)
    key.chmod(0o644)
    shown = recover_ckpt("serve", there, "--port", free_port(), *tls("node1", key="open"))
    assert shown.code == 2
    assert "chmod 600" in shown.err


def test_a_server_with_the_wrong_certificate_is_told_apart(nodes, tls, folder, recover_ckpt):
    here, there = nodes
    for name, authority, words in (
        ("expired", "ours", "certificate has expired"),
        ("stranger", "theirs", "self.signed certificate in certificate chain"),
    ):
        with trusting(there, folder / f"{name}.pem", folder / f"{name}.key", folder / f"{authority}.ca") as address:
            refused = recover_ckpt("apply", here, "--from", address, *tls("node2"), "--timeout", "3600")
        assert refused.code == 3, refused.err
        assert f"{address} shows a certificate that this node does not accept" in refused.err
        assert re.search(words, refused.err)
        assert "--authority" in refused.err
    assert not list(here.iterdir())


def test_a_client_with_the_wrong_certificate_is_told(nodes, tls, recover_ckpt):
    here, there = nodes
    with serving(there, options=tls("node1")) as [server]:
        refused = recover_ckpt(
            "apply", here, "--from", server.address, *tls("stranger", authority="both"), "--timeout", "3600"
        )
        assert refused.code == 3, refused.err
        assert f"{server.address} does not accept this node's certificate (unknown ca)" in refused.err
        assert recover_ckpt("plan", here, "--from", server.address, *tls("node2")).code == 0  # and goes on


def test_only_one_side_speaks_tls(nodes, tls, recover_ckpt):
    here, there = nodes
    with serving(there, options=tls("node1")) as [server]:
        plain = recover_ckpt("apply", here, "--from", server.address, "--timeout", "1")
        assert plain.code == 3, plain.err
        assert f"{server.address} speaks TLS, and this node does not" in plain.err
        assert "--certificate" in plain.err
        assert recover_ckpt("plan", here, "--from", server.address, *tls("node2")).code == 0
    with serving(there) as [server]:
        secured = recover_ckpt("apply", here, "--from", server.address, *tls("node2"), "--timeout", "1")
        assert secured.code == 3, secured.err
        assert f"{server.address} does not speak TLS" in secured.err
        assert recover_ckpt("plan", here, "--from", server.address).code == 0
    assert not list(here.iterdir())


def test_wrong_tokens_and_absent_servers_are_still_told_as_such(nodes, tls, recover_ckpt):
    here, there = nodes
    nobody = recover_ckpt("apply", here, "--from", f"127.0.0.1:{free_port()}", *tls("node2"), "--timeout", "1")
    assert nobody.code == 1
    assert "cannot be reached" in nobody.err
    with serving(there, options=tls("node1")) as [server]:
        other = recover_ckpt(
            "apply", here, "--from", server.address, *tls("node2"), env={"MS_RECOVER_WORLDS_TOKEN": "0123456789abcdef"}
        )
    assert other.code == 3
    assert "token" in other.err


def test_no_mismatch_is_found_where_there_is_none(nodes, folder, tls):
    _, there = nodes
    secured = with_certificates(Security(), *tls("node2")[1::2])
    assert isinstance(secured.guest_tls, ssl.SSLContext)
    with serving(there, options=tls("node1")) as [server]:
        assert mismatch("127.0.0.1", server.port, secured) is None
    with serving(there) as [server]:
        assert mismatch("127.0.0.1", server.port, Security()) is None
    assert mismatch("127.0.0.1", free_port(), secured) is None
