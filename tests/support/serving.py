"""Nodes for tests of recovery between nodes: trees of their own, servers as processes, a relay that counts."""

import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress

RECOVER = [sys.executable, "-c", "import sys; from ms_recover.cli.entry import main; sys.exit(main())"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


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
            [*RECOVER, "serve", str(tree), "--port", str(self.port), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        line = self.process.stdout.readline()
        assert line.startswith("serving "), self.process.communicate(timeout=30)

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


class Relay:
    """Passes connections on to a server, counts what comes back, and calls something once when so much has."""

    def __init__(self, port, after=None, call=lambda: None):
        self.target, self.after, self.call = port, after, call
        self.count = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(timeout=30)
            assert not thread.is_alive()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.target), timeout=30)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            for pair in ((client, server, False), (server, client, True)):
                thread = threading.Thread(target=self._pass, args=pair)
                thread.start()
                self._threads.append(thread)

    def _pass(self, source, target, counted):
        try:
            while data := source.recv(1 << 16):
                target.sendall(data)
                if counted:
                    self._note(len(data))
        except OSError:
            pass
        finally:
            for sock in (source, target):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            target.close()

    def _note(self, count):
        with self._lock:
            self.count += count
            due = self.after is not None and self.count >= self.after
            if due:
                self.after = None
        if due:
            self.call()


def leftovers(tree):
    return sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if ".ms_recover" in path.name)
