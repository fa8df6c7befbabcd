"""Safetensors slices: what the header tells, and every way in which it can lie."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ms_recover.formats import records, safetensors
from ms_recover.formats.header import find_problem, parse_header, read_header
from ms_recover.model.slices import ByteRange, Parameter, SliceHeader

Put = Callable[..., Path]
A = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
B = {"dtype": "I16", "shape": [], "data_offsets": [8, 10]}
NAME = "net-1_1.safetensors"


def tensors(header: Any, contents: bytes = b"0123456789", length: int | None = None) -> bytes:
    """A safetensors file; the header as an object, or as it shall stand."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + contents


def parse(whole: bytes, **options: Any) -> SliceHeader:
    return parse_header(lambda at, length: whole[at : at + length], len(whole), name=NAME, **options)


def only_problem(whole: bytes, **options: Any) -> str:
    header = parse(whole, **options)
    assert header.kind == "safetensors"
    assert len(header.problems) == 1, header.problems
    assert header.problems[0].isprintable()
    assert len(header.problems[0]) < 500
    for ranges in header.contents:
        assert all(piece.end <= len(whole) for piece in ranges)
    return header.problems[0]


# --- sound ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["types", "crc", "deduplicated"])
def test_agrees_with_what_mindspore_loaded(data: Path, name: str) -> None:
    oracle = json.loads((data / "safetensors" / "oracle.json").read_text())
    header = read_header(data / "safetensors" / f"{name}.safetensors")
    assert (header.kind, header.problems) == ("safetensors", ())
    assert {p.name: [p.dtype, list(p.shape)] for p in header.parameters} == oracle[f"{name}.safetensors"]


def test_metadata_are_kept(data: Path) -> None:
    folder = data / "safetensors"
    assert dict(read_header(folder / "types.safetensors").metadata) == {"format": "ms", "of.qint4x2": "Int4"}
    deduplicated = read_header(folder / "deduplicated.safetensors")
    assert dict(deduplicated.metadata) == {"format": "ms", "remove_redundancy": "True"}
    crc = read_header(folder / "crc.safetensors")
    assert dict(crc.metadata)["crc_num"] == str(crc.crc)


def test_contents_are_where_the_ranges_say(put: Put) -> None:
    whole = tensors({"__metadata__": {"z": "1", "a": "2"}, "a": A, "b": B})
    header = read_header(put(whole, NAME))
    assert header.parameters == (Parameter("a", "Float32", (2,), 8), Parameter("b", "Int16", (), 2))
    begin = len(whole) - 10
    assert header.contents == ((ByteRange(begin, 8),), (ByteRange(begin + 8, 2),))
    assert header.metadata == (("z", "1"), ("a", "2"))
    assert header == SliceHeader(
        "safetensors", len(whole), header.parameters, header.contents, metadata=header.metadata
    )


def test_types_have_the_names_of_mindspore(data: Path) -> None:
    assert set(safetensors.DTYPES.values()) <= {
        p.dtype
        for name in ("types", "complex")
        for p in read_header(data / f"safetensors/{name}.safetensors").parameters
    } | {"BFloat16"}
    whole = tensors({"w": {"dtype": "BF16", "shape": [5], "data_offsets": [0, 10]}})
    assert parse(whole).parameters == (Parameter("w", "BFloat16", (5,), 10),)


def test_tensors_without_elements_take_no_place() -> None:
    empty = {"dtype": "F64", "shape": [0, 3], "data_offsets": [0, 0]}
    whole = tensors({"first": empty, "a": A, "b": B, "last": empty | {"data_offsets": [10, 10]}})
    header = parse(whole)
    assert header.problems == ()
    assert [p.nbytes for p in header.parameters] == [0, 8, 2, 0]


def test_crc_covers_names_and_contents_in_the_order_of_names(data: Path, put: Put) -> None:
    path = data / "safetensors" / "crc.safetensors"
    header = read_header(path)
    assert header.crc is not None
    assert find_problem(path, header) is None
    assert "stopped" in (find_problem(path, header, stop=lambda: True) or "")
    for at in (len(path.read_bytes()) - 1, header.contents[0][0].start):
        damaged = bytearray(path.read_bytes())
        damaged[at] ^= 1
        found = put(bytes(damaged), NAME)
        assert "the metadata say" in (find_problem(found, read_header(found)) or "")
    crc = zlib.crc32(b"01234567", zlib.crc32(b"z", zlib.crc32(b"89", zlib.crc32(b"a"))))
    found = put(tensors({"__metadata__": {"crc_num": str(crc)}, "z": A, "a": B | {"shape": [1]}}), NAME)
    assert find_problem(found, read_header(found)) is None
    assert read_header(found).crc == crc


def test_crc_takes_zeros_for_scalar_integers(put: Put) -> None:
    for value, dtype, counted in (
        (3, "I64", True),
        (3 << 20 | 5, "U32", True),
        (0, "U8", True),
        (7, "F64", False),
        (-1, "I16", None),
        (1 << 62, "U64", None),
    ):
        size = int(dtype[1:]) // 8
        contents = value.to_bytes(size, "little", signed=value < 0)
        crc = zlib.crc32(bytes(value) if counted else contents, zlib.crc32(b"n"))
        info = {"dtype": dtype, "shape": [], "data_offsets": [0, size]}
        path = put(tensors({"__metadata__": {"crc_num": str(crc)}, "n": info}, contents), NAME)
        problem = find_problem(path, read_header(path))
        assert problem == (f"'n' is {value}, and MindSpore has no CRC of that" if counted is None else None)


def test_contents_are_never_read(data: Path) -> None:
    asked: list[tuple[int, int]] = []
    text = json.dumps({"w": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}}).encode()
    whole = len(text).to_bytes(8, "little") + text

    def read_at(offset: int, length: int) -> bytes:
        asked.append((offset, length))
        return (whole + bytes(5000))[offset : offset + length]

    header = parse_header(read_at, len(whole) + (1 << 42))
    assert header.problems == ()
    assert sum(length for _, length in asked) < 10_000


def test_expected_names() -> None:
    whole = tensors({"a": A, "b": B})
    assert parse(whole, expected=["a", "b"]).problems == ()
    assert only_problem(whole, expected=["a", "b", "c"]).startswith("1 of 3 expected parameters are missing")


def test_the_kind_is_told_by_contents_and_the_name_must_agree(data: Path, put: Put) -> None:
    sound = tensors({"a": A, "b": B})
    for name in ("net-1_1.tmp", "net", ".net-1_1.safetensors.ms_recover.tmp"):
        assert read_header(put(sound, name)).problems == ()
    (problem,) = read_header(put(sound, "net-1_1.ckpt")).problems
    assert problem == "the file is a safetensors file, and its name ends in .ckpt: MindSpore cannot load it"
    header = read_header(put((data / "formats" / "cell.ckpt").read_bytes(), NAME))
    assert header.kind == "ckpt"
    assert header.problems[0].endswith("its name ends in .safetensors: MindSpore cannot load it")
    for content, why in ((b"", "the file is empty"), (bytes(99), "never written"), (b"\xff" * 99, "no header")):
        header = read_header(put(content, NAME))
        assert header.kind == "safetensors"
        assert why in header.problems[0]


# --- damaged --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["types", "crc", "deduplicated"])
def test_every_truncation_is_found(data: Path, name: str) -> None:
    whole = (data / "safetensors" / f"{name}.safetensors").read_bytes()
    names = [p.name for p in parse(whole).parameters]
    for end in range(len(whole)):
        header = parse(whole[:end], expected=names)
        assert header.problems, end
        assert all(piece.end <= end for ranges in header.contents for piece in ranges)


def test_a_cut_names_the_first_parameter_that_is_not_whole(data: Path) -> None:
    whole = (data / "safetensors" / "types.safetensors").read_bytes()
    sound = parse(whole)
    for count in (3, 10):
        cut = sound.contents[count][0].start
        header = parse(whole[:cut])
        assert header.parameters == sound.parameters[:count]
        assert header.problems[0].startswith(
            f"{sound.parameters[count].name!r}: contents end behind the end of the file"
        )
        assert f"{len(whole) - cut} bytes too short" in header.problems[0]


@pytest.mark.parametrize(
    ("whole", "reason"),
    [
        (tensors({"a": A, "b": B}, b"0123456789x"), "1 bytes follow the contents of the last tensor"),
        (tensors({"a": A, "b": B}, b"0123456789" + bytes(2000)), "2000 bytes follow the contents"),
        (tensors({"a": A}), "2 bytes follow the contents"),
        (tensors({"b": B}), "'b': contents begin at 8, those listed before end at 0: a gap"),
        (
            tensors({"a": A, "b": B | {"data_offsets": [6, 8]}}, bytes(8)),
            "begin at 6, those listed before end at 8: they",
        ),
        (tensors({"a": A, "b": B | {"data_offsets": [9, 11]}}, bytes(11)), "begin at 9, those listed before end at 8"),
        (tensors({"a": A | {"data_offsets": [0, 10]}}), "contents have 10 bytes, Float32 [2] takes 8"),
        (tensors({"a": A | {"shape": [3]}, "b": B}), "contents have 8 bytes, Float32 [3] takes 12"),
        (tensors({"a": A | {"shape": [1 << 62, 1 << 62]}, "b": B}), "takes 85070591730234615865843651857942052864"),
        (tensors({"a": A | {"shape": [0]}, "b": B}), "contents have 8 bytes, Float32 [0] takes 0"),
        (tensors({"a": A | {"shape": [-2]}, "b": B}), "shape [-2] is invalid"),
        (tensors({"a": A | {"shape": [1] * 33}, "b": B}), "invalid"),
        (tensors({"a": A | {"shape": [1 << 64]}, "b": B}), "invalid"),
        (tensors({"a": A | {"shape": [True, 2]}, "b": B}), "invalid"),
        (tensors({"a": A | {"shape": 2}, "b": B}), "invalid"),
        (tensors({"a": A | {"shape": {}}, "b": B}), "invalid"),
        (tensors({"a": A | {"data_offsets": [8, 0]}, "b": B}), "data_offsets [8, 0] are invalid"),
        (tensors({"a": A | {"data_offsets": [-8, 0]}, "b": B}), "invalid"),
        (tensors({"a": A | {"data_offsets": [0, 8, 9]}, "b": B}), "invalid"),
        (tensors({"a": A | {"data_offsets": [0]}, "b": B}), "invalid"),
        (tensors({"a": A | {"data_offsets": "08"}, "b": B}), "invalid"),
        (tensors({"a": A | {"data_offsets": [1 << 64, (1 << 64) + 8]}, "b": B}), "invalid"),
        (tensors({"a": A | {"dtype": "F99"}, "b": B}), "type 'F99' is unknown"),
        (tensors({"a": A | {"dtype": "F8_E4M3", "shape": [8]}, "b": B}), "type 'F8_E4M3' is unknown"),
        (tensors({"a": A | {"dtype": ["F32"]}, "b": B}), "is unknown"),
        (tensors({"a": A | {"more": 1}, "b": B}), "must have dtype, shape and data_offsets, and nothing else"),
        (tensors({"a": {"dtype": "F32", "shape": [2]}, "b": B}), "dtype, shape and data_offsets"),
        (tensors({"a": [], "b": B}), "dtype, shape and data_offsets"),
        (tensors({"a": None, "b": B}), "dtype, shape and data_offsets"),
        (tensors({"": A, "b": B}), "no name of 1 to 1024 bytes"),
        (tensors({"a" * 1025: A, "b": B}), "no name of 1 to 1024 bytes"),
        (tensors({"\ud800": A, "b": B}), "no name of 1 to 1024 bytes of UTF-8"),
        (tensors({"__metadata__": {"a": "Int4"}, "a": A, "b": B}), "the metadata call it Int4, its type is F32"),
        (tensors({"__metadata__": {"crc_num": "x"}, "a": A, "b": B}), "crc_num is 'x', no 32-bit number"),
        (tensors({"__metadata__": {"crc_num": "-1"}, "a": A, "b": B}), "no 32-bit number"),
        (tensors({"__metadata__": {"crc_num": "4294967296"}, "a": A, "b": B}), "no 32-bit number"),
        (tensors({"__metadata__": {"crc_num": "1" * 9000}, "a": A, "b": B}), "no 32-bit number"),
        (tensors({"__metadata__": {"crc_num": "\u0661"}, "a": A, "b": B}), "no 32-bit number"),
        (tensors({"__metadata__": {"n": 1}, "a": A, "b": B}), "metadata hold something else than texts"),
        (tensors({"__metadata__": {"\udc00": ""}, "a": A, "b": B}), "metadata hold something else than texts"),
        (tensors({"__metadata__": None, "a": A, "b": B}), "metadata are no object"),
        (tensors({"__metadata__": [], "a": A, "b": B}), "metadata are no object"),
        (tensors({"__metadata__": {}}, b""), "no tensor in the file"),
        (tensors({}, b""), "no tensor in the file"),
        (tensors(b'{"a":' + json.dumps(A).encode() + b',"a":' + json.dumps(A).encode() + b"}"), "'a' occurs twice"),
        (tensors(b'{"a":{"dtype":"F32","dtype":"F32"}}'), "'dtype' occurs twice"),
        (tensors(b'{"a":{"shape":[NaN]}}'), "the number NaN"),
        (tensors(b'{"a":{"shape":[-Infinity]}}'), "the number -Infinity"),
        (tensors(b'{"a":{"shape":[2.0]}}'), "the number 2.0"),
        (tensors(b'{"a":{"shape":[1e999999]}}'), "the number 1e999999"),
        (tensors(b'{"a":{"shape":[' + b"1" * 5000 + b"]}}"), "the header is unusable: it is damaged"),
        (tensors(b'{"a":"\xff\xfe"}'), "it is not UTF-8 at byte 6"),
        (tensors(b'{"a":"\0"}'), "it is cut or damaged"),
        (tensors(b'{"a":1} x'), "it is cut or damaged: Extra data"),
        (tensors(b"{" + b"\0" * 50), "it is cut or damaged"),
        (tensors(b'{"a":' + b"[" * 200_000), "nested too deeply"),
        (tensors(b'{"a":' + b'{"a":' * 200_000), "nested too deeply"),
        (tensors(b'{"a":[' + b"[]," * 2_000_000), "too many entries"),
        (tensors(b'{"a":[' + b"0," * 5_000_000), "too many entries"),
        (tensors({"a": A, "b": B}, length=0), "no header of a safetensors file at the beginning"),
        (tensors({"a": A, "b": B}, length=10), "it is cut or damaged"),
        (tensors({"a": A, "b": B}, length=1000), "the header should end at offset 1008, the file ends"),
        (tensors({"a": A, "b": B}, length=100_000_001), "no header of a safetensors file at the beginning"),
        (tensors({"a": A, "b": B}, length=(1 << 64) - 1), "no header of a safetensors file at the beginning"),
        (tensors(b" " + json.dumps({"a": A, "b": B}).encode()), "no header of a safetensors file at the beginning"),
        (tensors(b"[]" + bytes(100)), "no header of a safetensors file at the beginning"),
        (b"\x08\0\0\0", "the file ends after 4 bytes, inside the length of the header"),
    ],
)
def test_headers_that_lie(whole: bytes, reason: str) -> None:
    assert reason in only_problem(whole)


def test_tensors_listed_in_another_order_than_they_lie() -> None:
    header = parse(tensors({"b": B, "a": A}))
    assert header.problems == (
        "'b': contents begin at 8, those listed before end at 0: a gap",
        "'a': contents begin at 0, those listed before end at 10: they overlap",
    )


def test_a_header_is_not_read_when_it_cannot_be_there() -> None:
    def read_at(offset: int, length: int) -> bytes:
        assert length <= 4096
        return ((90_000_000).to_bytes(8, "little") + b'{"a":')[offset : offset + length]

    assert "the header should end at offset 90000008" in parse_header(read_at, 13).problems[0]


def test_a_file_that_shrinks_while_it_is_read(data: Path) -> None:
    whole = (data / "safetensors" / "types.safetensors").read_bytes()
    for left in (0, 5, 500):
        calls = 0

        def read_at(offset: int, length: int, left: int = left) -> bytes:
            nonlocal calls
            calls += 1
            return (whole if calls < 3 else whole[:left])[offset : offset + length]

        assert parse_header(read_at, len(whole), name=NAME).problems == ("the file shrank while it was read",)


def test_the_number_of_tensors_and_of_problems_is_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    none = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    wrong = tensors({f"w{i}": A | {"dtype": "F99"} for i in range(1000)})
    assert len(parse(wrong).problems) == records.MAX_PROBLEMS
    gaps = tensors({f"w{i}": none | {"data_offsets": [i, i]} for i in range(1000)})
    assert len(parse(gaps).problems) <= records.MAX_PROBLEMS + 1
    monkeypatch.setattr(safetensors, "MAX_RECORDS", 3)
    assert parse(tensors({f"w{i}": none for i in range(3)}, b"")).problems == ()
    assert "more than 3 tensors" in only_problem(tensors({f"w{i}": none for i in range(4)}, b""))


@pytest.mark.mindspore
def test_what_the_safetensors_package_writes(put: Put) -> None:
    package = pytest.importorskip("safetensors")
    import numpy as np

    numbers = np.arange(64, dtype=np.uint8)
    widths = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4}
    widths |= {"uint32": 4, "float32": 4, "int64": 8, "uint64": 8, "float64": 8, "complex64": 8}
    specs = {
        f'{name} \u00e9"\\\n\x7f/{i}': package.TensorSpec(
            dtype=name, shape=[i, 2], data_ptr=numbers.ctypes.data, data_len=2 * i * width
        )
        for name, width in widths.items()
        for i in (0, 1, 3)
    }
    whole = bytes(package.serialize(specs, metadata={"format": "ms \u00e9\x01"}))
    header = parse(whole)
    assert header.problems == ()
    assert {p.name for p in header.parameters} == specs.keys()
    from ms_recover.formats.image import make_image

    image = make_image(header.parameters, header)
    assert image.contents == header.contents
    assert image.literals == ((0, whole[: header.contents[0][0].start]),)
