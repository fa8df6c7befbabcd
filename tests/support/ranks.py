"""Ranks that are threads of one process and exchange numbers as MindSpore's communication would."""

import threading
from concurrent.futures import ThreadPoolExecutor

from ms_recover.training.deciding.job import TrainingJob

WAIT = 20


class Exchange:
    """The connection between them."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=WAIT)
        self.sent = [()] * size

    def all_gather(self, rank, numbers):
        self.sent[rank] = tuple(numbers)
        self.barrier.wait()
        sent = list(self.sent)
        self.barrier.wait()
        assert len({len(row) for row in sent}) == 1, f"ranks sent different amounts: {sent}"
        return sent


def thread_jobs(size, see=lambda rank, numbers: None):
    """Return the job of each of some ranks; `see` is given each rank and the numbers that it sends."""
    exchange = Exchange(size)

    def job(rank):
        def all_gather(numbers):
            see(rank, numbers)
            return exchange.all_gather(rank, numbers)

        return TrainingJob(rank, size, all_gather)

    return [job(rank) for rank in range(size)]


def on_all(size, work):
    """Run `work(rank)` for all ranks at once; return what each returned or raised."""

    def guarded(rank):
        try:
            return work(rank)
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(guarded, range(size)))
