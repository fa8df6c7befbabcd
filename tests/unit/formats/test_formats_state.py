"""State files: every value comes back as it was, and nothing else is read."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest

from ms_recover.errors import FormatError
from ms_recover.formats import state
from ms_recover.formats.state import MAX_DEPTH, decode_state, encode_state
from ms_recover.model.state import StateTensor

TENSOR = StateTensor("tensor", "BFloat16", (2, 1), b"\x01\x02\x03\x04")
ARRAY = StateTensor("array", "UInt32", (2,), bytes(8))
SCALAR = StateTensor("scalar", "Float64", (), b"12345678")


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -1, 1 << 200, "", "naïve \0 \ud800", 0.1, -0.0, 5e-324, float("inf"), -float("inf")),
        *(b"", b"\0\xff", [], [1, [2]], (), (1, (2, [3])), {1, 2}, {}, {"a": {"b": None}}),
        *({1: 2, (3, "x"): 4, None: 5}, {"$float": "nan"}, {"$": 1, "b": 2}, {"": []}),
        *(TENSOR, [ARRAY, SCALAR], {"deep": [(TENSOR, {"x": SCALAR})]}, StateTensor("array", "Int8", (0, 3), b"")),
    ],
)
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    found = decode_state(encode_state({"value": value}))
    assert found == {"value": value}
    assert repr(found) == repr({"value": value})


def test_nan_comes_back() -> None:
    found = decode_state(encode_state({"value": [float("nan")]}))["value"]
    assert len(found) == 1
    assert math.isnan(found[0])


def test_equal_values_give_equal_bytes() -> None:
    values = {"x": [TENSOR, {"y": ARRAY}], "z": 1.5}
    assert encode_state(values) == encode_state(dict(values))


class Number(int):
    """No plain int."""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"a": [1, object()]}, r"value\.a\[1\]: object cannot be saved"),
        (Number(1), "value: Number cannot be saved"),
        (StateTensor("tensor", "Complex128", (1,), bytes(16)), "value: tensors of Complex128 cannot be saved"),
        ({object(): 1}, "object cannot be saved"),
    ],
)
def test_what_cannot_be_saved_is_refused_with_its_place(value: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        encode_state({"value": value})


def test_too_deep_and_too_many_values_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match=f"nested more than {MAX_DEPTH} deep"):
        encode_state({"value": value})
    monkeypatch.setattr(state, "MAX_ENTRIES", 10)
    with pytest.raises(ValueError, match="large values must be tensors or arrays"):
        encode_state({"value": list(range(20))})


def _file(text: bytes, metadata: dict[str, str] | None = None, name: str = "state") -> bytes:
    header = {
        "__metadata__": {"ms_recover": "state 1"} if metadata is None else metadata,
        name: {"dtype": "U8", "shape": [len(text)], "data_offsets": [0, len(text)]},
    }
    head = json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + text


def test_files_made_by_hand_are_read() -> None:
    assert decode_state(_file(b'{"a": {"$tuple": [1]}}')) == {"a": (1,)}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (_file(b"{}")[:-1], "too short"),
        (_file(b"{}") + b"x", "junk"),
        (_file(b"{}", {}), "metadata"),
        (_file(b"{}", {"ms_recover": "state 2"}), "metadata"),
        (_file(b"{}", {"ms_recover": "state 1", "x": "y"}), "metadata"),
        (_file(b"{}", name="other"), "cut or damaged"),
        (_file(b"[]"), "not a JSON object"),
        (_file(b'{"$tuple": [1]}'), "is no object"),
        (_file(b'{"$dict": [[1, 2]]}'), "is no object"),
        (_file(b'{"a": 1, "a": 2}'), "occurs twice"),
        (_file(b'{"a": NaN}'), "number"),
        (_file(b'{"a": "\xff"}'), "UTF-8"),
        (_file(b'{"a": {"$float": "1"}}'), "stands for no value"),
        (_file(b'{"a": {"$float": []}}'), "stands for no value"),
        (_file(b'{"a": {"$tensor": "7"}}'), "stands for no value"),
        (_file(b'{"a": {"$tensor": 7}}'), "stands for no value"),
        (_file(b'{"a": {"$bytes": "a b"}}'), "stands for no value"),
        (_file(b'{"a": {"$bytes": 1}}'), "stands for no value"),
        (_file(b'{"a": {"$set": [[]]}}'), "stands for no value"),
        (_file(b'{"a": {"$dict": [[1]]}}'), "stands for no value"),
        (_file(b'{"a": {"$dict": [[[], 1]]}}'), "stands for no value"),
        (_file(b'{"a": {"$tuple": {}}}'), "stands for no value"),
        (_file(b'{"a": {"$object": []}}'), "stands for no value"),
        (_file(b'{"a": {"$tuple": [], "b": 1}}'), "stands for no value"),
        (_file(b'{"a": ' + b"[" * 1000 + b"]" * 1000 + b"}"), "too deeply"),
        (_file(b'{"a": ' + b"[" * 200000 + b"]" * 200000 + b"}"), "too deeply"),
    ],
)
def test_anything_else_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        decode_state(data)


def test_a_changed_byte_never_raises_anything_else() -> None:
    data = encode_state({"a": [1, 2.5, "x"], "t": TENSOR, "d": {1: ARRAY}})
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x15
        with contextlib.suppress(FormatError):
            decode_state(bytes(changed))


@pytest.mark.parametrize(
    "equal",
    [
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        ({1, 2, "x"}, {"x", 2, 1}),
        ([[1], {"a": {3, 4}}], [[1], {"a": {4, 3}}]),
        (TENSOR, StateTensor("tensor", "BFloat16", (2, 1), b"\x01\x02\x03\x04")),
    ],
)
def test_equal_values_have_one_fingerprint(equal: tuple[Any, Any]) -> None:
    first, second = (state.fingerprint(value) for value in equal)
    assert first == second
    assert len(first) == 16


def test_different_values_have_different_fingerprints() -> None:
    values: list[Any] = [
        *(None, False, 0, "", b"", [], (), {}, set(), 0.0, -0.0, float("nan"), "0", "None", "\ud800"),
        *([1, 2], [2, 1], (1, 2), {1, 2}, {1: 2}, {2: 1}, {"1": 2}, [[1], 2], [[2], 1], ([1], 2), [1, [2]]),
        *({"a": {"b": 1}}, {"a": {"b": 2}}, {"a": ["b", 1]}, [{"a": 1}], [{"a": 2}], ["{'a': 1}"], {"x"}, {"y"}),
        *(TENSOR, ARRAY, SCALAR, StateTensor("array", "UInt32", (2,), b"\1" + bytes(7))),
        *(StateTensor("array", "UInt32", (2, 1), bytes(8)), StateTensor("array", "Int32", (2,), bytes(8))),
    ]
    assert len({state.fingerprint(value) for value in values}) == len(values)
