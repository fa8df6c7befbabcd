"""Nodes for tests of recovery between nodes: trees of their own, servers as processes, certificates."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from tests.support.ports import free_port

RECOVER = [sys.executable, "-c", "import sys; from ms_recover.cli.entry import main; sys.exit(main())"]


def split(tree, folder, **nodes):
    """Copy the directories of ranks to the nodes where they live."""
    for node, ranks in nodes.items():
        (folder / node).mkdir()
        for rank in ranks:
            shutil.copytree(tree / f"ckpt_dir{rank}", folder / node / f"ckpt_dir{rank}")
    return [folder / node for node in nodes]


class Served:
    """A server process."""

    def __init__(self, tree, *options, port=None, env=None):
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.process = subprocess.Popen(
            [*RECOVER, "serve", str(tree), "--port", str(self.port), *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        line = self.process.stdout.readline()
        assert line.startswith("serving "), self.process.communicate(timeout=30)
        self.url = line.split()[-1]

    def kill(self):
        self.process.kill()
        self.process.wait(timeout=30)

    def end(self, number=signal.SIGTERM):
        """End it in good order; return its exit code and what it said."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=60)
        assert "Traceback" not in err, err
        return self.process.returncode, out + err


@contextmanager
def serving(*trees, options=()):
    """Run a server for each tree."""
    servers = []
    try:
        for tree in trees:
            servers.append(Served(tree, *options))
        yield servers
        codes = [server.end()[0] for server in servers if server.process.returncode is None]
        assert set(codes) <= {0}
    finally:
        for server in servers:
            server.kill()
            server.process.stdout.close()
            server.process.stderr.close()


def need_program(name, package):
    """Return the path of a program; without it the test is skipped, or fails where tests/conftest.py says so."""
    path = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if path is None:
        pytest.skip(f"no {name} here: apt-get install {package}")
    return path


NGINX = """
daemon off;
worker_processes 1;
error_log {folder}/error.log;
pid {folder}/nginx.pid;
{user}
events {{ worker_connections 256; }}
http {{
    access_log off;
    default_type application/octet-stream;
    sendfile on;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port}{tls};
        root {tree};
        autoindex on;
        {format}
        {more}
    }}
}}
"""


class Nginx:
    """A web server that exports a folder; a context manager. `certificate` is a PEM file and its key."""

    def __init__(self, tree, folder, *, certificate=None, as_json=False, more=""):
        program = need_program("nginx", "nginx-light")
        folder.mkdir()
        self.port = free_port()
        self.url = f"http{'' if certificate is None else 's'}://127.0.0.1:{self.port}"
        if certificate is not None:
            more += " ssl_certificate {}; ssl_certificate_key {};".format(*certificate)
        text = NGINX.format(
            folder=folder,
            user="user root;" if os.geteuid() == 0 else "",
            port=self.port,
            tls="" if certificate is None else " ssl",
            tree=tree,
            format="autoindex_format json;" if as_json else "",
            more=more,
        )
        (folder / "nginx.conf").write_text(text)
        command = [program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
                return
            except OSError:
                assert self.process.poll() is None, self.process.communicate()[1]
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.communicate(timeout=30)


def make_certificates(where):
    """Make two authorities, nodes of each with and without the host's names, and certificates that nobody accepts."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make certificates with")
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
    (where / "names.ext").write_text("subjectAltName = IP:127.0.0.1,DNS:localhost\n")
    (where / "server.ext").write_text("extendedKeyUsage = serverAuth\n")
    for name, authority, days, extensions in (
        ("node1", "ours", 2, ()),
        ("node2", "ours", 2, ()),
        ("stranger", "theirs", 2, ()),
        ("expired", "ours", -1, ()),
        ("named", "ours", 2, ("-extfile", "names.ext")),
        ("server-only", "ours", 2, ("-extfile", "server.ext")),
    ):
        sign(name, authority, days, extensions)
    openssl("pkey", "-in", "node1.key", "-aes128", "-passout", "pass:a password", "-out", "encrypted.key")
    (where / "both.ca").write_bytes((where / "ours.ca").read_bytes() + (where / "theirs.ca").read_bytes())
    (where / "text").write_text("these are neither\n")
    for path in where.iterdir():
        path.chmod(0o600)
    return where


def leftovers(tree):
    return sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if ".ms_recover" in path.name)
