"""Time the start of worlds, round trips wherever the scheduler puts the members, and the helper of idle worlds.

Round trips are also timed over bare sockets at the same places: blocking ones, and asyncio's own calls. With
`--large`, streams of large messages instead: the sender's processor time beside that over blocking sockets, small
messages that go to another member meanwhile, and two senders to one receiver.

All processes are real. Both members of a world are children, so that `--against` can run the code of another tree in
turn with this one (A B A B). Figures are medians with the tenth and the ninetieth percentile.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np

from ms_recover.worlds import WorldManager

HERE = Path(__file__).resolve()
LIMIT = 60.0
PLACES = {"as the scheduler likes": (None, None), "on one core": (0, 0), "on two cores": (0, 1)}
BARE = ("bare asyncio", "blocking sockets")
WORLDS = 64
STARTS = 6
TRIP_BYTES = 1024
STREAMS = {"4 MiB": 1 << 22, "16 MiB": 1 << 24, "64 MiB": 1 << 26}
STREAM_BYTES = 1 << 30
FAN_IN_BYTES = 4_000_000
BESIDE_TRIPS = 200
_APART_S = 0.2
Figures = dict[str, list[float]]
"""Seconds, a share of a core, or bytes a second, by what was measured."""


def free_ports(count: int) -> list[int]:
    """Return ports below those that the kernel gives to connections, which would take them in between."""
    with ExitStack() as probes:
        found: list[int] = []
        while len(found) < count:
            probe = probes.enter_context(socket.socket())
            with suppress(OSError):
                probe.bind(("127.0.0.1", random.randrange(20_000, 32_000)))
                found.append(int(probe.getsockname()[1]))
        return found


# --- the members -----------------------------------------------------------------------------------------------------


async def trips(rank: int, port: int, core: int | None, times: int) -> Figures:
    """Send 1 KiB there and back; return the seconds of each round trip."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    buffer, taken = np.zeros(TRIP_BYTES, np.uint8), []
    async with WorldManager() as manager:
        await manager.initialize_world("w", rank, 2, port=port, timeout=LIMIT)
        await asyncio.sleep(_APART_S)  # both helpers have started
        c = manager.communicator
        for _ in range(times):
            start = time.perf_counter()
            if rank == 0:
                await c.send(buffer, 1, world="w")
            await c.recv(1 - rank, world="w", out=buffer)
            if rank == 1:
                await c.send(buffer, 0, world="w")
            taken.append(time.perf_counter() - start)
    return {"": taken}


async def bare_trips(rank: int, port: int, times: int) -> Figures:
    """Send 1 KiB there and back over bare sockets, at each place and in both ways; return the seconds of each."""
    found, everywhere = Figures(), os.sched_getaffinity(0)
    with bare_connection(rank, port) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place, cores in PLACES.items():
            core = cores[rank]
            os.sched_setaffinity(0, everywhere if core is None else {core})
            sock.setblocking(False)
            found[f"bare asyncio, {place}"] = await asyncio_trips(sock, rank, times)
            sock.settimeout(LIMIT)
            found[f"blocking sockets, {place}"] = blocking_trips(sock, rank, times)
    return found


async def asyncio_trips(sock: socket.socket, rank: int, times: int) -> list[float]:
    loop, buffer, taken = asyncio.get_running_loop(), memoryview(bytearray(TRIP_BYTES)), []
    for _ in range(times):
        start = time.perf_counter()
        if rank == 0:
            await loop.sock_sendall(sock, buffer)
        at = 0
        while at < TRIP_BYTES:
            at += await loop.sock_recv_into(sock, buffer[at:])
        if rank == 1:
            await loop.sock_sendall(sock, buffer)
        taken.append(time.perf_counter() - start)
    return taken


def blocking_trips(sock: socket.socket, rank: int, times: int) -> list[float]:
    buffer, taken = memoryview(bytearray(TRIP_BYTES)), []
    for _ in range(times):
        start = time.perf_counter()
        if rank == 0:
            sock.sendall(buffer)
        at = 0
        while at < TRIP_BYTES:
            at += sock.recv_into(buffer[at:])
        if rank == 1:
            sock.sendall(buffer)
        taken.append(time.perf_counter() - start)
    return taken


def bare_connection(rank: int, port: int) -> socket.socket:
    """Connect the two members, of which the first listens."""
    if rank == 0:
        with socket.create_server(("127.0.0.1", port)) as server:
            server.settimeout(LIMIT)
            return server.accept()[0]
    until = time.monotonic() + LIMIT
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), LIMIT)
        except ConnectionRefusedError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)


async def starts(rank: int, ports: list[int], at: float) -> Figures:
    """Make single worlds and then many together, at the same moments as the other member."""
    found: Figures = {}
    async with WorldManager() as manager:

        async def make(number: int, name: str, *own: int) -> None:
            await asyncio.sleep(max(0.0, at + number * _APART_S - time.monotonic()))
            start = time.perf_counter()
            making = [manager.initialize_world(f"w{port}", rank, 2, port=port, timeout=LIMIT) for port in own]
            await asyncio.gather(*making)
            found.setdefault(name, []).append(time.perf_counter() - start)

        for number in range(STARTS):
            await make(number, "the first world of a process" if number == 0 else "a further world", ports[number])
        await make(STARTS, f"{WORLDS} worlds together", *ports[STARTS:])
    return found


async def idle(rank: int, ports: list[int], seconds: float) -> Figures:
    """Make worlds one after the other and leave them idle; return the share of a core that the helper needs."""
    async with WorldManager() as manager:
        for port in ports:
            await manager.initialize_world(f"w{port}", rank, 2, port=port, timeout=LIMIT)
            await asyncio.sleep(0.004)  # so that the moments of their heartbeats differ
        await asyncio.sleep(0.5)
        helper = manager.watchdog.pid
        assert helper is not None
        before, began = processor_time(helper), time.monotonic()
        await asyncio.sleep(seconds)
        return {"": [(processor_time(helper) - before) / (time.monotonic() - began)]}


async def stream(rank: int, port: int, size: int) -> Figures:
    """Send messages of one size to the other member; return the sender's processor time for a GB."""
    async with WorldManager() as manager:
        await manager.initialize_world("w", rank, 2, port=port, timeout=LIMIT)
        c, buffer, used = manager.communicator, np.ones(size, np.uint8), 0.0
        for total in (STREAM_BYTES // 8, STREAM_BYTES):  # the first to warm up
            used = own_processor_time()
            for _ in range(total // size):
                await (c.recv(0, world="w", out=buffer) if rank else c.send(buffer, 1, world="w"))
            await (c.send(buffer[:1], 0, world="w") if rank else c.recv(1, world="w"))
        used = own_processor_time() - used
        await c.barrier("w")
    return {"": [used / STREAM_BYTES * 1e9]}


async def bare_stream(rank: int, port: int, size: int) -> Figures:
    """Send as `stream` over a blocking socket."""
    buffer, used = np.ones(size, np.uint8).data, 0.0
    with bare_connection(rank, port) as sock:
        sock.settimeout(None)
        for total in (STREAM_BYTES // 8, STREAM_BYTES):
            used = own_processor_time()
            for _ in range(total // size):
                at = 0
                while rank and at < size:
                    at += sock.recv_into(buffer[at:])
                if not rank:
                    sock.sendall(buffer)
            if rank:
                sock.sendall(b"!")
            else:
                sock.recv(1)
    return {"": [(own_processor_time() - used) / STREAM_BYTES * 1e9]}


async def beside(rank: int, port: int, size: int) -> Figures:
    """Send 1 KiB to member 2 and back while messages of one size go to member 1; return the seconds of round trips."""
    async with WorldManager() as manager:
        await manager.initialize_world("w", rank, 3, port=port, timeout=LIMIT)
        c, taken = manager.communicator, []
        large, small = np.ones(size, np.uint8), np.zeros(TRIP_BYTES, np.uint8)
        large[0] = 0
        if rank == 1:
            while not large[0]:
                await c.recv(0, world="w", out=large)
        elif rank == 2:
            for _ in range(BESIDE_TRIPS):
                await c.send(await c.recv(0, world="w"), 0, world="w")
        else:

            async def send() -> None:
                while not large[0]:
                    large[0] = len(taken) == BESIDE_TRIPS
                    await c.send(large, 1, world="w")

            sending = asyncio.ensure_future(send())
            for _ in range(BESIDE_TRIPS):
                await asyncio.sleep(0.002)
                start = time.perf_counter()
                await c.send(small, 2, world="w")
                await c.recv(2, world="w", out=small)
                taken.append(time.perf_counter() - start)
            await sending
        await c.barrier("w")
    return {"": taken}


async def fan_in(rank: int, port: int, size: int) -> Figures:
    """Receive from two members at once; return the bytes a second."""
    async with WorldManager() as manager:
        await manager.initialize_world("w", rank, 3, port=port, timeout=LIMIT)
        c, start = manager.communicator, 0.0

        async def receive(peer: int, times: int) -> None:
            buffer = np.zeros(size, np.uint8)
            for _ in range(times):
                await c.recv(peer, world="w", out=buffer)

        for total in (STREAM_BYTES // 8, STREAM_BYTES):
            start, times = time.perf_counter(), total // size // 2
            if rank:
                buffer = np.ones(size, np.uint8)
                for _ in range(times):
                    await c.send(buffer, 0, world="w")
            else:
                await asyncio.gather(receive(1, times), receive(2, times))
        taken = time.perf_counter() - start
        await c.barrier("w")
    return {"": [STREAM_BYTES / taken]}


def own_processor_time() -> float:
    """Return the processor time that this process has used, in seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def processor_time(process: int) -> float:
    """Return the processor time that a process has used, in seconds."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


ROLES = {
    "trips": trips,
    "bare": bare_trips,
    "starts": starts,
    "idle": idle,
    "stream": stream,
    "bare stream": bare_stream,
    "beside": beside,
    "fan in": fan_in,
}


# --- measuring -------------------------------------------------------------------------------------------------------


def members(tree: Path, role: str, *arguments: list[object]) -> list[Figures]:
    """Run one child for each list of arguments, with the code of a tree; return what they found."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    children = [
        subprocess.Popen(
            [sys.executable, HERE, "--be", json.dumps([role, *own])], env=environment, stdout=subprocess.PIPE, text=True
        )
        for own in arguments
    ]
    try:
        return [json.loads(child.communicate(timeout=2 * LIMIT)[0]) for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()


def measure_large(tree: Path) -> Figures:
    """Take every measurement with large messages once."""
    found: Figures = {}
    for name, size in STREAMS.items():
        used = []
        for role in ("stream", "bare stream"):
            port = free_ports(1)[0]
            used.append(members(tree, role, *([rank, port, size] for rank in (0, 1)))[0][""][0])
        found[f"sender's processor time for a GB, {name}"] = used[:1]
        found[f"over blocking sockets, a GB, {name}"] = used[1:]
        found[f"worlds / blocking sockets, {name}"] = [used[0] / used[1]]
    for name in ("4 MiB", "64 MiB"):
        port = free_ports(1)[0]
        taken = members(tree, "beside", *([rank, port, STREAMS[name]] for rank in (0, 1, 2)))[0][""]
        found[f"round trip of 1 KiB beside messages of {name}"] = taken
    port = free_ports(1)[0]
    name = "two senders of 4 MB to one receiver"
    found[name] = members(tree, "fan in", *([rank, port, FAN_IN_BYTES] for rank in (0, 1, 2)))[0][""]
    return found


def measure(tree: Path, times: int, seconds: float) -> Figures:
    """Take every other measurement once."""
    found: Figures = {}
    port = free_ports(1)[0]
    bare, _ = members(tree, "bare", *([rank, port, times] for rank in (0, 1)))
    for name, cores in PLACES.items():
        port = free_ports(1)[0]
        first, _ = members(tree, "trips", *([rank, port, core, times] for rank, core in enumerate(cores)))
        found[f"round trip of 1 KiB, {name}"] = first[""]
        for kind in BARE:
            found[f"over {kind}, {name}"] = bare[f"{kind}, {name}"]
        shares = statistics.median(first[""]) / statistics.median(bare[f"{BARE[0]}, {name}"])
        found[f"worlds / {BARE[0]}, {name}"] = [shares]
    ports, at = free_ports(STARTS + WORLDS), time.monotonic() + 1.5
    for name, taken in members(tree, "starts", *([rank, ports, at] for rank in (0, 1)))[1].items():
        found[f"start of {name}"] = taken
    ports = free_ports(WORLDS)
    first, _ = members(tree, "idle", *([rank, ports, seconds] for rank in (0, 1)))
    found[f"helper of {WORLDS} idle worlds"] = first[""]
    return found


def rows(trees: list[Path], all_found: list[list[Figures]]) -> list[str]:
    """Return the table: a row for each measurement, a column for each tree."""
    lines = ["| median (10 % to 90 %) |" + "".join(f" {name} |" for name in ("these", "those of before")[: len(trees)])]
    lines.append("|---|" + "---|" * len(trees))
    for name in all_found[0][0]:
        cells = [spread([value for found in of_tree for value in found[name]], name) for of_tree in all_found]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def spread(values: list[float], name: str) -> str:
    scale, unit, digits = (100, " % of a core", 2) if "helper" in name else (1e3, " ms", 1 if "start" in name else 3)
    if name.startswith("worlds /"):
        scale, unit, digits = 1, "", 2
    elif "a GB" in name:
        scale, unit, digits = 1, " s", 3
    elif name.startswith("two senders"):
        scale, unit, digits = 1e-9, " GB/s", 2
    ordered = sorted(value * scale for value in values)
    low, high = ordered[len(ordered) // 10], ordered[min(len(ordered) - 1, len(ordered) * 9 // 10)]
    return f"{statistics.median(ordered):.{digits}f} ({low:.{digits}f} to {high:.{digits}f}){unit}"


def table(rounds: int, against: Path | None = None, *, large: bool = False) -> list[str]:
    """Measure, in turn with another tree when one is given; return the table."""
    trees = [HERE.parent.parent, *([against] if against else [])]
    all_found: list[list[Figures]] = [[] for _ in trees]
    for _ in range(rounds):
        for tree, found in zip(trees, all_found, strict=True):
            found.append(measure_large(tree) if large else measure(tree, 2000, 5.0))
    return rows(trees, all_found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another tree of this project, measured in turn with this one")
    parser.add_argument("--large", action="store_true", help="measure large messages instead")
    parser.add_argument("--be", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        role, *arguments = json.loads(options.be)
        print(json.dumps(asyncio.run(ROLES[role](*arguments))))
    else:
        print("\n".join(table(options.rounds, options.against, large=options.large)))


if __name__ == "__main__":
    main()
