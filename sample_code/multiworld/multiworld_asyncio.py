"""A leader in several worlds and a worker in each: killing a worker breaks its world, the other world continues.

Start one process for each, in any order::

    python multiworld.py --backend mindspore --worldinfo 1,0 --worldinfo 2,0 --addr 127.0.0.1   # the leader
    python multiworld.py --backend mindspore --worldinfo 1,1 --addr 127.0.0.1                   # worker of world 1
    python multiworld.py --backend mindspore --worldinfo 2,1 --addr 127.0.0.1                   # worker of world 2

Kill a worker: the leader continues to receive from the other. Start it again: the leader accepts it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import time
from typing import Any

import numpy as np

from ms_recover.worlds import BrokenWorldError, WorldManager

LEADER, WORKER = 0, 1
BASE_PORT = 29500


def make_tensor(backend: str, number: int) -> Any:
    values = np.full(4, number, np.float32)
    if backend == "numpy":
        return values
    import mindspore

    return mindspore.Tensor.from_numpy(values)


async def join(manager: WorldManager, name: str, rank: int, options: argparse.Namespace) -> None:
    """Become a member of a world; wait for the other member."""
    port = BASE_PORT + int(name)
    while True:
        try:
            await manager.initialize_world(f"world{name}", rank, 2, addr=options.addr, port=port, timeout=3600)
            print(f"world{name}: made, epoch {manager.worlds[f'world{name}'].epoch}", flush=True)
            return
        except BrokenWorldError as error:
            print(f"world{name}: {error}", flush=True)
            await asyncio.sleep(0.5)


async def lead(manager: WorldManager, name: str, options: argparse.Namespace) -> None:
    """Receive from the worker of a world; when it is lost, wait for its replacement."""
    world = f"world{name}"
    while True:
        await join(manager, name, LEADER, options)
        try:
            while True:
                tensor = await manager.communicator.recv(WORKER, world=world, as_tensor=options.backend == "mindspore")
                print(f"{time.strftime('%X')} {world}: received {tensor}", flush=True)
        except BrokenWorldError as error:
            print(f"{time.strftime('%X')} {error}", flush=True)


async def work(manager: WorldManager, name: str, options: argparse.Namespace) -> None:
    """Send to the leader of a world until the world breaks."""
    await join(manager, name, WORKER, options)
    try:
        for number in range(options.steps):
            await manager.communicator.send(make_tensor(options.backend, number), LEADER, world=f"world{name}")
            await asyncio.sleep(options.interval)
    except BrokenWorldError as error:
        print(f"{time.strftime('%X')} {error}", flush=True)


async def run(options: argparse.Namespace) -> None:
    async with WorldManager(heartbeat=options.heartbeat) as manager:
        await asyncio.gather(
            *((lead if rank == LEADER else work)(manager, name, options) for name, rank in options.worldinfo)
        )


def world_and_rank(text: str) -> tuple[str, int]:
    world, rank = map(int, text.split(","))
    if rank not in (LEADER, WORKER):
        raise ValueError(text)
    return str(world), rank


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=["mindspore", "numpy"], default="mindspore", help="kind of the tensors")
    parser.add_argument(
        "--worldinfo",
        type=world_and_rank,
        action="append",
        required=True,
        metavar="WORLD,RANK",
        help="a world and this process's rank in it; once for each world",
    )
    parser.add_argument("--addr", default="127.0.0.1", help="address of the leader")
    parser.add_argument("--steps", type=int, default=1_000_000, help="messages that a worker sends")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between them")
    parser.add_argument("--heartbeat", type=float, default=3.0, help="seconds after which a frozen peer is lost")
    options = parser.parse_args()
    if options.backend == "mindspore":
        import mindspore  # noqa: F401 (before the worlds are made: its import takes seconds)
    logging.getLogger("ms_recover.worlds.manager").setLevel(logging.ERROR)  # broken worlds are printed here
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(options))


if __name__ == "__main__":
    main()
