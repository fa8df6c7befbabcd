"""A slice in memory: every piece of every parameter at its place, with the digests of the file."""

import os
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ms_recover.errors import VerificationError
from ms_recover.formats.header import parse_header
from ms_recover.formats.image import ckpt_image, default_pieces, safetensors_image
from ms_recover.loading.contents import read_contents
from ms_recover.model.slices import Parameter
from ms_recover.stores import fill
from ms_recover.stores.digest import digest_file
from ms_recover.stores.local_store import LocalFile
from ms_recover.testing.trees import crc_trailer, record
from tests.support.examples import examples

CHECKS = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])


def load(path, **options):
    with LocalFile(str(path)) as opened:
        header = parse_header(opened.read_at, opened.size, name=opened.name)
        assert not header.problems
        return header, read_contents(opened, header, **options)


@CHECKS
@given(st.data())
def test_pieces_of_any_size_make_up_each_parameter(tmp_path, monkeypatch, data):
    monkeypatch.setattr(fill, "BLOCK", data.draw(st.integers(1, 64)))
    names = data.draw(st.lists(st.text("abc.", min_size=1, max_size=9), min_size=1, max_size=6, unique=True))
    source, expected, text = random.Random(data.draw(st.integers(0, 999))), {}, b""
    for name in names:
        count = data.draw(st.integers(0, 60))
        content = source.randbytes(count)
        edges = sorted(data.draw(st.lists(st.integers(0, count), max_size=4)))
        for start, end in pairwise([0, *edges, count]):
            text += record(name, content[start:end], [1, count], "UInt8")
        expected[name] = content
    crc = data.draw(st.booleans())
    path = tmp_path / "test-1_1.ckpt"
    path.write_bytes(text + crc_trailer(text) if crc else text)
    header, found = load(path, crc=True)
    values = {one.name: bytes(memory) for one, (memory,) in zip(found.parameters, found.values, strict=True)}
    assert values == expected
    assert found.digests == digest_file(path, header.contents)
    assert (found.problem, found.checked) == (None, crc)


@CHECKS
@given(st.lists(st.integers(0, 40), min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_safetensors_of_any_sizes(tmp_path, sizes, source):
    parameters = [Parameter(f"p{number}", "Int8", (size,), size) for number, size in enumerate(sizes)]
    image = safetensors_image(parameters, [("format", "ms")])
    text = bytearray(image.size)
    expected = {one.name: source.randbytes(one.nbytes) for one in parameters}
    for at, literal in image.literals:
        text[at : at + len(literal)] = literal
    for one, (place,) in zip(image.parameters, image.contents, strict=True):
        text[place.start : place.end] = expected[one.name]
    path = tmp_path / "test-1_1.safetensors"
    path.write_bytes(text)
    header, found = load(path)
    values = {one.name: bytes(memory) for one, (memory,) in zip(found.parameters, found.values, strict=True)}
    assert values == expected
    assert found.digests == digest_file(path, header.contents)


@pytest.mark.parametrize("name", ["formats/crc.ckpt", "formats/pieces_crc.ckpt", "safetensors/crc.safetensors"])
def test_a_flipped_bit_contradicts_the_crc_in_the_file(fixtures, tmp_path, name):
    source = fixtures.parent / name
    header, found = load(source, digest=False, crc=True)
    assert (found.problem, found.checked, found.digests) == (None, True, None)
    path = tmp_path / source.name
    text = bytearray(source.read_bytes())
    text[header.contents[0][0].start] ^= 1
    path.write_bytes(text)
    _, found = load(path, crc=True)
    assert "CRC-32 of the contents is" in found.problem


def test_a_map_parameter_is_three_pieces_of_memory(tmp_path):
    from ms_recover.formats.wire import encode_field

    def rows(first, count):
        parts = ((bytes(range(first, first + count)) + b"\0\0\0" * count, [count], "int32"),)
        parts += ((os.urandom(8 * count), [count, 2], "float32"), (bytes(4 * count), [count], "int32"))
        tensors = b""
        for content, dims, dtype in parts:
            shape = b"".join(encode_field(1, size) for size in dims)
            tensors += encode_field(1, shape + encode_field(2, dtype.encode()) + encode_field(3, content))
        return encode_field(1, encode_field(1, b"table") + encode_field(3, tensors)), [one[0] for one in parts]

    first, held = rows(0, 3)
    second, more = rows(3, 2)
    path = tmp_path / "test-1_1.ckpt"
    path.write_bytes(first + second)
    _, found = load(path)
    assert [bytes(one) for one in found.values[0]] == [a + b for a, b in zip(held, more, strict=True)]


@pytest.mark.parametrize("each", [300, 100 << 10, 5 << 20, 48 << 20])
def test_no_more_memory_than_the_file_is_used(tmp_path, each):
    count = min((48 << 20) // each, 2000)
    listed = [Parameter(f"p{number}", "UInt8", (each,), each) for number in range(count)]
    image = ckpt_image(listed, [default_pieces(each)] * count)
    path = tmp_path / "test-1_1.ckpt"
    with path.open("wb") as file:
        for at, literal in image.literals:
            os.pwrite(file.fileno(), literal, at)
        file.truncate(image.size)
    load(path)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    _, found = load(path)
    most, kept = memory("VmHWM") - before, memory("VmRSS") - before
    assert most < 1.1 * image.size + (4 << 20)
    assert kept < 1.1 * image.size + (4 << 20)
    assert len(found.values) == count


def memory(field):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) << 10


def test_a_file_that_changes_meanwhile_is_an_error(fixtures, tmp_path):
    path = tmp_path / "cell.ckpt"
    path.write_bytes((fixtures.parent / "formats" / "cell.ckpt").read_bytes())
    with LocalFile(str(path)) as opened:
        header = parse_header(opened.read_at, opened.size)
        os.utime(path, ns=(1, 1))
        with pytest.raises(VerificationError, match=r"cell.ckpt is not what the plan saw"):
            read_contents(opened, header)
