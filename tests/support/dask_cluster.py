"""A cluster of dask for tests: scheduler and workers are processes, and each worker sees one node's disk."""

import os
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
START_SECONDS = 60
ENVIRONMENT = {
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False",
    "DASK_DISTRIBUTED__ADMIN__SYSTEM_MONITOR__LOG_LENGTH": "10",
}


class DaskCluster:
    """Nodes ``n1`` and so on: each has a folder of this host, which its worker sees as ``/data``.

    With `certificates`, a folder of `make_certificates`, all sides use TLS; `tls` is the configuration of a client.
    """

    def __init__(self, folder, nodes=4, *, threads=2, nanny=False, port=0, certificates=None):
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.names = [f"n{number + 1}" for number in range(nodes)]
        self.threads, self.nanny, self.port = threads, nanny, port
        self.file = self.folder / "scheduler.json"
        self.url = f"dask://{self.file}"
        self.processes = {}
        self.tls, self.environment = {}, {}
        if certificates is not None:
            files = {"ca-file": certificates / "ours.ca", "{}.cert": certificates / "node1.pem"}
            files |= {"{}.key": certificates / "node1.key"}
            self.tls = {f"distributed.comm.tls.{key.format('client')}": str(file) for key, file in files.items()}
            for key, file in files.items():
                for role in ("scheduler", "worker"):
                    name = f"distributed.comm.tls.{key.format(role)}".replace("-", "_").replace(".", "__")
                    self.environment[f"DASK_{name.upper()}"] = str(file)
        for name in self.names:
            self.disk(name).mkdir(parents=True, exist_ok=True)

    def __enter__(self):
        try:
            self.start_scheduler()
            for name in self.names:
                self.start(name, wait=False)
            self.wait_for(self.names)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            process.terminate()
        for name in list(self.processes):
            self.end(name)

    def disk(self, name):
        """The folder that a node sees as ``/data``."""
        return self.folder / "disks" / name

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def start_scheduler(self):
        self.file.unlink(missing_ok=True)
        self._start(
            "scheduler",
            *("dask_scheduler", "--scheduler-file", str(self.file), "--host", "127.0.0.1"),
            *("--port", str(self.port), "--no-dashboard"),
            *(("--protocol", "tls") if self.tls else ()),
        )
        self._until(lambda: self.file.exists() and self.file.stat().st_size > 0, "scheduler")

    def start(self, name, *, roots=None, environment=None, wait=True, label=None, options=()):
        """Start the worker of a node; it sees what its disk has, or other `roots`."""
        roots = roots if roots is not None else f"/data={self.disk(name)}"
        self._start(
            name,
            *("dask_worker", "--scheduler-file", str(self.file), "--name", label or name, "--host", "127.0.0.1"),
            *("--nthreads", str(self.threads), "--no-dashboard", "--memory-limit", "0"),
            *("--local-directory", str(self.folder / "scratch")),
            *(("--protocol", "tls") if self.tls else ()),
            *(() if self.nanny else ("--no-nanny",)),
            *options,
            environment={"MS_RECOVER_NODE_ROOTS": roots, **(environment or {})},
        )
        if wait:
            self.wait_for([name])

    def _start(self, name, module, *arguments, environment=None):
        with (self.folder / f"{name}.log").open("a") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.{module}", *arguments],
                stdout=log,
                stderr=log,
                env={
                    **os.environ,
                    "PYTHONPATH": str(REPOSITORY),
                    **ENVIRONMENT,
                    **self.environment,
                    **(environment or {}),
                },
                cwd=self.folder,
            )

    def wait_for(self, names):
        for name in names:
            self._until(lambda name=name: "Registered to:" in self.log(name), name)

    def _until(self, ready, name):
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            assert self.processes[name].poll() is None, self.log(name)
            assert time.monotonic() < deadline, self.log(name)
            time.sleep(0.02)

    def kill(self, name):
        """Kill a process without a last word."""
        self.processes[name].kill()
        self.processes.pop(name).wait(timeout=30)
        (self.folder / f"{name}.log").write_text("")

    def end(self, name):
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=30)
