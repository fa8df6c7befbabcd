import sys
from array import array

import numpy as np
import pytest

from ms_recover.errors import UsageError
from ms_recover.worlds import tensors
from ms_recover.worlds.tensors import Raw


@pytest.mark.parametrize("dtype", [name for name in tensors.DTYPES if name != "bfloat16"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0), (2, 3, 4)])
def test_arrays_keep_type_shape_and_values(dtype, shape):
    array = (np.arange(int(np.prod(shape))) % 2).astype(dtype).reshape(shape)
    back = tensors.to_array(tensors.raw(array))
    assert (back.dtype, back.shape) == (array.dtype, array.shape)
    assert np.array_equal(back, array)


def test_contiguous_arrays_are_not_copied():
    array = np.arange(12.0).reshape(3, 4)
    raw = tensors.raw(array)
    array[0, 0] = 42
    assert tensors.to_array(raw)[0, 0] == 42


def test_other_layouts_and_byte_orders_are_converted():
    array = np.arange(12.0).reshape(3, 4)
    assert np.array_equal(tensors.to_array(tensors.raw(array.T)), array.T)
    assert np.array_equal(tensors.to_array(tensors.raw(array.astype(">f8"))), array)
    assert np.array_equal(tensors.to_array(tensors.raw(array[:, ::2])), array[:, ::2])


@pytest.mark.parametrize(
    "wrong", [None, [1, 2], "text", np.array(["text"]), np.array([object()]), np.zeros(1, "M8[s]")]
)
def test_what_cannot_be_sent_is_refused(wrong):
    with pytest.raises(UsageError):
        tensors.raw(wrong)


def test_buffers_are_sent_and_filled_without_a_copy():
    for buffer in (b"abcd", bytearray(b"abcd"), memoryview(b"abcd")):
        raw = tensors.raw(buffer)
        assert (raw.dtype, raw.shape, bytes(raw.data)) == ("uint8", (4,), b"abcd")
    numbers = memoryview(array("Q", [1, 2]))
    raw, filled = tensors.target(numbers)
    assert (raw.dtype, raw.shape) == ("uint64", (2,))
    raw.data[:8] = (7).to_bytes(8, sys.byteorder)
    assert filled() is numbers
    assert list(numbers) == [7, 2]


def test_a_plain_array_is_received_into_as_it_is_and_others_take_the_longer_way():
    kinds = [np.dtype(name) for name in tensors.DTYPES if name != "bfloat16"] + [np.dtype("longlong")]
    plain = [np.zeros(shape, kind) for kind in kinds for shape in ((), (3,), (2, 3))]
    plain += [np.zeros((2, 2)).view(np.recarray)]
    for given in plain:
        (raw, filled), found = tensors.target(given), tensors.writable(given)
        assert filled() is given
        if found is not None:
            assert (found.dtype, found.shape, len(found.data)) == (raw.dtype, raw.shape, len(raw.data))
            found.data[:] = bytes([1]) * len(raw.data)
            assert bytes(raw.data) == bytes(np.asarray(given).tobytes()) == bytes(found.data)
    assert all(tensors.writable(np.zeros(3, kind)) for kind in kinds[:-1])
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for wrong in (None, b"abc", bytearray(3), frozen, np.zeros((3, 4)).T, np.zeros(3, ">f8"), np.zeros(3, "M8[s]")):
        assert tensors.writable(wrong) is None


def test_what_cannot_be_filled_is_refused():
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for wrong in (None, b"abc", frozen, np.zeros((3, 4)).T, np.zeros(3, ">f8"), np.array(["x"])):
        with pytest.raises(UsageError):
            tensors.target(wrong)


@pytest.mark.parametrize(
    ("operation", "dtype", "want"),
    [
        ("sum", "float32", [4, 6]),
        ("prod", "int64", [3, 8]),
        ("max", "uint8", [3, 4]),
        ("min", "float16", [1, 2]),
        ("sum", "complex64", [4, 6]),
    ],
)
def test_reductions_are_made_in_the_element_type(operation, dtype, want):
    into, other = tensors.copied(tensors.raw(np.array([1, 2], dtype))), tensors.raw(np.array([3, 4], dtype))
    tensors.accumulate(operation, dtype, into.data, other.data)
    assert tensors.to_array(into).tolist() == want


def bits(*values):
    return np.array(values, np.uint16).view(np.uint8).data


def test_bfloat16_is_rounded_to_the_nearest_and_keeps_nan():
    # 1 + 2**-8 lies half-way between 1 and the next bfloat16: to even; 1 + 3 * 2**-8 goes up
    into = tensors.allocate(8)
    into[:] = bits(0x3F80, 0x3F81, 0x7FC0, 0x7F80)
    tensors.accumulate("sum", "bfloat16", into, bits(0x3B80, 0x3B80, 0x3F80, 0xFF80))
    assert np.frombuffer(into, np.uint16).tolist() == [0x3F80, 0x3F82, 0x7FC0, 0x7FC0]
    assert tensors.to_array(Raw("bfloat16", (2,), bits(0x3FC0, 0xC040))).tolist() == [1.5, -3.0]


@pytest.mark.mindspore
def test_mindspore_tensors_survive_as_bytes():
    mindspore = pytest.importorskip("mindspore")
    values = np.array([[1.5, -3.0], [0.0, 4.0]], np.float32)
    for dtype in (mindspore.float32, mindspore.float16, mindspore.bfloat16):
        tensor = mindspore.Tensor.from_numpy(values).astype(dtype)
        raw = tensors.raw(tensor)
        assert (raw.dtype, raw.shape, len(raw.data)) == (
            str(dtype).lower(),
            (2, 2),
            4 * tensors.DTYPES[raw.dtype],
        )
        back = tensors.to_tensor(tensors.copied(raw))
        assert back.dtype == dtype
        assert np.array_equal(back.astype(mindspore.float32).asnumpy(), values)
        out = mindspore.Tensor.from_numpy(np.zeros((2, 2), np.float32)).astype(dtype)
        target, finish = tensors.target(out)
        target.data[:] = raw.data
        assert finish() is out
        assert np.array_equal(out.astype(mindspore.float32).asnumpy(), values)
