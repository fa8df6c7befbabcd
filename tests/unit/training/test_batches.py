"""Digests of batches: equal where every value is, another one where a single byte, type or shape differs."""

import random

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.training import batches  # noqa: E402
from ms_recover.training.batches import difference, digest_batch, from_record, to_record  # noqa: E402

DTYPES = [np.float32, np.float64, np.float16, np.int8, np.int64, np.bool_, np.uint16]


def draw_column(rng):
    kind = rng.choice(["tensor", "array", "text", "number", "bfloat16"])
    shape = tuple(rng.randint(1, 3) for _ in range(rng.randint(0, 3)))
    if kind == "text":
        return np.array([rng.choice("abc") * rng.randint(1, 5) for _ in range(rng.randint(1, 4))])
    if kind == "number":
        return rng.choice([rng.random(), rng.randint(0, 9), rng.choice("xyz")])
    values = np.array(np.random.default_rng(rng.random().hex().encode()[-1]).random(shape) * 9)
    if kind == "bfloat16":
        return ms.Tensor(values.astype(np.float32), ms.bfloat16)
    values = values.astype(rng.choice(DTYPES))
    return ms.Tensor(values) if kind == "tensor" else values


def copied(value):
    if isinstance(value, ms.Tensor):
        return value.copy()
    return value.copy() if isinstance(value, np.ndarray) else value


def changed(value, rng):
    """Return another value than this one: in one element, in its type or in its shape."""
    if isinstance(value, (str, int, float)):
        return f"{value}!"
    if isinstance(value, ms.Tensor):
        return value.reshape((1, *value.shape))
    how = rng.choice(["element", "shape", "type"])
    if value.dtype.kind == "U" or how == "shape":
        return value.reshape((1, *value.shape))
    if how == "type":
        return value.astype(np.complex64)
    other = value.copy().reshape(-1)
    data = other.view(np.uint8)
    data[rng.randrange(len(data))] ^= 1
    return other.reshape(value.shape)


@pytest.mark.parametrize("seed", range(60))
def test_a_batch_is_equal_to_its_copy_and_to_no_other_one(seed):
    rng = random.Random(seed)
    columns = [draw_column(rng) for _ in range(rng.randint(1, 5))]
    before = from_record(to_record(digest_batch(columns)))
    assert difference(before, digest_batch(tuple(map(copied, columns)))) is None
    odd = rng.randrange(len(columns))
    other = [changed(one, rng) if index == odd else copied(one) for index, one in enumerate(columns)]
    names = [f"c{index}" for index in range(len(columns))]
    assert difference(before, digest_batch(other), names).startswith(f"column 'c{odd}' ")
    assert (
        difference(before, digest_batch([*columns, 1]))
        == f"it has {len(columns) + 1} column(s), and had {len(columns)}"
    )


def test_dicts_are_compared_by_their_names():
    before = digest_batch({"x": np.zeros(2), "y": {"a": 1, "b": [2, 3]}})
    assert difference(before, digest_batch({"y": {"b": [2, 3], "a": 1}, "x": np.zeros(2)})) is None
    assert difference(before, digest_batch({"x": np.ones(2), "y": {"a": 1, "b": [2, 4]}})) == (
        "column 'x' has other values; column \"y['b']\" has other values"
    )


def test_of_a_large_batch_the_first_bytes_count(monkeypatch):
    monkeypatch.setattr(batches, "MOST_BYTES", 100)
    first, last = np.zeros(60, np.uint8), np.zeros(60, np.uint8)
    before = digest_batch([first, last, first])
    for index, seen in ((39, True), (40, False)):
        other = last.copy()
        other[index] = 1
        assert (difference(before, digest_batch([first, other, first])) is not None) is seen
    assert difference(before, digest_batch([first, last, first[:9]])) == "column 3 is uint8 [9], and was uint8 [60]"
