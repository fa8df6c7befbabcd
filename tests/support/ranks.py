"""Ranks that are threads of one process, telling each other what MindSpore's communication would."""

import threading
from concurrent.futures import ThreadPoolExecutor

from ms_recover.training.world import World

WAIT = 20


class Exchange:
    """What connects them."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=WAIT)
        self.told = [()] * size


class Ranks(World):
    """One of several ranks."""

    def __init__(self, rank, exchange):
        super().__init__(rank, len(exchange.told), True)
        object.__setattr__(self, "exchange", exchange)

    def gather(self, numbers):
        self.exchange.told[self.rank] = tuple(numbers)
        self.exchange.barrier.wait()
        told = list(self.exchange.told)
        self.exchange.barrier.wait()
        assert len({len(row) for row in told}) == 1, f"ranks told each other different things: {told}"
        return told


def worlds(size):
    exchange = Exchange(size)
    return [Ranks(rank, exchange) for rank in range(size)]


def on_all(size, work):
    """Run `work(rank)` for all ranks at once; return what each returned or raised."""

    def guarded(rank):
        try:
            return work(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, range(size)))
