"""Images of slices: with the contents filled in they are the files that MindSpore wrote."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover.errors import UsageError
from ms_recover.formats import header as headers
from ms_recover.formats import image as images
from ms_recover.formats.dtypes import ITEM_SIZES
from ms_recover.formats.header import read_header
from ms_recover.formats.image import ckpt_image, default_pieces, make_image, safetensors_image
from ms_recover.formats.safetensors import DTYPES
from ms_recover.model.slices import Parameter, SliceHeader, SliceImage
from tests.support.examples import examples

CKPT = ["types", "crc", "async", "cell", "complex", "pieces", "pieces_crc", "pieces_async", "zero_size_async"]


def filled(image: SliceImage, contents: dict[str, bytes]) -> bytes:
    """The file that an image is of."""
    data = bytearray(b"\xee" * image.size)
    written = 0
    for offset, literal in image.literals:
        data[offset : offset + len(literal)] = literal
        written += len(literal)
    for parameter, ranges in zip(image.parameters, image.contents, strict=True):
        rest = contents[parameter.name]
        assert len(rest) == parameter.nbytes
        for piece in ranges:
            data[piece.start : piece.end] = rest[: piece.length]
            rest = rest[piece.length :]
            written += piece.length
        assert not rest
    if image.crc:
        data[-17:] = b"crc_num" + zlib.crc32(data[:-17]).to_bytes(10, "big")
        written += 17
    assert written == image.size
    return bytes(data)


def contents_of(path: Path, header: SliceHeader) -> dict[str, bytes]:
    whole = path.read_bytes()
    return {
        parameter.name: b"".join(whole[piece.start : piece.end] for piece in ranges)
        for parameter, ranges in zip(header.parameters, header.contents, strict=True)
    }


def assert_image_is(path: Path) -> None:
    header = read_header(path)
    assert header.problems == ()
    crc = header.crc if header.kind == "safetensors" else None
    image = make_image(header.parameters, header, crc_num=crc)
    assert image.parameters == header.parameters
    assert image.contents == header.contents
    assert filled(image, contents_of(path, header)) == path.read_bytes()


@pytest.mark.parametrize("name", CKPT)
def test_a_ckpt_of_mindspore_byte_for_byte(data: Path, name: str) -> None:
    assert_image_is(data / "formats" / f"{name}.ckpt")


def test_the_fixtures_byte_for_byte(data: Path) -> None:
    for path in sorted((data / "fixtures").glob("*/ckpt_dir*/*_77.ckpt")):
        assert_image_is(path)


@pytest.mark.parametrize("name", ["model", "types", "crc", "deduplicated", "complex"])
def test_safetensors_of_mindspore_byte_for_byte(data: Path, name: str) -> None:
    folder = data / ("formats" if name == "model" else "safetensors")
    assert_image_is(folder / f"{name}.safetensors")


@pytest.mark.mindspore
def test_what_the_installed_mindspore_writes(written_now: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = written_now
    for path in [*(folder / f"{name}.ckpt" for name in CKPT), *folder.glob("*.safetensors")]:
        assert_image_is(path)


def test_the_default_pieces_are_those_of_mindspore(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_pieces(0) == [0]
    assert default_pieces(1 << 29) == [1 << 29]
    assert default_pieces((1 << 30) + 5) == [1 << 29, 1 << 29, 5]
    monkeypatch.setattr(images, "PIECE", 1024)
    for name in ("pieces", "pieces_crc"):
        path = data / "formats" / f"{name}.ckpt"
        header = read_header(path)
        blank = SliceHeader("ckpt", 0, crc=header.crc)
        assert filled(make_image(header.parameters, blank), contents_of(path, header)) == path.read_bytes()


def test_a_parameter_of_another_size_gets_pieces_of_its_own(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PIECE", 100)
    model = read_header(data / "formats" / "pieces.ckpt")
    halved = Parameter("w0", "Float32", (20, 16), 1280)
    image = make_image((halved, model.parameters[1]), model)
    assert [piece.length for piece in image.contents[0]] == [100] * 12 + [80]
    assert [piece.length for piece in image.contents[1]] == [1024, 1024, 512]


def test_metadata_follow_the_parameters(data: Path) -> None:
    path = data / "safetensors" / "crc.safetensors"
    model = read_header(path)
    names = [parameter.name for parameter in model.parameters if parameter.dtype != "Int4"]
    chosen = [parameter for parameter in model.parameters if parameter.name in names[:3]]
    image = make_image(chosen, model)
    contents = contents_of(path, model)
    crc = 0
    for name in sorted(names[:3]):
        crc = zlib.crc32(contents[name], zlib.crc32(name.encode(), crc))
    again = path.parent / "none.safetensors"
    for made, metadata in ((image, {"format": "ms"}), (make_image(chosen, model, crc_num=crc), {"crc_num": str(crc)})):
        whole = filled(made, contents)
        found = headers.parse_header(lambda at, n, whole=whole: whole[at : at + n], len(whole), name=str(again))
        assert found.problems == ()
        assert found.parameters == made.parameters
        assert metadata.items() <= dict(found.metadata).items()
        assert "Int4" not in dict(found.metadata).values()
        assert ("crc_num" in dict(found.metadata)) is ("crc_num" in metadata)


def test_what_cannot_be_put_together() -> None:
    fine = Parameter("a", "Float32", (2,), 8)
    table = Parameter("t", "MapTensor(int32,float32,int32)", (1, 1), 12)
    ckpt, tensors = SliceHeader("ckpt", 0), SliceHeader("safetensors", 0)
    text = Parameter("s", "str", (), 8)
    int4 = Parameter("q", "Int4", (2,), 2)
    for parameters, model, reason in (
        ([fine], SliceHeader("encrypted-ckpt", 0, encryption="AES-GCM"), "encrypted slices"),
        ([table], ckpt, "map parameters"),
        ([table], tensors, "map parameters"),
        ([text], tensors, "str cannot be written to a safetensors file"),
        ([Parameter("__metadata__", "Int8", (1,), 1)], tensors, "cannot be written to a safetensors file"),
        ([fine, fine], ckpt, "twice in one slice"),
        ([replace(fine, name="")], ckpt, "without a name"),
        ([replace(fine, nbytes=9)], ckpt, "9 bytes are no Float32"),
        ([replace(fine, shape=(-1, -2))], ckpt, r"8 bytes are no Float32 \[-1, -2\]"),
        ([replace(text, nbytes=5)], ckpt, "5 bytes are no str"),
        ([replace(fine, dtype="Float99")], ckpt, "unknown"),
        ([Parameter("c", "Complex128", (), 16)], tensors, "cannot be written"),
    ):
        with pytest.raises(UsageError, match=reason):
            make_image(parameters, model)
    with pytest.raises(UsageError, match=r"pieces of \[4\] bytes are not 8"):
        ckpt_image([fine], [[4]])
    with pytest.raises(UsageError, match="metadata say otherwise"):
        safetensors_image([int4], ())


NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda name: name != "__metadata__")
TENSORS = st.dictionaries(
    NAMES,
    st.tuples(st.sampled_from(sorted(ITEM_SIZES.keys() - {"str"})), st.lists(st.integers(0, 4), max_size=3)),
    min_size=1,
    max_size=8,
)


def made_up(tensors: dict[str, tuple[str, list[int]]]) -> tuple[list[Parameter], dict[str, bytes]]:
    parameters, contents = [], {}
    for name, (dtype, dims) in tensors.items():
        size = ITEM_SIZES[dtype]
        for dim in dims:
            size *= dim
        parameters.append(Parameter(name, dtype, tuple(dims), size))
        contents[name] = bytes((i * 7 + len(name)) & 0xFF for i in range(size))
    return parameters, contents


@given(TENSORS, st.booleans(), st.integers(1, 50))
def test_made_up_ckpts_are_read_as_they_were_meant(
    tensors: dict[str, tuple[str, list[int]]], crc: bool, most: int
) -> None:
    parameters, contents = made_up(tensors)
    pieces = [[min(most, p.nbytes - at) for at in range(0, p.nbytes, most)] or [0] for p in parameters]
    image = ckpt_image(parameters, pieces, crc)
    whole = filled(image, contents)
    header = headers.parse_header(lambda at, n: whole[at : at + n], len(whole))
    assert header.problems == ()
    assert header.parameters == tuple(parameters) == image.parameters
    assert header.contents == image.contents
    assert (header.crc is not None) is crc


@settings(max_examples=examples(150))
@given(TENSORS, st.lists(st.tuples(NAMES, st.text(st.characters(codec="utf-8"), max_size=9)), max_size=4))
def test_made_up_safetensors_are_read_as_they_were_meant(
    tensors: dict[str, tuple[str, list[int]]], metadata: list[tuple[str, str]]
) -> None:
    tensors = {name: told for name, told in tensors.items() if told[0] in {*DTYPES.values(), "Int4"}}
    parameters, contents = made_up(tensors)
    if not parameters:
        return
    int4 = {p.name: "Int4" for p in parameters if p.dtype == "Int4"}
    named = {key: value for key, value in metadata if value != "Int4" and key != "crc_num"} | int4
    image = safetensors_image(parameters, list(named.items()))
    whole = filled(image, contents)
    header = headers.parse_header(lambda at, n: whole[at : at + n], len(whole))
    assert header.problems == ()
    assert header.parameters == image.parameters
    assert header.contents == image.contents
    assert dict(header.metadata) == named
    length = int.from_bytes(whole[:8], "little")
    assert length % 8 == 0
    assert json.loads(whole[8 : 8 + length]).keys() - {"__metadata__"} == contents.keys()
