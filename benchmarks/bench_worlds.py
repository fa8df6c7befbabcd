"""Time worlds against raw sockets, the cost of further worlds, all_reduce, and the detection of faults.

All processes are real. The measurements that are compared alternate, so that other load on the machine affects both.
Figures are medians with their spread. The cost of further worlds is the median over rounds. In each round a world with
others is compared with the same world alone, directly before and after, in the same two processes. Zero further worlds
show the noise.
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
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from enum import IntEnum
from pathlib import Path

import bench_worlds_costs
import numpy as np

from ms_recover.worlds import BrokenWorldError, WorldManager

TABLE = Path(__file__).with_name("worlds.md")
SIZES = {"1 KiB": 1 << 10, "1 MiB": 1 << 20, "64 MiB": 1 << 26}
FURTHER = {False: (0, 1, 3, 7), True: (1, 3, 7)}
"""Numbers of further worlds, idle and busy."""
LIMIT = 120.0


class Do(IntEnum):
    """The task of the other process, in an order of three numbers: bytes, times, and this; zero times ends it."""

    TAKE = 0
    ECHO = 1
    GROW = 2
    """Make further worlds, at the ports in the next message; busy ones when the number of bytes is not 0."""
    SHRINK = 3
    """Remove them."""


def order(size: int, times: int, do: Do) -> np.ndarray:
    return np.array([size, times, do], np.int64)


END = order(0, 0, Do.TAKE)


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
    """Receive or echo, as ordered."""
    with socket.create_connection(("127.0.0.1", port), LIMIT) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        asked = END.copy()
        while True:
            fill(sock, asked.view(np.uint8).data)
            size, times, do = map(int, asked)
            if not times:
                return
            buffer = np.zeros(size, np.uint8).data
            for _ in range(times):
                fill(sock, buffer)
                if do == Do.ECHO:
                    sock.sendall(buffer)
            if do == Do.TAKE:
                sock.sendall(b"!")


async def loop_fill(sock: socket.socket, view: memoryview) -> None:
    at = 0
    while at < len(view):
        at += await asyncio.get_running_loop().sock_recv_into(sock, view[at:])


async def loop_peer(port: int) -> None:
    """Echo, as ordered, with the event loop's own calls only."""
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", port), LIMIT) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        asked = END.copy()
        while True:
            await loop_fill(sock, asked.view(np.uint8).data)
            size, times, _ = map(int, asked)
            if not times:
                return
            buffer = np.zeros(size, np.uint8).data
            for _ in range(times):
                await loop_fill(sock, buffer)
                await loop.sock_sendall(sock, buffer)


async def world_peer(port: int) -> None:
    """As rank 1: receive or echo, and make and remove further worlds, as ordered in the first world."""
    async with WorldManager() as manager:
        await manager.initialize_world("w0", 1, 2, port=port, timeout=LIMIT)
        c = manager.communicator
        names: list[str] = []
        echoes: list[asyncio.Future[None]] = []

        async def echo(world: str) -> None:
            while True:
                await c.send(await c.recv(0, world=world), 0, world=world)

        while True:
            size, times, do = map(int, await c.recv(0, world="w0"))
            if not times:
                return
            if do == Do.GROW:
                names = await make_worlds(manager, 1, (await c.recv(0, world="w0")).tolist())
                echoes = [asyncio.ensure_future(echo(name)) for name in names if size]
            elif do == Do.SHRINK:
                await end(echoes)
                for name in names:
                    await manager.remove_world(name)
            else:
                buffer = np.zeros(size, np.uint8)
                for _ in range(times):
                    await c.recv(0, world="w0", out=buffer)
                    if do == Do.ECHO:
                        await c.send(buffer, 0, world="w0")
            if do != Do.ECHO:
                await c.send(np.zeros(1), 0, world="w0")


async def make_worlds(manager: WorldManager, rank: int, ports: list[int]) -> list[str]:
    names = [f"w{index}" for index in range(1, len(ports) + 1)]
    for name, port in zip(names, ports, strict=True):
        await manager.initialize_world(name, rank, 2, port=port, timeout=LIMIT)
    return names


async def end(tasks: list[asyncio.Future[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


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
    """As rank 1, do nothing."""
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


class Turns:
    """Round trips in seconds and throughputs in bytes per second, by size: one figure for each turn."""

    def __init__(self) -> None:
        self.trips: dict[str, list[float]] = {size: [] for size in SIZES}
        self.flows: dict[str, list[float]] = {size: [] for size in SIZES}

    def took(self, size: str, echo: bool, times: int, seconds: float) -> None:
        if echo:
            self.trips[size].append(seconds / times)
        else:
            self.flows[size].append(times * SIZES[size] / seconds)


def raw_turn(sock: socket.socket, turns: Turns) -> None:
    for name, size in SIZES.items():
        buffer = np.zeros(size, np.uint8).data
        for echo in (True, False):
            times = rounds(size)
            sock.sendall(order(size, times, Do(echo)).tobytes())
            start = time.perf_counter()
            for _ in range(times):
                sock.sendall(buffer)
                if echo:
                    fill(sock, buffer)
            if not echo:
                sock.recv(1)
            turns.took(name, echo, times, time.perf_counter() - start)


async def loop_turn(sock: socket.socket, turns: Turns) -> None:
    loop = asyncio.get_running_loop()
    for name, size in SIZES.items():
        buffer, times = np.zeros(size, np.uint8).data, rounds(size)
        await loop.sock_sendall(sock, order(size, times, Do.ECHO).tobytes())
        start = time.perf_counter()
        for _ in range(times):
            await loop.sock_sendall(sock, buffer)
            await loop_fill(sock, buffer)
        turns.took(name, True, times, time.perf_counter() - start)


async def world_seconds(manager: WorldManager, size: int, times: int, do: Do) -> float:
    """Return the seconds that each of a series of messages takes."""
    c, buffer = manager.communicator, np.zeros(size, np.uint8)
    await c.send(order(size, times, do), 1, world="w0")
    start = time.perf_counter()
    for _ in range(times):
        await c.send(buffer, 1, world="w0")
        if do == Do.ECHO:
            await c.recv(1, world="w0", out=buffer)
    if do == Do.TAKE:
        await c.recv(1, world="w0")
    return (time.perf_counter() - start) / times


async def world_turn(manager: WorldManager, turns: Turns) -> None:
    for name, size in SIZES.items():
        for echo in (True, False):
            turns.took(name, echo, 1, await world_seconds(manager, size, rounds(size), Do(echo)))


@contextmanager
def raw_connection(role: str) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server, process(role, server.getsockname()[1]):
        server.settimeout(LIMIT)
        sock, _ = server.accept()
        with sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield sock
            sock.setblocking(True)
            sock.sendall(END.tobytes())


async def against_raw(turns: int) -> tuple[Turns, Turns, Turns]:
    raw, loop, ours, port = Turns(), Turns(), Turns(), free_port()
    with raw_connection("raw") as blocking, raw_connection("loop") as waited, process("world", port):
        waited.setblocking(False)
        async with WorldManager() as manager:
            await manager.initialize_world("w0", 0, 2, port=port, timeout=LIMIT)
            for _ in range(turns):
                raw_turn(blocking, raw)
                await loop_turn(waited, loop)
                await world_turn(manager, ours)
            await manager.communicator.send(END, 1, world="w0")
    return raw, loop, ours


Changes = dict[tuple[int, bool], dict[str, list[float]]]
"""By number of further worlds and whether they are busy, for each of what is measured: its change in each round."""


async def with_more_worlds(times: int) -> Changes:
    """Measure one world alone, with further ones of the same two processes, alone again, and so on."""
    changes: Changes = {(count, busy): {} for busy, counts in FURTHER.items() for count in counts}
    port = free_port()
    with process("world", port):
        async with WorldManager() as manager:
            await manager.initialize_world("w0", 0, 2, port=port, timeout=LIMIT)
            before = await speeds(manager)
            for _ in range(times):
                for (count, busy), found in changes.items():
                    async with further_worlds(manager, count, busy):
                        among = await speeds(manager)
                    after = await speeds(manager)
                    for name, speed in among.items():
                        found.setdefault(name, []).append(2 * speed / (before[name] + after[name]) - 1)
                    before = after
            await manager.communicator.send(END, 1, world="w0")
    return changes


@asynccontextmanager
async def further_worlds(manager: WorldManager, count: int, busy: bool) -> AsyncIterator[None]:
    c, ports, done = manager.communicator, [free_port() for _ in range(count)], asyncio.Event()

    async def chat(world: str) -> None:
        while not done.is_set():
            await c.send(np.zeros(128), 1, world=world)
            await c.recv(1, world=world)
            await asyncio.sleep(0.01)

    await c.send(order(busy, 1, Do.GROW), 1, world="w0")
    await c.send(np.array(ports), 1, world="w0")
    names = await make_worlds(manager, 0, ports)
    await c.recv(1, world="w0")
    chats = [asyncio.ensure_future(chat(name)) for name in names if busy]
    yield
    done.set()
    await asyncio.gather(*chats)
    await c.send(order(0, 1, Do.SHRINK), 1, world="w0")
    await c.recv(1, world="w0")
    for name in names:
        await manager.remove_world(name)


async def speeds(manager: WorldManager) -> dict[str, float]:
    """Return the seconds of a round trip, and messages a second one way; the better of two short series each."""

    async def best(size: int, do: Do) -> float:
        return min([await world_seconds(manager, size, max(2, rounds(size) // 5), do) for _ in range(2)])

    trip = await best(SIZES["1 KiB"], Do.ECHO)
    return {"round trip 1 KiB": trip} | {
        f"one way {name}": 1 / await best(size, Do.TAKE) for name, size in SIZES.items()
    }


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


def ratio_rows(raw: Turns, loop: Turns, ours: Turns) -> list[str]:
    rows = [
        "| size | raw round trip | bare asyncio | worlds | raw one way | worlds | worlds / raw |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in SIZES:
        trips = " | ".join(f"{middle(turns.trips[name], 1e3, 3)} ms" for turns in (raw, loop, ours))
        flows = " | ".join(f"{middle(turns.flows[name], 1e-9, 2)} GB/s" for turns in (raw, ours))
        share = statistics.median(ours.flows[name]) / statistics.median(raw.flows[name])
        rows.append(f"| {name} | {trips} | {flows} | {share:.2f} |")
    return rows


def middle(values: list[float], scale: float, digits: int) -> str:
    """Return the median, and the lowest and highest in brackets."""
    low, high = min(values) * scale, max(values) * scale
    return f"{statistics.median(values) * scale:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def more_rows(changes: Changes) -> list[str]:
    names = list(next(iter(changes.values())))
    rows = [f"| further worlds | state | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for (count, busy), found in changes.items():
        cells = " | ".join(f"{statistics.median(found[name]) * 100:+.1f} %" for name in names)
        rows.append(f"| {count} | {'busy' if busy else 'idle'} | {cells} |")
    return rows


def spread(taken: list[float]) -> str:
    ordered = sorted(taken)
    high = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return (
        f"median {statistics.median(ordered) * 1e3:.1f} ms, p99 {high * 1e3:.1f} ms, worst {ordered[-1] * 1e3:.1f} ms"
    )


async def measure(options: argparse.Namespace) -> str:
    raw, loop, ours = await against_raw(options.turns)
    changes = await with_more_worlds(options.rounds)
    seconds = await reduce_time(3 * options.turns)
    bound = 2 * 2 / 3 * SIZES["64 MiB"] * 3 / statistics.median(raw.flows["64 MiB"]) / min(3, os.cpu_count() or 1)
    killed = await detect(options.kills, signal.SIGKILL, 3.0)
    frozen = {beat: await detect(options.freezes, signal.SIGSTOP, beat) for beat in (1.0, 3.0)}
    costs = bench_worlds_costs.table(options.costs, options.against)
    large = bench_worlds_costs.table(options.costs, options.against, large=True)
    at_the_end = f" (load average {os.getloadavg()[0]:.1f} at the end)"
    lines = [
        "# Worlds in figures",
        "",
        f"Loopback, {os.cpu_count()} cores shared with other load{at_the_end}, Python {sys.version.split()[0]}.",
        "`python benchmarks/bench_worlds.py --write` measures again.",
        "",
        "## Against raw sockets",
        "",
        "Between two processes: blocking `sendall` and `recv_into`, asyncio's `sock_sendall` and `sock_recv_into`, and",
        f"worlds: the median of {options.turns} turns, and the lowest and highest.",
        "",
        *ratio_rows(raw, loop, ours),
        "",
        "## Further worlds of the same two processes",
        "",
        "Change of one world's figures against the same world alone just before and after, median of",
        f"{options.rounds} rounds. Busy: each of the others exchanges 1 KiB there and back every 10 ms. With none the",
        "same is measured twice: what is no more than that is chance.",
        "",
        *more_rows(changes),
        "",
        "## Start, placement and idling",
        "",
        f"{options.costs} rounds of `benchmarks/bench_worlds_costs.py`: both members are started together;",
        "heartbeats are those of the default, ten in 3 s; the idle worlds were made at different moments.",
        "Bare asyncio is `sock_sendall` and `sock_recv_into` at the same places, what a program's own protocol on the",
        "event loop costs before it does anything. Blocking sockets serve one peer only.",
        "",
        *costs,
        "",
        "## Large messages",
        "",
        f"{options.costs} rounds of `benchmarks/bench_worlds_costs.py --large`: streams of messages of one size, 1 GiB",
        "each. Blocking sockets are `sendall` of the same messages. Of two senders all bytes are counted.",
        "",
        *large,
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
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--costs", type=int, default=5)
    parser.add_argument("--against", type=Path, help="another tree of this project, for the tables of costs")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--freezes", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} beside this file")
    parser.add_argument("--be", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        role, *numbers = options.be
        parts: dict[str, Callable[[], object]] = {
            "raw": lambda: raw_peer(int(numbers[0])),
            "loop": lambda: asyncio.run(loop_peer(int(numbers[0]))),
            "world": lambda: asyncio.run(world_peer(int(numbers[0]))),
            "reduce": lambda: asyncio.run(reducer(*(int(number) for number in numbers))),
            "sit": lambda: asyncio.run(sitter(int(numbers[0]), float(numbers[1]))),
        }
        with suppress(BrokenWorldError, ConnectionError):  # the measuring process has ended
            parts[role]()
        return
    table = asyncio.run(measure(options))
    print(table)
    if options.write:
        TABLE.write_text(table)


if __name__ == "__main__":
    main()
