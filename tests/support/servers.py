"""Real servers on loopback, with temporary configuration: sshd, and S3 and WebDAV in processes of their own."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.ports import free_port

READY_SECONDS = 30


@dataclass
class Server:
    """A program that listens on a port, and can be killed and started again."""

    command: list
    port: int
    log: Path
    process: subprocess.Popen = None

    def start(self):
        """Start the program, and wait until its port is open."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return self
            time.sleep(0.05)
        self.kill()
        raise AssertionError(f"{self.command[0]} does not listen: {self.log.read_text()[-2000:]}")

    def kill(self):
        """Kill the program and what it started, as kill -9 does."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)


def descendants(pid):
    """Return the processes that a process started, and that they started."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


@contextmanager
def running(server):
    """Run a server for the time of a block."""
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def sshd(folder):
    """Run OpenSSH's server for this user; ``home`` below the folder has the key and ``known_hosts``."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None or shutil.which("ssh-keygen") is None:
        pytest.skip("sshd is not installed: apt-get install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    ssh = folder / "home" / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    for key in (ssh / "id_ed25519", folder / "host_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=30)
    port = free_port()
    (ssh / "known_hosts").write_text(f"[127.0.0.1]:{port} {(folder / 'host_key.pub').read_text()}")
    config = folder / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host_key\nPidFile none\n"
        f"AuthorizedKeysFile {ssh}/id_ed25519.pub\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nPermitRootLogin yes\nMaxStartups 100\nSubsystem sftp internal-sftp\n"
    )
    with running(Server([program, "-D", "-e", "-f", str(config)], port, folder / "sshd.log")) as server:
        server.home, server.key = folder / "home", (folder / "host_key.pub").read_text()
        yield server


S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret-of-the-suite",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
}


@contextmanager
def s3_server(folder):
    """Run moto's S3 server."""
    pytest.importorskip("moto.server")
    port = free_port()
    command = [sys.executable, "-c", "from moto.server import main; main()", "-H", "127.0.0.1", "-p", str(port)]
    with running(Server(command, port, folder / "moto.log")) as server:
        server.url = f"http://127.0.0.1:{port}"
        yield server


@contextmanager
def webdav_server(folder):
    """Run WsgiDAV over a folder ``dav``."""
    pytest.importorskip("wsgidav")
    pytest.importorskip("cheroot")
    root = folder / "dav"
    root.mkdir()
    port = free_port()
    program = [
        sys.executable,
        "-c",
        "from wsgidav.server.server_cli import run; run()",
        "--no-config",
        "--auth=anonymous",
    ]
    command = [*program, "--host=127.0.0.1", f"--port={port}", f"--root={root}"]
    with running(Server(command, port, folder / "dav.log")) as server:
        server.root = root
        yield server
