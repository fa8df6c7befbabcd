"""Worlds beside MindSpore: tensors travel, and a peer that compiles a graph is not taken for dead.

This file is also the program of the compiling member: ``python test_worlds_mindspore.py PORT LAYERS``.
"""

import asyncio
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from ms_recover.worlds import SyncWorldManager, WorldManager
from tests.support.ports import free_port
from tests.support.sample import REPOSITORY

LONG = 400
LAYERS = 300
SECONDS = float(os.environ.get("WORLDS_COMPILE_SECONDS", "0"))
"""How long the member goes on compiling; one graph at least."""


def compile_a_graph(layers):
    import mindspore
    from mindspore import nn

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layers = nn.SequentialCell([nn.Dense(8, 8) for _ in range(layers)])

        def construct(self, x):
            return self.layers(x)

    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    return Net()(mindspore.Tensor.from_numpy(np.ones((1, 8), np.float32)))


def be_member(port, layers):
    import mindspore

    mindspore.set_device("CPU")
    with SyncWorldManager(heartbeat=1.0) as manager:
        manager.initialize_world("w", 1, 2, port=port, timeout=LONG)
        c = manager.communicator
        tensor = c.recv(0, world="w", as_tensor=True)
        assert tensor.dtype == mindspore.float32
        c.send(tensor.astype(mindspore.bfloat16), 0, world="w")
        got = c.all_reduce(tensor, world="w")
        assert isinstance(got, mindspore.Tensor)
        begin = time.monotonic()
        result = compile_a_graph(layers)
        while time.monotonic() - begin < SECONDS:  # each network is compiled anew
            result = compile_a_graph(layers)
        c.send(result, 0, world="w")
        c.barrier(world="w")


@pytest.mark.mindspore
def test_no_false_alarm_while_a_peer_compiles():
    pytest.importorskip("mindspore")
    port = free_port()

    async def main():
        async with WorldManager(heartbeat=1.0) as manager:
            await manager.initialize_world("w", 0, 2, port=port, timeout=LONG)
            c = manager.communicator
            values = np.array([1.5, -3.0], np.float32)
            await c.send(values, 1, world="w")
            came = await c.recv(1, world="w")  # bfloat16, which numpy has not
            assert (came.dtype, came.tolist()) == (np.float32, values.tolist())
            assert (await c.all_reduce(values, world="w")).tolist() == [3.0, -6.0]
            assert (await c.recv(1, world="w", timeout=LONG)).shape == (1, 8)
            await c.barrier(world="w")

    child = subprocess.Popen(
        [sys.executable, __file__, str(port), str(LAYERS)], env={**os.environ, "PYTHONPATH": str(REPOSITORY)}
    )
    try:
        asyncio.run(asyncio.wait_for(main(), LONG))
        child.wait(LONG)
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(LONG)


if __name__ == "__main__":
    be_member(*map(int, sys.argv[1:]))
