"""A leader in several worlds and a worker in each: killing a worker breaks its world, the other world continues.

Start one process for each, in any order::

    python multiworld_asyncio.py --backend mindspore --worldinfo 1,0 --worldinfo 2,0 --addr 127.0.0.1   # the leader
    python multiworld_asyncio.py --backend mindspore --worldinfo 1,1 --addr 127.0.0.1                   # world 1
    python multiworld_asyncio.py --backend mindspore --worldinfo 2,1 --addr 127.0.0.1                   # world 2

Kill a worker: the leader continues to receive from the other. Start it again: the leader accepts it.
``--rank 0``, ``--rank 1`` and ``--rank 2`` are short for these three.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import logging
import sys
import time
from typing import Any, NoReturn

import numpy as np

from ms_recover.errors import MsRecoverError
from ms_recover.worlds import BrokenWorldError, WorldManager

LEADER, WORKER = 0, 1
BASE_PORT = 29500
WORLDS_OF_RANK = {0: [(1, LEADER), (2, LEADER)], 1: [(1, WORKER)], 2: [(2, WORKER)]}
OTHER_BACKENDS = ("nccl", "gloo", "hccl", "mccl")


class Parser(argparse.ArgumentParser):
    """Prints an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (--help lists the options)\n")


def make_tensor(backend: str, number: int) -> Any:
    values = np.full(4, number, np.float32)
    if backend == "numpy":
        return values
    import mindspore

    return mindspore.Tensor.from_numpy(values)


async def join(manager: WorldManager, world: int, rank: int, options: argparse.Namespace) -> None:
    """Become a member of a world; wait for the other member."""
    name = f"world{world}"
    await manager.initialize_world(name, rank, 2, addr=options.addr, port=BASE_PORT + world, timeout=3600)
    print(f"{name}: made, epoch {manager.worlds[name].epoch}", flush=True)


async def lead(manager: WorldManager, world: int, options: argparse.Namespace) -> None:
    """Receive from the worker of a world; when it is lost, wait for its replacement."""
    name, as_tensor, made = f"world{world}", options.backend == "mindspore", False
    while True:
        try:
            await join(manager, world, LEADER, options)
            made = True
            while True:
                tensor = await manager.communicator.recv(WORKER, world=name, as_tensor=as_tensor)
                print(f"{time.strftime('%X')} {name}: received {tensor}", flush=True)
        except BrokenWorldError as error:
            if not made and error.rank == LEADER:
                raise  # such as a port that is in use
            print(f"{time.strftime('%X')} {error}", flush=True)
            await asyncio.sleep(0.1)


async def work(manager: WorldManager, world: int, options: argparse.Namespace) -> None:
    """Send to the leader of a world until the world breaks."""
    await join(manager, world, WORKER, options)
    try:
        for number in range(options.steps):
            await manager.communicator.send(make_tensor(options.backend, number), LEADER, world=f"world{world}")
            await asyncio.sleep(options.interval)
    except BrokenWorldError as error:
        print(f"{time.strftime('%X')} {error}", flush=True)


async def run(options: argparse.Namespace) -> None:
    async with WorldManager(heartbeat=options.heartbeat) as manager:
        tasks = [
            asyncio.ensure_future((lead if rank == LEADER else work)(manager, world, options))
            for world, rank in options.worldinfo
        ]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


def world_and_rank(text: str) -> tuple[int, int]:
    try:
        world, rank = map(int, text.split(","))
    except ValueError:
        world, rank = -1, -1
    if rank not in (LEADER, WORKER) or not 0 < world < 1 << 15:
        raise argparse.ArgumentTypeError(f"{text!r} is not WORLD,RANK with the number of a world and rank 0 or 1")
    return world, rank


def parse() -> argparse.Namespace:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--backend",
        choices=["mindspore", "numpy", *OTHER_BACKENDS],
        default="mindspore",
        help="kind of the tensors; the other names are accepted for MultiWorld's command lines",
    )
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument(
        "--worldinfo",
        type=world_and_rank,
        action="append",
        metavar="WORLD,RANK",
        help="a world and this process's rank in it; once for each world",
    )
    which.add_argument("--rank", type=int, choices=sorted(WORLDS_OF_RANK), help="0: the leader of worlds 1 and 2")
    parser.add_argument("--addr", default="127.0.0.1", help="address of the leader")
    parser.add_argument("--steps", type=int, default=1_000_000, help="messages that a worker sends")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between them")
    parser.add_argument("--heartbeat", type=float, default=3.0, help="seconds after which a frozen peer is lost")
    options = parser.parse_args()
    options.worldinfo = options.worldinfo or WORLDS_OF_RANK[options.rank]
    if len({world for world, _ in options.worldinfo}) < len(options.worldinfo):
        parser.error("a process has one rank in a world: --worldinfo names a world twice")
    installed = importlib.util.find_spec("mindspore") is not None
    if options.backend in OTHER_BACKENDS:
        asked, options.backend = options.backend, "mindspore" if installed else "numpy"
        print(f"--backend {asked}: {options.backend} tensors cross host memory and TCP, not {asked}", flush=True)
    elif options.backend == "mindspore" and not installed:
        parser.error("mindspore is not installed: install it, or give --backend numpy")
    return options


def main() -> None:
    options = parse()
    if options.backend == "mindspore":
        import mindspore  # noqa: F401 (before the worlds are made: its import takes seconds)
    logging.getLogger("ms_recover.worlds.manager").setLevel(logging.ERROR)  # broken worlds are printed here
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(run(options))
        except MsRecoverError as error:
            sys.exit(f"multiworld_asyncio.py: {error}")


if __name__ == "__main__":
    main()
