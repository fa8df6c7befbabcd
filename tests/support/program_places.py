"""Places where Python code keeps what the next sample depends on: each gives a function that changes what it is given,
another way at each call."""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from tests.support import program_numbers

Change = Callable[[np.ndarray], np.ndarray]

GENERATOR = np.random.default_rng(21)
ITERATOR = itertools.count(1)
COUNTS = dict.fromkeys(range(200), 0)
ARRAY = np.zeros(20000)
VARIABLE = "PROGRAM_SAMPLES"


def add(values: np.ndarray, number: float) -> np.ndarray:
    """Return the values with a part of a number added."""
    return values + np.float32(0.1 * number)


def numbers(seed: int) -> Iterator[float]:
    """Yield numbers without end."""
    rng = np.random.default_rng(seed)
    while True:
        yield float(rng.normal())


def by_module(values: np.ndarray) -> np.ndarray:
    return add(values, GENERATOR.normal())


def by_other_module(values: np.ndarray) -> np.ndarray:
    return add(values, program_numbers.next_number())


class ByClass:
    rng = np.random.default_rng(22)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return add(values, type(self).rng.normal())


class ByInstance:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(23)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return add(values, self.rng.normal())


class BySlots:
    __slots__ = ("rng",)

    def __init__(self) -> None:
        self.rng = random.Random(24)

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return add(values, self.rng.random())


def by_closure() -> Change:
    rng = np.random.default_rng(25)
    return lambda values: add(values, rng.normal())


def by_default(values: np.ndarray, rng: np.random.Generator = np.random.default_rng(26)) -> np.ndarray:  # noqa: B008
    return add(values, rng.normal())


def by_function(values: np.ndarray) -> np.ndarray:
    by_function.calls += 1
    return add(values, by_function.calls % 7)


by_function.calls = 0


class ByFile:
    """Reads on in a file that is open, a number a line."""

    def __init__(self, path: Path) -> None:
        source = numbers(27)
        path.write_text("".join(f"{next(source)!r}\n" for _ in range(2000)))
        self._file = path.open()

    def __call__(self, values: np.ndarray) -> np.ndarray:
        return add(values, float(self._file.readline()))


class ByDisk:
    """Counts in a file, which the next process finds."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, values: np.ndarray) -> np.ndarray:
        calls = int(self._path.read_text()) + 1 if self._path.exists() else 1
        self._path.write_text(str(calls))
        return add(values, calls % 7)


def by_generator_object() -> Change:
    source = numbers(28)
    return lambda values: add(values, next(source))


def by_module_iterator(values: np.ndarray) -> np.ndarray:
    return add(values, next(ITERATOR) % 7)


def by_large_dict(values: np.ndarray) -> np.ndarray:
    key = min(COUNTS, key=COUNTS.__getitem__)
    COUNTS[key] += 1
    return add(values, COUNTS[key] + key % 7)


def by_large_array(values: np.ndarray) -> np.ndarray:
    ARRAY[150] += 1
    return add(values, ARRAY[150] % 7)


def by_bytes() -> Change:
    calls = bytearray(1)

    def change(values: np.ndarray) -> np.ndarray:
        calls[0] = (calls[0] + 1) % 7
        return add(values, calls[0])

    return change


def by_queue() -> Change:
    waiting: SimpleQueue[int] = SimpleQueue()
    for number in range(7):
        waiting.put(number)

    def change(values: np.ndarray) -> np.ndarray:
        number = waiting.get()
        waiting.put(number)
        return add(values, number)

    return change


@functools.cache
def _remembered(number: int) -> int:
    return number % 7


def by_cache(values: np.ndarray) -> np.ndarray:
    return add(values, _remembered(_remembered.cache_info().currsize))


def by_environment(values: np.ndarray) -> np.ndarray:
    calls = int(os.environ.get(VARIABLE, "0")) + 1
    os.environ[VARIABLE] = str(calls)
    return add(values, calls % 7)


def by_numpy(values: np.ndarray) -> np.ndarray:
    return add(values, np.random.normal())


def by_python(values: np.ndarray) -> np.ndarray:
    return add(values, random.random())


def make_change(place: str, folder: Path) -> Change:
    """Return a function that keeps something in a place; files lie in `folder`."""
    made: dict[str, Callable[[], Change]] = {
        "class": ByClass,
        "instance": ByInstance,
        "slots": BySlots,
        "closure": by_closure,
        "partial": lambda: functools.partial(_by_argument, np.random.default_rng(29)),
        "file": lambda: ByFile(folder / "numbers.txt"),
        "disk": lambda: ByDisk(folder / "calls.txt"),
        "generator object": by_generator_object,
        "bytes": by_bytes,
        "queue": by_queue,
    }
    return made[place]() if place in made else globals()[f"by_{place.replace(' ', '_')}"]


def _by_argument(rng: np.random.Generator, values: np.ndarray) -> np.ndarray:
    return add(values, rng.normal())


class Stream:
    """A source that reads its rows in an open file, each epoch behind the one before."""

    def __init__(self, path: Path, count: int) -> None:
        rng = np.random.default_rng(31)
        rows = rng.standard_normal((40 * count, 7)).astype(np.float32)
        path.write_text("".join(" ".join(map(repr, row.tolist())) + "\n" for row in rows))
        self._file, self._count = path.open(), count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for _ in range(self._count):
            row = np.array(self._file.readline().split(), np.float32)
            yield row[:4].reshape(4, 1, 1), row[4:]


class DrawnOut:
    """A source that takes its rows out of a generator object without end."""

    def __init__(self, count: int) -> None:
        self._rows, self._count = zip(*[numbers(32)] * 7, strict=True), count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for row in itertools.islice(self._rows, self._count):
            yield np.array(row[:4], np.float32).reshape(4, 1, 1), np.array(row[4:], np.float32)


def counted(count: int) -> Callable[[], Iterator[tuple[np.ndarray, np.ndarray]]]:
    """Return a generator function whose rows follow from an iterator of this module."""

    def rows() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number in itertools.islice(ITERATOR, count):
            values = np.random.default_rng(number).standard_normal(7).astype(np.float32)
            yield values[:4].reshape(4, 1, 1), values[4:]

    return rows
