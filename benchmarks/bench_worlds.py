"""Time worlds against raw sockets, the cost of further worlds, all_reduce, and how soon faults are noticed.

Each process is a real one. Raw sockets and worlds take turns, so that whatever else the machine does hits both alike;
a figure is the best of its turns (lowest round trip, highest throughput), for other load only ever adds.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from ms_recover.worlds import BrokenWorldError, WorldManager

TABLE = Path(__file__).with_name("worlds.md")
SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
LIMIT = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rounds(size: int) -> int:
    """Return how many messages of a size make about a tenth of a second."""
    return max(3, min(2000, (1 << 28) // size))


# --- what the other processes do -------------------------------------------------------------------------------------


def fill(sock: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        at += sock.recv_into(view[at:])


def raw_peer(port: int) -> None:
    """Echo, then take in, for each order: bytes, times, and whether to echo."""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        order = np.empty(3, np.int64)
        while True:
            fill(sock, order.view(np.uint8).data)
            size, times, echo = map(int, order)
            if not times:
                return
            buffer = np.zeros(size, np.uint8).data
            for _ in range(times):
                fill(sock, buffer)
                if echo:
                    sock.sendall(buffer)
            if not echo:
                sock.sendall(b"!")


async def world_peer(ports: list[int], busy: bool) -> None:
    """Be rank 1 in one world per port; serve orders in the first, and echo in the others when they are busy."""
    async with WorldManager() as manager:
        for index, port in enumerate(ports):
            await manager.initialize_world(f"w{index}", 1, 2, port=port, timeout=LIMIT)
        c = manager.communicator

        async def echo(world: str) -> None:
            while True:
                await c.send(await c.recv(0, world=world), 0, world=world)

        others = [asyncio.ensure_future(echo(f"w{index}")) for index in range(1, len(ports)) if busy]
        try:
            while True:
                size, times, back = map(int, await c.recv(0, world="w0"))
                if not times:
                    break
                buffer = np.zeros(size, np.uint8)
                for _ in range(times):
                    await c.recv(0, world="w0", out=buffer)
                    if back:
                        await c.send(buffer, 0, world="w0")
                if not back:
                    await c.send(np.zeros(1), 0, world="w0")
        finally:
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)


async def reducer(port: int, rank: int, size: int, times: int) -> list[float]:
    """Reduce 64 MiB of float32 over all members again and again; return the seconds each took."""
    array, taken = np.ones(1 << 24, np.float32), []
    out = np.empty_like(array)
    async with WorldManager() as manager:
        await manager.initialize_world("w", rank, size, port=port, timeout=LIMIT)
        for _ in range(times):
            await manager.communicator.barrier(world="w")
            start = time.perf_counter()
            await manager.communicator.all_reduce(array, world="w", out=out)
            taken.append(time.perf_counter() - start)
            assert out[0] == out[-1] == size
    return taken


async def sitter(port: int, heartbeat: float) -> None:
    """Be rank 1 and do nothing."""
    async with WorldManager(heartbeat=heartbeat) as manager:
        await manager.initialize_world("w", 1, 2, port=port, timeout=LIMIT)
        with suppress(BrokenWorldError):
            await manager.communicator.recv(0, world="w")


# --- measuring -------------------------------------------------------------------------------------------------------


@contextmanager
def process(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, __file__, "--be", *map(str, arguments)])
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()


class Best:
    """The best round trip in seconds and throughput in bytes per second, by size."""

    def __init__(self) -> None:
        self.trip = dict.fromkeys(SIZES, float("inf"))
        self.flow = dict.fromkeys(SIZES, 0.0)

    def took(self, size: str, echo: bool, times: int, seconds: float) -> None:
        if echo:
            self.trip[size] = min(self.trip[size], seconds / times)
        else:
            self.flow[size] = max(self.flow[size], times * SIZES[size] / seconds)


def raw_turn(sock: socket.socket, best: Best) -> None:
    for name, size in SIZES.items():
        buffer = np.zeros(size, np.uint8).data
        for echo in (True, False):
            times = rounds(size)
            sock.sendall(np.array([size, times, echo], np.int64).tobytes())
            start = time.perf_counter()
            for _ in range(times):
                sock.sendall(buffer)
                if echo:
                    fill(sock, buffer)
            if not echo:
                sock.recv(1)
            best.took(name, echo, times, time.perf_counter() - start)


async def world_turn(manager: WorldManager, best: Best) -> None:
    c = manager.communicator
    for name, size in SIZES.items():
        buffer = np.zeros(size, np.uint8)
        for echo in (True, False):
            times = rounds(size)
            await c.send(np.array([size, times, echo]), 1, world="w0")
            start = time.perf_counter()
            for _ in range(times):
                await c.send(buffer, 1, world="w0")
                if echo:
                    await c.recv(1, world="w0", out=buffer)
            if not echo:
                await c.recv(1, world="w0")
            best.took(name, echo, times, time.perf_counter() - start)


@contextmanager
def raw_connection() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server, process("raw", server.getsockname()[1]):
        server.settimeout(LIMIT)
        sock, _ = server.accept()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield sock
            sock.sendall(np.zeros(3, np.int64).tobytes())


async def against_raw(turns: int) -> tuple[Best, Best]:
    raw, ours, port = Best(), Best(), free_port()
    with raw_connection() as sock, process("world", port):
        async with WorldManager() as manager:
            await manager.initialize_world("w0", 0, 2, port=port, timeout=LIMIT)
            for _ in range(turns):
                raw_turn(sock, raw)
                await world_turn(manager, ours)
            await manager.communicator.send(np.zeros(3, np.int64), 1, world="w0")
    return raw, ours


async def with_more_worlds(counts: tuple[int, ...], busy: bool, turns: int) -> dict[int, Best]:
    """Measure one world while the same two processes share further ones, by the number of further ones."""
    bests = {count: Best() for count in counts}
    for _ in range(turns):
        for count, best in bests.items():
            ports = [free_port() for _ in range(count + 1)]
            with process("busy" if busy else "world", *ports) as child:
                async with WorldManager() as manager:
                    for index, port in enumerate(ports):
                        await manager.initialize_world(f"w{index}", 0, 2, port=port, timeout=LIMIT)
                    c = manager.communicator

                    async def chat(world: str, c: object = c) -> None:
                        while True:
                            await manager.communicator.send(np.zeros(128), 1, world=world)
                            await manager.communicator.recv(1, world=world)
                            await asyncio.sleep(0.01)

                    others = [asyncio.ensure_future(chat(f"w{index}")) for index in range(1, count + 1) if busy]
                    for _ in range(2):
                        await world_turn(manager, best)
                    for other in others:
                        other.cancel()
                    await asyncio.gather(*others, return_exceptions=True)
                    if not busy:
                        await c.send(np.zeros(3, np.int64), 1, world="w0")
                        child.wait(LIMIT)
    return bests


async def reduce_time(times: int) -> float:
    port = free_port()
    with process("reduce", port, 1, 3, times), process("reduce", port, 2, 3, times):
        return min(await reducer(port, 0, 3, times))


async def detect(kills: int, how: signal.Signals, heartbeat: float) -> list[float]:
    """Return the seconds from the signal to the error, one per process struck."""
    taken = []
    async with WorldManager(heartbeat=heartbeat) as manager:
        for number in range(kills):
            port = free_port()
            with process("sit", port, heartbeat) as child:
                await manager.initialize_world("w", 0, 2, port=port, timeout=LIMIT)
                receiving = asyncio.ensure_future(manager.communicator.recv(1, world="w"))
                await asyncio.sleep(0.01 * (number % 7))
                start = time.perf_counter()
                os.kill(child.pid, how)
                try:
                    await receiving
                except BrokenWorldError:
                    taken.append(time.perf_counter() - start)
    return taken


# --- the table -------------------------------------------------------------------------------------------------------


def ratio_rows(raw: Best, ours: Best) -> list[str]:
    rows = ["| size | raw round trip | worlds | raw one way | worlds | worlds / raw |", "|---|---|---|---|---|---|"]
    for name in SIZES:
        share = ours.flow[name] / raw.flow[name]
        rows.append(
            f"| {name} | {raw.trip[name] * 1e3:.3f} ms | {ours.trip[name] * 1e3:.3f} ms "
            f"| {raw.flow[name] / 1e9:.2f} GB/s | {ours.flow[name] / 1e9:.2f} GB/s | {share:.2f} |"
        )
    return rows


def more_rows(idle: dict[int, Best], busy: dict[int, Best]) -> list[str]:
    rows = [
        "| further worlds | state | round trip 1 KiB | one way 1 KiB | one way 1 MiB | one way 64 MiB |",
        "|---|---|---|---|---|---|",
    ]
    for state, bests in (("idle", idle), ("busy", busy)):
        base = idle[0]
        for count, best in bests.items():
            change: list[str] = [f"{(best.trip['1 KiB'] / base.trip['1 KiB'] - 1) * 100:+.0f} %"]
            change += [f"{(best.flow[name] / base.flow[name] - 1) * 100:+.0f} %" for name in SIZES]
            if count:
                rows.append(f"| {count} | {state} | {' | '.join(change)} |")
    return rows


def spread(taken: list[float]) -> str:
    ordered = sorted(taken)
    high = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return (
        f"median {statistics.median(ordered) * 1e3:.1f} ms, p99 {high * 1e3:.1f} ms, worst {ordered[-1] * 1e3:.1f} ms"
    )


async def measure(options: argparse.Namespace) -> str:
    raw, ours = await against_raw(options.turns)
    idle = await with_more_worlds((0, 1, 3, 7), False, max(1, options.turns // 2))
    busy = await with_more_worlds((1, 3, 7), True, max(1, options.turns // 2))
    seconds = await reduce_time(3 * options.turns)
    bound = 2 * 2 / 3 * SIZES["64 MiB"] * 3 / raw.flow["64 MiB"] / min(3, os.cpu_count() or 1)
    killed = await detect(options.kills, signal.SIGKILL, 3.0)
    frozen = {beat: await detect(options.freezes, signal.SIGSTOP, beat) for beat in (1.0, 3.0)}
    lines = [
        "# Worlds in figures",
        "",
        f"Loopback, {os.cpu_count()} cores shared with other load, Python {sys.version.split()[0]}.",
        "`python benchmarks/bench_worlds.py --write` measures again.",
        "",
        "## Against raw sockets",
        "",
        f"Blocking `sendall` and `recv_into` between two processes, and worlds, {options.turns} turns; best of each.",
        "",
        *ratio_rows(raw, ours),
        "",
        "## Further worlds of the same two processes",
        "",
        "Change against one world alone. Busy: each exchanges 1 KiB there and back every 10 ms.",
        "",
        *more_rows(idle, busy),
        "",
        "## all_reduce of 64 MiB over 3 processes",
        "",
        f"{seconds * 1e3:.0f} ms; {bound * 1e3:.0f} ms is what raw sockets need to move the bytes of the ring",
        "(each process sends 4/3 of the size) when every core does nothing else. The rest is the sum itself, the copy",
        "of the input, and three processes on fewer cores.",
        "",
        "## How soon a fault is noticed",
        "",
        f"- killed ({len(killed)} times), while the other waits in `recv`: {spread(killed)}",
        *(
            f"- frozen ({len(taken)} times), heartbeat {beat:g} s: "
            f"{min(taken):.2f} s to {max(taken):.2f} s (limit {1.1 * beat:.1f} s)"
            for beat, taken in frozen.items()
        ),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--freezes", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} beside this file")
    parser.add_argument("--be", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        role, *numbers = options.be
        parts: dict[str, Callable[[], object]] = {
            "raw": lambda: raw_peer(int(numbers[0])),
            "world": lambda: asyncio.run(world_peer([int(number) for number in numbers], False)),
            "busy": lambda: asyncio.run(world_peer([int(number) for number in numbers], True)),
            "reduce": lambda: asyncio.run(reducer(*(int(number) for number in numbers))),
            "sit": lambda: asyncio.run(sitter(int(numbers[0]), float(numbers[1]))),
        }
        with suppress(BrokenWorldError, ConnectionError):  # the one that measures has ended
            parts[role]()
        return
    table = asyncio.run(measure(options))
    print(table)
    if options.write:
        TABLE.write_text(table)


if __name__ == "__main__":
    main()
