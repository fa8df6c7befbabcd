"""Strike one world of a leader that is in two, and time when its error comes and what the other world notices.

Three processes: A is in w1 with B and in w2 with C. C sends to A all the time, and A counts: a missing message, and a
result of all_reduce that is not the sum, end the measurement. Each row strikes fresh processes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ms_recover.worlds import BrokenWorldError, WorldManager

TABLE = Path(__file__).with_name("world_faults.md")
LIMIT = 60.0
WAIT_FOR_S = 1.0


class Row(NamedTuple):
    """What A (and B) do in w1, which process is struck, and how."""

    words: str
    work: str
    victim: str
    how: signal.Signals
    times: int


ROWS = [
    Row("SIGKILL B, A in `recv`", "recv", "b", signal.SIGKILL, 10),
    Row("SIGKILL A, rank 0 of both worlds: B and C", "recv", "a", signal.SIGKILL, 10),
    Row("SIGKILL B during `all_reduce`", "all_reduce", "b", signal.SIGKILL, 10),
    Row("SIGSTOP B during `all_reduce`", "all_reduce", "b", signal.SIGSTOP, 3),
    Row("SIGSTOP B, A in `recv`", "recv", "b", signal.SIGSTOP, 3),
    Row(
        f"SIGSTOP B, A in `asyncio.wait_for(recv, {WAIT_FOR_S:g})`, again and again", "wait_for", "b", signal.SIGSTOP, 3
    ),
]
"""SIGSTOP: with the heartbeat of 3 s that is the default."""


def say(**words: Any) -> None:
    print(json.dumps({"at": time.monotonic(), **words}), flush=True)


async def use(manager: WorldManager, world: str, rank: int, work: str) -> None:
    """Do the work of one world until it breaks, and say when that is."""
    c, number, last, gap = manager.communicator, 0, time.monotonic(), 0.0
    try:
        while True:
            if work == "send":
                await c.send(np.array([number]), 0, world=world)
                await asyncio.sleep(0.002)
            elif work == "count":
                got = int((await c.recv(1, world=world))[0])
                if got != number:
                    say(wrong=f"message {got} instead of {number}")
                now = time.monotonic()
                gap, last = max(gap, now - last), now
                if number % 100 == 0:
                    say(longest_gap=gap)
                    gap = 0.0
            elif work == "all_reduce":
                result = await c.all_reduce(np.full(4, rank + 1 + number), world=world)
                if result.tolist() != [3 + 2 * number] * 4:
                    say(wrong=f"all_reduce gave {result.tolist()} instead of {3 + 2 * number}")
            elif work == "wait_for":
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(c.recv(1 - rank, world=world), WAIT_FOR_S)
            else:
                await c.recv(1 - rank, world=world)
            number += 1
    except BrokenWorldError as error:
        say(broken=world, cause=error.cause)


async def be(worlds: dict[str, list[Any]]) -> None:
    """Be a member of worlds, {name: [rank, port, work]}."""
    async with WorldManager() as manager:
        makes = (manager.initialize_world(name, at[0], 2, port=at[1], timeout=LIMIT) for name, at in worlds.items())
        await asyncio.gather(*makes)
        say(ready=True)
        await asyncio.gather(*(use(manager, name, at[0], at[2]) for name, at in worlds.items()))


def start(stack: ExitStack, **worlds: list[Any]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, __file__, "--be", json.dumps(worlds)], stdout=subprocess.PIPE, text=True
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


def hear(
    process: subprocess.Popen[str], key: str, value: Any = None, heard: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the next words of a process with this key; add all words up to it to `heard`."""
    assert process.stdout is not None
    for line in process.stdout:
        words = json.loads(line)
        if "wrong" in words:
            raise AssertionError(words["wrong"])
        if heard is not None:
            heard.append(words)
        if key in words and value in (None, words[key]):
            return dict(words)
    raise AssertionError(f"a process ended before {key}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def strike(row: Row) -> tuple[list[float], set[str], float]:
    """Return seconds from the signal to the errors, their causes, and the longest gap between messages of w2."""
    with ExitStack() as stack:
        one, two = free_port(), free_port()
        a = start(stack, w1=[0, one, row.work], w2=[0, two, "count"])
        b = start(stack, w1=[1, one, "recv" if row.work == "wait_for" else row.work])
        c = start(stack, w2=[1, two, "send"])
        for process in (a, b, c):
            hear(process, "ready")
        for _ in range(3):
            hear(a, "longest_gap")
        struck = time.monotonic()
        os.kill({"a": a, "b": b}[row.victim].pid, row.how)
        if row.victim == "a":
            ends = [hear(b, "broken", "w1"), hear(c, "broken", "w2")]
            return [end["at"] - struck for end in ends], {end["cause"] for end in ends}, float("nan")
        heard: list[dict[str, Any]] = []
        end = hear(a, "broken", "w1", heard)
        for _ in range(2):
            hear(a, "longest_gap", None, heard)
        gap = max(words.get("longest_gap", 0.0) for words in heard)
        return [end["at"] - struck], {end["cause"]}, gap


def measure() -> str:
    lines = [
        "# Faults of worlds in figures",
        "",
        f"Loopback, {os.cpu_count()} cores shared with other load, Python {sys.version.split()[0]}, heartbeat 3 s.",
        "`python benchmarks/bench_world_faults.py --write` measures again. A is in w1 with B, and in w2 with C,",
        "which sends to A every 2 ms. Every message of w2 is counted, every result is checked.",
        "",
        "| fault | times | error after, median | worst | cause | longest gap in w2 meanwhile |",
        "|---|---|---|---|---|---|",
    ]
    for row in ROWS:
        taken, causes, gaps = [], set[str](), []
        for _ in range(row.times):
            seconds, cause, gap = strike(row)
            taken += seconds
            causes |= cause
            gaps.append(gap)
        gap_words = "" if row.victim == "a" else f"{max(gaps) * 1e3:.0f} ms"
        times = f"{statistics.median(taken):.3f} s | {max(taken):.3f} s"
        lines.append(f"| {row.words} | {row.times} | {times} | {', '.join(sorted(causes))} | {gap_words} |")
        print(lines[-1], flush=True)
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} beside this file")
    parser.add_argument("--be", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        asyncio.run(be(options.be))
        return
    table = measure()
    if options.write:
        TABLE.write_text(table)


if __name__ == "__main__":
    main()
