"""Time fetching a slice against ``curl -o`` and fsync of the same file from nginx, and against an older version.

All ways run one after the other, over and over, so that whatever else the machine does hits all alike; a figure is the
median of the ratios to the mean of the curl just before and the one just after. The text beside the table says what is
inside each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ms_recover.stores.http_access import Access
from ms_recover.stores.http_store import HttpStore
from ms_recover.stores.store import Store, never
from ms_recover.testing.trees import make_tree, save_manifests

MIB = 1 << 20
NAME = "test-1_8.ckpt"
TABLE = Path(__file__).with_name("remote.md")

METHOD = """\
# Fetching a slice

One slice of {mib} MiB over loopback, on {cores} cores, file system {file_system}; the served file is cached, the target
is new. Median wall time as a multiple of `curl -o` + fsync of the same file from nginx, over {rounds} rounds (lowest
and highest in brackets); each ratio is to the mean of the curl just before and the one just after. The curl took
{curl:.2f} s over HTTP and {secure:.2f} s over TLS (median).

- nginx {nginx} with one worker and sendfile; our server is `recover-ckpt serve`, one process.
- Fetched: `HttpStore` into a file, with the digest of all bytes, then fsync; what `apply --from` does to the bytes,
  without the process that starts, the plan and the reading back.
- Over TLS both compare with curl over TLS from nginx, TLS 1.3.
{older}
`python benchmarks/bench_remote.py --help` tells how to run it elsewhere.

| way | time, as a multiple of curl (goal: at most 1.11) |
|---|---|
"""

OLDER = """
import os, sys, time
from ms_recover.remote.client import Peers
from ms_recover.remote.peer import Address
from ms_recover.remote.slice_source import RemoteSource
from ms_recover.model.actions import FileState
address, target = sys.argv[1:]
with Peers([Address.parse(address)], timeout=60.0) as peers:
    source = RemoteSource(peers.peers[0], peers.served[0], peers)
    file = peers.served[0].slices[0]
    for line in sys.stdin:
        began = time.perf_counter()
        with source.open(file.path, FileState(file.size, file.mtime_ns)) as opened, open(target, "wb") as out:
            opened.copy_to(out.fileno(), lambda: False, lambda count: None)
            os.fsync(out.fileno())
        print(time.perf_counter() - began, flush=True)
        os.unlink(target)
"""
"""Fetches with the older version, once for each line, in a process of its own."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, **options: object) -> Iterator[None]:
    process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{command[0]} does not serve") from None
                time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def nginx(folder: Path, tree: Path, certificate: tuple[Path, Path] | None) -> tuple[list[str], int]:
    port = free_port()
    tls = "" if certificate is None else " ssl"
    files = "" if certificate is None else "ssl_certificate {}; ssl_certificate_key {};".format(*certificate)
    folder.mkdir()
    temporary = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "conf").write_text(
        f"daemon off; worker_processes 1; error_log {folder}/error.log; pid {folder}/pid;"
        f"{'user root;' if os.geteuid() == 0 else ''} events {{}} http {{ access_log off; sendfile on; {temporary}"
        f"server {{ listen 127.0.0.1:{port}{tls}; root {tree}; autoindex on; {files} }} }}\n"
    )
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    return [program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "conf")], port


def certificate_in(folder: Path) -> tuple[Path, Path]:
    """Make a certificate that is its own authority."""
    names = "subjectAltName=IP:127.0.0.1"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    files = [str(folder / "cert.pem"), str(folder / "cert.key")]
    subprocess.run(
        [*command, "-subj", "/CN=bench", "-addext", names, "-out", files[0], "-keyout", files[1]],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return Path(files[0]), Path(files[1])


def curl(url: str, target: Path, *options: str) -> float:
    """Return the seconds of curl and fsync."""
    began = time.perf_counter()
    subprocess.run(["curl", "-sf", *options, "-o", str(target), url], check=True, timeout=600)
    with target.open("rb+") as file:
        os.fsync(file.fileno())
    taken = time.perf_counter() - began
    target.unlink()
    return taken


def fetch(store: Store, target: Path) -> float:
    """Return the seconds of fetching with digest, and fsync."""
    state = store.stat(f"ckpt_dir0/{NAME}").state
    began = time.perf_counter()
    with store.open(f"ckpt_dir0/{NAME}", state) as opened, target.open("wb") as file:
        copied, _ = opened.copy_to(file.fileno(), never, lambda count: None)
        os.fsync(file.fileno())
    taken = time.perf_counter() - began
    assert copied == state.bytes
    target.unlink()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=512, help="size of the slice")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="a checkout of a version that fetched over worlds")
    parser.add_argument("--folder", type=Path, help="where the files lie; default: a temporary one")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        tree = make_tree(
            folder / "tree",
            data_parallel=1,
            model_parallel=1,
            parameters={**{f"w{number}": 16 * MIB // 4 for number in range(options.mib // 16)}, "global_step": 1},
        )
        save_manifests(tree)
        target, certificate = folder / "target", certificate_in(folder)
        serve = [sys.executable, "-m", "ms_recover", "serve", str(tree), "--port"]
        stores: dict[str, HttpStore] = {}
        ways: dict[str, Callable[[], float]] = {}
        for secure in (False, True):
            files = certificate if secure else None
            command, port = nginx(folder / f"nginx{secure}", tree, files)
            stack.enter_context(running(command, port))
            kind, scheme = (" over TLS", "https") if secure else ("", "http")
            access = Access(authority=str(certificate[0])) if secure else Access()
            trusting = ["--cacert", str(certificate[0])] if secure else []
            url = f"{scheme}://127.0.0.1:{port}"
            ours = free_port()
            more = ["--certificate", str(certificate[0]), "--key", str(certificate[1])] if secure else []
            stack.enter_context(running([*serve, str(ours), *more], ours, stdout=subprocess.DEVNULL))
            ways[f"curl{kind}"] = lambda url=url, trusting=trusting: curl(  # type: ignore[misc]
                f"{url}/ckpt_dir0/{NAME}", target, *trusting
            )
            ours_url = f"{scheme}://127.0.0.1:{ours}"
            ways[f"curl from our server{kind}"] = lambda url=ours_url, trusting=trusting: curl(  # type: ignore[misc]
                f"{url}/ckpt_dir0/{NAME}", target, *trusting
            )
            for name, where in (("nginx", url), ("our server", ours_url)):
                stores[f"fetched from {name}{kind}"] = store = stack.enter_context(HttpStore(where, access))
                ways[f"fetched from {name}{kind}"] = lambda store=store: fetch(store, target)  # type: ignore[misc]
        if options.against is not None:
            environment = {**os.environ, "PYTHONPATH": str(options.against)}
            port = free_port()
            stack.enter_context(
                running([*serve, str(port)], port, stdout=subprocess.DEVNULL, env=environment, cwd=options.against)
            )
            older = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", OLDER, f"127.0.0.1:{port}", str(target)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    env=environment,
                    cwd=options.against,
                )
            )
            assert older.stdin is not None
            assert older.stdout is not None
            stack.callback(older.kill)

            def ask_older() -> float:
                print("again", file=older.stdin, flush=True)
                return float(older.stdout.readline())  # type: ignore[union-attr]

            ways["the protocol over worlds"] = ask_older
        ratios = measure(ways, options.rounds)
    rows = [
        f"| {name} | **{statistics.median(found):.2f}** ({min(found):.2f} - {max(found):.2f}) |"
        for name, found in ratios.items()
        if not name.startswith("seconds")
    ]
    version = subprocess.run([command[0], "-v"], capture_output=True, text=True, check=True).stderr.rpartition("/")[2]
    table = METHOD.format(
        mib=options.mib,
        cores=len(os.sched_getaffinity(0)),
        file_system=file_system(options.folder or Path(tempfile.gettempdir())),
        rounds=options.rounds,
        curl=statistics.median(ratios["seconds"]),
        secure=statistics.median(ratios["seconds over TLS"]),
        nginx=version.strip(),
        older="- The protocol over worlds: the same of the version before, from its own server, without TLS.\n"
        if options.against
        else "",
    )
    text = table + "\n".join([*rows, ""])
    print(text)
    if options.write:
        _, title, others = TABLE.read_text().partition("\n## ")  # of bench_remote_tools
        TABLE.write_text(text + title + others)


def measure(ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return for each way the ratios to the curls around it, and the seconds of these."""
    ratios: dict[str, list[float]] = {name: [] for name in ways if name not in ("curl", "curl over TLS")}
    for kind in ("", " over TLS"):
        ratios[f"seconds{kind}"] = []
    for way in ways.values():
        way()  # for the cache
    for number in range(rounds):
        for name in [name for name in ways if name not in ("curl", "curl over TLS")]:
            kind = " over TLS" if name.endswith("TLS") else ""
            before, taken, after = (way() for way in (ways[f"curl{kind}"], ways[name], ways[f"curl{kind}"]))
            ratios[name].append(taken / ((before + after) / 2))
            ratios[f"seconds{kind}"] += [before, after]
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    return ratios


def file_system(folder: Path) -> str:
    found = subprocess.run(["stat", "-f", "-c", "%T", str(folder)], capture_output=True, text=True, check=True)
    return found.stdout.strip()


if __name__ == "__main__":
    main()
