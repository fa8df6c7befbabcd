"""What the code of a dataset remembers between samples, in datasets of MindSpore that are read."""

import functools
import itertools
import random
from collections import deque

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

import mindspore.dataset as ds  # noqa: E402

from ms_recover.training.sample_memory import SampleMemory, called_by_threads, held_values  # noqa: E402

_counter = [0]
_generator = np.random.default_rng(0)


class Rows:
    """Random access; remembers nothing, although it has values, arrays and functions."""

    def __init__(self):
        self.x, self.scale, self.more = np.ones((8, 2), np.float32), 2.0, {"large": np.zeros(1 << 20), "self": self}

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return (self.x[index] * np.float32(self.scale),)


class Slotted(Rows):
    __slots__ = ("read",)

    def __init__(self):
        super().__init__()
        self.read = 0

    def __getitem__(self, index):
        self.read += 1
        return super().__getitem__(index)


class Epochs:
    """An iterable that counts how often it was begun."""

    def __init__(self):
        self._begun = itertools.count(3)

    def __iter__(self):
        next(self._begun)
        yield from ((np.full(2, i, np.float32),) for i in range(8))


class Draws:
    """A function on samples that draws, by different generators."""

    def __init__(self, kind):
        self.rng = {"numpy": np.random.default_rng, "old": np.random.RandomState, "python": random.Random}[kind](1)

    def __call__(self, x):
        return x + np.float32(self.rng.random() if hasattr(self.rng, "random") else 0)

    def keeps(self, x, *, history=deque(maxlen=2)):  # noqa: B006 (such code is out there)
        history.append(1)
        return x


def by_closure():
    rng = np.random.default_rng(2)
    return lambda x: x + np.float32(rng.random())


def by_global(x):
    _counter[0] += 1
    return x * np.float32(_generator.random())


BY_GLOBAL = ["by_global: _counter[0]", "by_global: _generator"]


def by_global_random(x):
    return x * np.float32(np.random.random() * random.random())


def read(dataset, rows=3):
    for _ in zip(range(rows), dataset.create_tuple_iterator(num_epochs=1), strict=False):
        pass


def from_rows(source=None):
    return ds.GeneratorDataset(source or Rows(), ["x"], shuffle=False)


@pytest.mark.parametrize(
    ("make", "places"),
    [
        (from_rows, []),
        (lambda: from_rows().map(lambda x: x * np.float32(2), ["x"]).batch(2), []),
        (lambda: from_rows().map(by_global_random, ["x"]).batch(2), []),  # their states are saved
        (lambda: from_rows(Slotted()).batch(2), ["Slotted.read"]),
        (lambda: ds.GeneratorDataset(Epochs(), ["x"]).batch(2), ["Epochs._begun"]),
        (lambda: from_rows().map(Draws("numpy"), ["x"]).batch(2), ["Draws.rng"]),
        (lambda: from_rows().map([Draws("python"), Draws("old")], ["x"]).batch(2), ["Draws.rng", "Draws.rng'"]),
        (lambda: from_rows().map(by_closure(), ["x"]).batch(2), ["by_closure.<locals>.<lambda>: rng"]),
        (lambda: from_rows().map(by_global, ["x"]), BY_GLOBAL),
        (lambda: from_rows().map(functools.partial(Draws("old").__call__), ["x"]), ["partial.rng"]),
        (lambda: from_rows().map(Draws("numpy").keeps, ["x"]), ["len(Draws.keeps[0])"]),
        (lambda: from_rows().filter(lambda x: by_global(x) is not None), BY_GLOBAL),
        (
            lambda: from_rows().batch(2, per_batch_map=lambda x, info: ([by_global(one) for one in x],)),
            BY_GLOBAL,
        ),
        (lambda: ds.zip((from_rows(Slotted()), from_rows().rename("x", "y"))), ["Slotted.read"]),
    ],
)
def test_what_changes_while_samples_are_read(make, places):
    dataset = make()
    memory = SampleMemory(dataset)
    assert memory.changed() == {}
    read(dataset)
    changed = memory.changed()
    assert sorted(changed) == places
    anew = SampleMemory(make())
    if places != BY_GLOBAL and "keeps" not in str(places):  # these are the same objects once more
        assert anew.differs(changed) == []
    assert SampleMemory(dataset).differs(changed) == sorted(changed)


def test_another_beginning_is_seen():
    dataset = from_rows().map(Draws("numpy"), ["x"])
    memory = SampleMemory(dataset)
    read(dataset)
    other = Draws("numpy")
    other.rng.random()
    assert SampleMemory(from_rows().map(other, ["x"])).differs(memory.changed()) == ["Draws.rng"]


def test_looking_ends_and_harms_nothing():
    class Odd:
        __slots__ = ("deep", "missing")

        def __init__(self):
            self.deep = [[[[[[[[[[1]]]]]]]]]]

    source = Rows()
    source.many = [Odd() for _ in range(64)]
    source.huge = list(range(10**6))
    source.text = "x" * (1 << 20)
    assert len(held_values(from_rows(source))) < 500
    assert held_values(None) == {}


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (from_rows, False),
        (lambda: from_rows().map(by_global, ["x"], num_parallel_workers=1), False),
        (lambda: from_rows().map(by_global, ["x"], num_parallel_workers=2), True),
        (lambda: from_rows().map(by_global, ["x"], num_parallel_workers=2, python_multiprocessing=True), False),
        (lambda: ds.GeneratorDataset(Rows(), ["x"], num_parallel_workers=2, python_multiprocessing=False), True),
        (lambda: ds.NumpySlicesDataset([1, 2], ["x"]).batch(2), False),
    ],
)
def test_threads(make, expected):
    assert called_by_threads(make()) is expected
