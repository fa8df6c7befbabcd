"""Slices that are written from memory, compared with files that MindSpore wrote: no MindSpore is needed for it."""

import os
from pathlib import Path

import pytest

from ms_recover.execution import write_slice as writing
from ms_recover.execution.write_slice import write_slice
from ms_recover.formats import image
from ms_recover.formats.header import read_header
from ms_recover.stores.digest import digest_file

FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"
REAL = sorted(FIXTURES.glob("dp*_mp*/ckpt_dir1/*_*.ckpt"))


def memory_of(path):
    """The parameters of a slice, and the contents of each."""
    header, data = read_header(path), path.read_bytes()
    contents = [b"".join(data[one.start : one.end] for one in ranges) for ranges in header.contents]
    return header, [memoryview(bytearray(one)) for one in contents]


@pytest.mark.parametrize("most", [1, 40, 1 << 20])
@pytest.mark.parametrize("path", REAL, ids=lambda path: "/".join(path.parts[-3:]))
def test_the_values_of_a_slice_that_mindspore_wrote_make_the_same_file(path, most, tmp_path, monkeypatch):
    for name in ("_CACHED", "_TOGETHER", "_BEGUN"):
        monkeypatch.setattr(writing, name, most)
    header, contents = memory_of(path)
    made = tmp_path / "made.ckpt"
    digests = write_slice(str(made), "ckpt", header.parameters, contents)
    assert made.read_bytes() == path.read_bytes()
    assert digests == digest_file(path, header.contents)


def test_a_safetensors_file_holds_the_same_and_says_of_whom_it_is(tmp_path):
    header, contents = memory_of(REAL[0])
    made = tmp_path / "made.safetensors"
    digests = write_slice(str(made), "safetensors", header.parameters, contents)
    found, again = memory_of(made)
    given = {one.name: (one, content) for one, content in zip(header.parameters, contents, strict=True)}
    assert {one.name: (one, content) for one, content in zip(found.parameters, again, strict=True)} == given
    assert (found.metadata, found.problems) == ((("format", "ms"),), ())
    assert digests == digest_file(made, found.contents)


def test_contents_of_several_pieces_are_all_there_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(image, "PIECE", 16)
    header, contents = memory_of(REAL[0])
    made = tmp_path / "made.ckpt"
    digests = write_slice(str(made), "ckpt", header.parameters, contents)
    found, again = memory_of(made)
    assert max(map(len, found.contents)) > 1
    assert (found.parameters, again) == (header.parameters, contents)
    assert digests == digest_file(made, found.contents)


def test_writes_that_the_system_cuts_short_are_gone_on_with(tmp_path, monkeypatch):
    real = os.write
    monkeypatch.setattr(writing.os, "write", lambda descriptor, data: real(descriptor, data[: len(data) // 2 + 1]))
    header, contents = memory_of(REAL[0])
    write_slice(str(tmp_path / "made.ckpt"), "ckpt", header.parameters, contents)
    assert (tmp_path / "made.ckpt").read_bytes() == REAL[0].read_bytes()
