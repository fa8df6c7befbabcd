"""Ranks that are threads of one process and exchange numbers as MindSpore's communication would."""

import threading
from concurrent.futures import ThreadPoolExecutor

from ms_recover.training.job import TrainingJob

WAIT = 20


class Exchange:
    """The connection between them."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=WAIT)
        self.sent = [()] * size


class ThreadJob(TrainingJob):
    """The job as one of several threads sees it."""

    def __init__(self, rank, exchange):
        super().__init__(rank, len(exchange.sent), True)
        object.__setattr__(self, "exchange", exchange)

    def all_gather(self, numbers):
        self.exchange.sent[self.rank] = tuple(numbers)
        self.exchange.barrier.wait()
        sent = list(self.exchange.sent)
        self.exchange.barrier.wait()
        assert len({len(row) for row in sent}) == 1, f"ranks sent different amounts: {sent}"
        return sent


def thread_jobs(size):
    """Return the job of each of some ranks."""
    exchange = Exchange(size)
    return [ThreadJob(rank, exchange) for rank in range(size)]


def on_all(size, work):
    """Run `work(rank)` for all ranks at once; return what each returned or raised."""

    def guarded(rank):
        try:
            return work(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, range(size)))
