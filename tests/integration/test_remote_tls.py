"""TLS between nodes: with the right certificates it works, and with others the message says what to do."""

import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.steps import Step
from ms_recover.stores.http_access import Access
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.worlds.security import Security, with_certificates
from tests.support.fault_proxy import FaultProxy
from tests.support.ports import free_port
from tests.support.serving import Nginx, Served, leftovers, make_certificates, serving, split

NAME = "test-1_8.ckpt"
TOKEN = "0123456789abcdef"
VARIABLES = {"CERTIFICATE": "node2.pem", "KEY": "node2.key", "AUTHORITY": "ours.ca"}
TRUSTING = """
import sys
from unittest import mock
from ms_recover.serving import server
from ms_recover.stores.http_access import Access
root, port, certificate, key, authority = sys.argv[1:]
server.try_handshake = lambda *files: None
access = Access(certificate=certificate, key=key, authority=authority)
server.serve(root, port=int(port), access=access, started=lambda at: print("serving", flush=True))
"""
"""A server that does not look at its own certificate, as one whose certificate expired while it ran."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


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
            assert process.stdout.readline().startswith("serving")
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            assert process.wait(60) == 0


def test_slices_come_over_tls(nodes, tls, recover_ckpt):
    here, there = nodes
    with serving(there, options=tls("node1")) as [server]:
        assert server.url == f"https://{server.address}"
        planned = recover_ckpt("plan", here, "--from", server.address, *tls("node2"))
        assert planned.code == 0, planned.err
        assert "--certificate" in planned.out  # the command that carries it out
        with FaultProxy(server.port) as relay:
            done = recover_ckpt("apply", here, "--from", relay.address, *tls("node2"))
            assert done.code == 0, done.err
        assert relay.count > (there / "ckpt_dir1" / NAME).stat().st_size
        code, said = server.end()
        assert code == 0
        assert "Traceback" not in said
    assert (here / "ckpt_dir0" / NAME).read_bytes() == (there / "ckpt_dir1" / NAME).read_bytes()
    assert not leftovers(here)


def test_a_server_may_show_a_certificate_alone(nodes, folder, recover_ckpt):
    """As every web server does: its name is compared, and clients show a token."""
    here, there = nodes
    command, ours = ["plan", here, "--world-size", "2"], ["--authority", folder / "ours.ca"]
    for name, code in (("named", 0), ("node1", 3)):
        files = ["--certificate", folder / f"{name}.pem", "--key", folder / f"{name}.key"]
        with serving(there, options=files) as [server]:
            done = recover_ckpt(*command, "--from", server.address, *ours)
            assert done.code == code, done.err
            by_url = recover_ckpt(*command, "--from", server.url, env={"MS_RECOVER_AUTHORITY": str(folder / "ours.ca")})
            assert by_url.code == code, by_url.err
            unknown = recover_ckpt(*command, "--from", server.url)
            assert unknown.code == 3
            assert "--authority" in unknown.err


def test_a_transfer_over_tls_is_taken_up_again(tls, tmp_path, recover_ckpt):
    whole = make_tree(tmp_path / "whole", data_parallel=2, model_parallel=1, parameters={"w": 8 << 20})
    here, there = split(whole, tmp_path, here=(), there=(1,))
    again = []
    with serving(there, options=tls("node1")) as [server]:

        def restart():
            server.kill()
            again.append(Served(there, *tls("node1"), port=server.port))

        with FaultProxy(server.port, 20 << 20, restart) as relay:
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
    environment = {f"MS_RECOVER_{name}": str(folder / file) for name, file in VARIABLES.items()}
    with serving(there, options=tls("node1")) as [server]:
        assert recover_ckpt("plan", here, "--from", server.address, env=environment).code == 0
        partly = recover_ckpt("plan", here, "--from", server.address, env={**environment, "MS_RECOVER_KEY": ""})
        assert partly.code == 2
        assert "missing: --key (or MS_RECOVER_KEY)" in partly.err
        # An option goes before the variable; without --from the variables mean nothing.
        wrong = recover_ckpt("plan", here, "--from", server.address, "--key", folder / "none", env=environment)
        assert wrong.code == 2
        assert recover_ckpt("plan", there, "--world-size", "2", env={**environment, "MS_RECOVER_KEY": ""}).code == 0


def test_a_certificate_and_its_key_go_together(nodes, tls, folder, recover_ckpt):
    here, there = nodes
    with pytest.raises(UsageError, match="missing: --key"):
        Access(certificate=str(folder / "node1.pem"))
    with pytest.raises(UsageError, match="missing: --certificate"):
        Access(key=str(folder / "node1.key"), authority=str(folder / "ours.ca"))
    for command in (["serve", there, "--port", free_port()], ["plan", here, "--from", "127.0.0.1:1"]):
        missing = recover_ckpt(*command, *tls("node1")[:2])
        assert missing.code == 2
        assert "missing: --key (or MS_RECOVER_KEY)" in missing.err
    alone = recover_ckpt("serve", there, "--port", free_port(), *tls("node1")[4:])
    assert alone.code == 2
    assert "--certificate and --key" in alone.err
    without = recover_ckpt("apply", here, *tls("node1"))
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
    ],
)
def test_files_that_will_not_do_are_refused_before_anybody_is_asked(folder, certificate, key, authority, words):
    files = [str(folder / name) for name in (certificate, key, authority)]
    for make in (
        lambda: Access(certificate=files[0], key=files[1], authority=files[2]),
        lambda: with_certificates(Security(), *files),
    ):
        with pytest.raises(UsageError, match=words) as caught:
            make()
        assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("expired", "certificate has expired"),
        ("stranger", "unable to get local issuer certificate"),
        ("server-only", "purpose"),
    ],
)
def test_commands_end_with_2_when_every_peer_would_refuse_the_certificate(
    nodes, tls, folder, name, words, recover_ckpt
):
    here, there = nodes
    for command in (["serve", there, "--port", free_port()], ["apply", here, "--from", "127.0.0.1:1"]):
        refused = recover_ckpt(*command, *tls(name))
        assert refused.code == 2
        assert words in refused.err
    with pytest.raises(UsageError, match=words):
        with_certificates(Security(), *tls(name)[1::2])


def test_a_key_that_others_can_read_is_refused(nodes, tls, folder, recover_ckpt):
    _, there = nodes
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
        ("stranger", "theirs", "signed certificate in "),
    ):
        with trusting(there, folder / f"{name}.pem", folder / f"{name}.key", folder / f"{authority}.ca") as address:
            refused = recover_ckpt("apply", here, "--from", address, *tls("node2"), "--timeout", "3600")
        assert refused.code == 3, refused.err
        assert f"{address} shows a certificate that this node does not accept" in refused.err
        assert words in refused.err
        assert "--authority" in refused.err
    assert not list(here.iterdir())


def test_a_client_with_the_wrong_certificate_is_told(nodes, tls, folder, recover_ckpt):
    here, there = nodes
    with serving(there, options=tls("node1")) as [server]:
        url = ["--from", f"https://{server.address}", "--timeout", "3600"]
        refused = recover_ckpt("apply", here, *url, *tls("stranger", authority="both"))
        assert refused.code == 3, refused.err
        assert f"{server.address} does not accept this node's certificate" in refused.err
        nothing = recover_ckpt("apply", here, *url, "--authority", folder / "both.ca")
        assert nothing.code == 3, nothing.err
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


def test_wrong_tokens_and_absent_servers_are_still_told_as_such(nodes, tls, tmp_path, recover_ckpt):
    here, there = nodes
    nobody = recover_ckpt("apply", here, "--from", f"127.0.0.1:{free_port()}", *tls("node2"), "--timeout", "1")
    assert nobody.code == 1
    assert "cannot be reached" in nobody.err
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    with serving(there, options=[*tls("node1"), "--token-file", token]) as [server]:
        other = recover_ckpt(
            "apply", here, "--from", server.address, *tls("node2"), env={"MS_RECOVER_TOKEN": "fedcba9876543210"}
        )
        assert other.code == 3
        assert "token" in other.err
        right = recover_ckpt("plan", here, "--from", server.address, *tls("node2"), env={"MS_RECOVER_TOKEN": TOKEN})
        assert right.code == 0, right.err


def test_a_plain_web_server_is_a_source(nodes, folder, tmp_path, recover_ckpt):
    here, there = nodes
    certificate = folder / "named.pem", folder / "named.key"
    for number, (files, more) in enumerate(((None, []), (certificate, ["--authority", folder / "ours.ca"]))):
        with Nginx(tmp_path, tmp_path / f"nginx{number}", certificate=files, as_json=bool(more)) as server:
            source = ["--from", f"{server.url}/there/", *more, "--world-size", "2"]
            planned = recover_ckpt("plan", here, *source)
            assert planned.code == 0, planned.err
            assert f"fetched from {server.url}/there" in planned.out
            done = recover_ckpt("apply", here, *source)
            assert done.code == 0, done.err
        target = here / "ckpt_dir0" / NAME
        assert target.read_bytes() == (there / "ckpt_dir1" / NAME).read_bytes()
        assert (here / "ckpt_dir0" / "group_info.pb").exists()
        assert not leftovers(here)
        shutil.rmtree(here / "ckpt_dir0")
    with Nginx(tmp_path, tmp_path / "nginx2", more="location / { autoindex off; }") as server:
        unlisted = recover_ckpt("plan", here, "--from", f"{server.url}/there/")
        assert unlisted.code in (1, 3)
        assert server.url in unlisted.err
