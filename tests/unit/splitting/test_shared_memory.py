"""Tensors between workers, through shared memory."""

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.splitting.shared_memory import SharedMemory, put, take  # noqa: E402


@pytest.fixture
def path():
    memory = SharedMemory()
    yield memory.path("relay", "forward", 0, 0)
    memory.close()


def test_tensors_arrive_as_they_were_sent(path):
    drawn = np.random.default_rng(0)
    sent = [
        drawn.standard_normal((3, 5)).astype(np.float32),
        np.zeros((0, 4), np.float16),
        np.array(7, np.int64),
        drawn.standard_normal((5, 3)).T,
        np.array([True, False]),
    ]
    layout = put(path, sent)
    found = take(path, layout)
    for own, other in zip(found, sent, strict=True):
        assert (own.dtype, own.shape) == (other.dtype, other.shape)
        assert own.tobytes() == other.tobytes()
        assert own.flags.writeable
    assert put(path, []) == take(path, []) == []


def test_a_piece_serves_small_and_large_tensors_in_turn_and_keeps_no_hold_on_what_was_taken(path):
    large, small = np.arange(100_000), np.arange(3)
    first = take(path, put(path, [large]))[0]
    second = take(path, put(path, [small, small + 1]))
    assert np.array_equal(first, large)
    assert [each.tolist() for each in second] == [[0, 1, 2], [1, 2, 3]]


def test_tensors_of_mindspore_arrive_too(path):
    tensors = [ms.Tensor.from_numpy(np.arange(4, dtype=np.float32)), ms.Tensor([1.5, -3.0], ms.bfloat16)]
    plain, wide = take(path, put(path, tensors))
    assert plain.tolist() == [0, 1, 2, 3]
    assert wide.dtype == ms.bfloat16
    assert wide.astype(ms.float32).asnumpy().tolist() == [1.5, -3.0]
