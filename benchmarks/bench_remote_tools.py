"""Time fetching and sending a slice by S3 and SFTP beside aws-cli and OpenSSH's sftp: same servers, same file.

Both servers are real processes on loopback, moto's S3 server and sshd. A figure is the median of the ratios to the mean
of the tool's run just before and the one just after, each less what the tool takes for an empty file: a program that
starts is not what is compared. The text beside the table says what is inside each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench_remote import MIB, NAME, TABLE, fetch

from ms_recover.stores.store import Store
from ms_recover.stores.urls import open_plain
from ms_recover.testing.trees import make_tree

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support
from tests.support.servers import S3_ENVIRONMENT, Server, s3_server, sshd

PIECE = 1 << 20
SLICE, EMPTY, SENT = f"ckpt_dir0/{NAME}", "empty", "sent"
TITLE = "\n## S3 and SFTP\n"

METHOD = """\

One slice of {mib} MiB over loopback, on {cores} cores, as a multiple of the tool's time for the same file and server:
median of {rounds} rounds (lowest and highest in brackets), each ratio to the mean of the tool just before and just
after. The time that the tool takes for an empty file is taken off: a program takes it to start and connect, and ours is
connected already.

- S3: moto {moto}'s server, which keeps objects in memory and copies the whole one for each range, beside `aws s3 cp` of
  aws-cli {aws}. The server is written in Python and takes most of the time on either side: the ratios compare two
  clients of it, not the speed of S3.
- SFTP: sshd beside `sftp` with `get` and `put -f`, {ssh}.
  `sftp` takes the cipher {cipher}, ours {ours}: each its own default.
- Fetched: with the digest of all bytes, then fsync; after the tools an fsync of the file follows.
- Sent: as `copy` and `apply` send, to a name that appears when the file is complete, with `fsync@openssh.com` by SFTP.

`python benchmarks/bench_remote_tools.py --help` tells how to run it elsewhere.

| way | time, as a multiple of the tool's | seconds of the tool |
|---|---|---|
"""


def timed(act: Callable[[], object]) -> float:
    """Return the seconds of something."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def run(command: list[str], **options: object) -> None:
    """Run a tool."""
    subprocess.run(command, check=True, timeout=600, stdout=subprocess.DEVNULL, **options)  # type: ignore[call-overload]


def synced(target: Path, act: Callable[[], object]) -> None:
    """Sync the file that something makes."""
    act()
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def send(store: Store, source: Path) -> None:
    """Write a file to a store."""
    with source.open("rb") as data, store.create(SENT) as file:
        while piece := data.read(PIECE):
            file.write(piece)
        file.commit()


def measure(
    tool: Callable[[str], object], ours: Callable[[], float], target: Path, rounds: int
) -> dict[str, list[float]]:
    """Return the ratios and the seconds of the tool; `tool` is given the name of the file to move."""

    def of_tool(name: str) -> float:
        taken = timed(lambda: tool(name))
        target.unlink(missing_ok=True)
        return taken

    start = statistics.median(of_tool(EMPTY) for _ in range(3))
    found: dict[str, list[float]] = {"ratios": [], "seconds": []}
    for number in range(-1, rounds):  # the first is for the cache
        before, taken, after = of_tool(SLICE) - start, ours(), of_tool(SLICE) - start
        if min(before, after) <= 0:
            raise SystemExit("starting the tool takes as long as the file: wait for a quieter host, or give --mib more")
        if number >= 0:
            found["ratios"].append(taken / ((before + after) / 2))
            found["seconds"] += [before, after]
    return found


def ways(
    aws: str, tree: Path, target: Path, server: Server, stores: dict[str, Store]
) -> dict[str, tuple[Callable[[str], object], Callable[[], float]]]:
    """Return for each way what the tool does and what ours takes."""
    ssh = ["-q", "-i", str(server.home / ".ssh/id_ed25519"), "-o", f"UserKnownHostsFile={server.home}/.ssh/known_hosts"]
    sftp = ["sftp", *ssh, "-P", str(server.port)]

    def put(name: str) -> None:
        run([*sftp, "-b", "-", "127.0.0.1"], input=f"put -f {tree / name} {tree / SENT}\n".encode())

    return {
        "fetched from S3": (
            lambda name: synced(target, lambda: run([aws, "s3", "cp", "--quiet", f"s3://bench/{name}", str(target)])),
            lambda: fetch(stores["s3"], target),
        ),
        "sent to S3": (
            lambda name: run([aws, "s3", "cp", "--quiet", str(tree / name), f"s3://bench/{SENT}"]),
            lambda: timed(lambda: send(stores["s3"], tree / SLICE)),
        ),
        "fetched by SFTP": (
            lambda name: synced(target, lambda: run([*sftp, f"127.0.0.1:{tree / name}", str(target)])),
            lambda: fetch(stores["sftp"], target),
        ),
        "sent by SFTP": (put, lambda: timed(lambda: send(stores["sftp"], tree / SLICE))),
    }


def cipher_of_ssh(server: Server) -> str:
    """Return the cipher that ssh agrees on."""
    hosts = f"UserKnownHostsFile={server.home}/.ssh/known_hosts"
    command = ["ssh", "-v", "-i", str(server.home / ".ssh/id_ed25519"), "-o", hosts, "-p", str(server.port)]
    told = subprocess.run(
        [*command, "127.0.0.1", "true"], check=True, capture_output=True, text=True, timeout=60
    ).stderr
    return next(line.split("cipher: ")[1].split()[0] for line in told.splitlines() if "cipher: " in line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="size of the slice; moto copies all of it for each range")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--aws", default=shutil.which("aws"), help="the program of aws-cli; it may be in an own venv")
    parser.add_argument("--folder", type=Path, help="where the files lie; default: a temporary one")
    parser.add_argument("--write", action="store_true", help=f"write the section of {TABLE.name}")
    options = parser.parse_args()
    if options.aws is None or shutil.which(options.aws) is None:
        raise SystemExit("aws-cli is not here: python -m venv V && V/bin/pip install awscli, then --aws V/bin/aws")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end too
    environment = dict(os.environ)
    rows: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        values = 16 * MIB // 4
        parameters = {**{f"w{number}": values for number in range(options.mib // 16)}, "global_step": 1}
        tree = make_tree(folder / "tree", data_parallel=1, model_parallel=1, parameters=parameters)
        (tree / EMPTY).touch()
        server = stack.enter_context(sshd(folder))
        s3 = stack.enter_context(s3_server(folder))
        stack.callback(lambda: os.environ.update(environment))
        os.environ.update(S3_ENVIRONMENT, HOME=str(server.home), AWS_ENDPOINT_URL=s3.url)
        os.environ.pop("SSH_AUTH_SOCK", None)
        run([options.aws, "s3", "mb", "s3://bench"])
        run([options.aws, "s3", "cp", "--recursive", "--quiet", str(tree), "s3://bench"])
        urls = {"s3": "s3://bench", "sftp": f"sftp://127.0.0.1:{server.port}{tree}"}
        stores = {name: stack.enter_context(open_plain(url)) for name, url in urls.items()}
        target = folder / "target"
        for name, (tool, ours) in ways(options.aws, tree, target, server, stores).items():
            found = measure(tool, ours, target, options.rounds)
            ratios, seconds = found["ratios"], statistics.median(found["seconds"])
            median = statistics.median(ratios)
            rows.append(f"| {name} | **{median:.2f}** ({min(ratios):.2f} - {max(ratios):.2f}) | {seconds:.2f} |")
            print(rows[-1], file=sys.stderr)
        ciphers = cipher_of_ssh(server), stores["sftp"]._session.connection.get_extra_info("send_cipher")  # type: ignore[attr-defined]
    import moto

    version = subprocess.run([options.aws, "--version"], capture_output=True, text=True, check=True).stdout
    text = METHOD.format(
        mib=options.mib,
        cores=len(os.sched_getaffinity(0)),
        rounds=options.rounds,
        moto=moto.__version__,
        aws=version.split()[0].partition("/")[2],
        ssh=subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True)
        .stderr.split(",")[0]
        .replace("_", " "),
        cipher=ciphers[0],
        ours=ciphers[1],
    )
    section = TITLE + text + "\n".join([*rows, ""])
    print(section)
    if options.write:
        TABLE.write_text(TABLE.read_text().partition(TITLE)[0] + section)


if __name__ == "__main__":
    main()
