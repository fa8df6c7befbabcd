"""Values of programs in state files: types, elements and bytes come back; anything else is refused with its place."""

import math

import numpy as np
import pytest

from ms_recover.errors import UsageError
from ms_recover.formats.state import decode_state, encode_state

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from ms_recover.training.state_values import from_state, to_state  # noqa: E402


def there_and_back(value):
    return from_state(decode_state(encode_state({"value": to_state(value, "value")}))["value"])


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool_", "int8", "uint8", "int16", "uint16", "int32", "uint32"),
        *("int64", "uint64", "float16", "float32", "float64"),
    ],
)
def test_arrays_and_tensors_come_back_to_the_bit(dtype):
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(dtype)
    back = there_and_back(array)
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    assert back.flags.writeable
    tensor = there_and_back(ms.Tensor(array))
    assert isinstance(tensor, ms.Tensor)
    assert (tensor.dtype, tensor.shape) == (getattr(ms, dtype), array.shape)
    assert tensor.asnumpy().tobytes() == array.tobytes()


@pytest.mark.parametrize("shape", [(), (1,), (0, 3)])
def test_shapes_come_back(shape):
    assert there_and_back(np.ones(shape, np.float32)).shape == shape
    for dtype in (ms.float32, ms.bfloat16, ms.bool_):
        back = there_and_back(ms.Tensor(np.ones(shape, np.float32), dtype))
        assert (back.shape, back.dtype) == (shape, dtype)


def test_bfloat16_comes_back():
    tensor = there_and_back(ms.Tensor([1.5, -2], ms.bfloat16))
    assert tensor.dtype == ms.bfloat16
    assert tensor.float().asnumpy().tolist() == [1.5, -2]


@pytest.mark.parametrize("value", [np.float64(0.1), np.int64(-3), np.bool_(True), np.float32(math.inf), 0.1, True, 3])
def test_scalars_keep_their_type(value):
    back = there_and_back(value)
    assert type(back) is type(value)
    assert back == value


def test_a_parameter_comes_back_as_a_tensor_and_a_state_does_not_change_with_its_source():
    parameter, array = ms.Parameter(ms.Tensor([1.0, 2.0]), name="weight"), np.zeros(2)
    state = to_state([parameter, array, {"list": [1]}], "value")
    parameter.set_data(ms.Tensor([5.0, 5.0]))
    array += 1
    tensor, zeros, _ = from_state(state)
    assert tensor.asnumpy().tolist() == [1, 2]
    assert zeros.tolist() == [0, 0]


def test_byte_orders_of_other_machines_are_taken():
    back = there_and_back(np.array([1, 2], ">i4"))
    assert back.tolist() == [1, 2]
    assert back.dtype == np.int32


class Text(str):
    """No plain text."""


def test_likes_of_plain_values_become_plain():
    back = there_and_back({Text("a"): Text("b"), "set": frozenset({1})})
    assert back == {"a": "b", "set": {1}}
    assert {type(part) for pair in back.items() for part in pair} == {str, set}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), r"^value is a object, which cannot be saved; save numbers"),
        ({"a": [0, lambda: 1]}, r"^value\['a'\]\[1\] is a function"),
        ({object(): 1}, r"^a name in value is a object"),
        (np.array(["text"]), r"^value is a numpy array of <U4"),
        (np.array([1j]), "complex128"),
        (np.array([object()]), "numpy array of object"),
        (np.random.default_rng(1), "Generator, which cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_its_place(value, reason):
    with pytest.raises(UsageError, match=reason):
        to_state(value, "value")


def test_what_holds_itself_is_refused():
    value = []
    value.append(value)
    with pytest.raises(UsageError, match="nested more than 64 deep"):
        to_state(value, "value")
