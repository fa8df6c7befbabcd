"""Everything that MindSpore loads silently or fails on is refused by inspect and treated as damaged by plan."""

import os
import struct
import zlib

import pytest

from ms_recover.formats.header import read_header
from ms_recover.formats.wire import encode_varint
from ms_recover.testing.trees import crc_trailer, record
from tests.support.damaged_tree import is_refused_and_repaired

SLICE = "ckpt_dir0/test-2_77.ckpt"


def boundaries(path):
    """Return the offset behind each parameter's contents, which is where its record ends."""
    return [pieces[-1].end for pieces in read_header(path).contents]


DAMAGE = {
    "cut inside a record": lambda data, path: data[:-5],
    "cut in the first record": lambda data, path: data[:50],
    "cut in the first bytes": lambda data, path: data[:3],
    "cut at a record boundary": lambda data, path: data[: boundaries(path)[10]],
    "cut between two pieces": lambda data, path: data + record("late", b"1234" * 4, [8]),
    "content shorter than dims": lambda data, path: data + record("late", b"1234", [8]),
    "content longer than dims": lambda data, path: data + record("late", b"1234" * 9, [8]),
    "consecutive duplicate tag": lambda data, path: data + record("late", b"1234", [1]) * 2,
    "other duplicate tag": lambda data, path: data + record("blocks.0.down", b"1234", [1]),
    "unknown dtype": lambda data, path: data + record("late", b"1234", [1], "Float99"),
    "garbage": lambda data, path: bytes(zlib.crc32(struct.pack("I", i)) & 0xFF for i in range(len(data))),
    "all zeros": lambda data, path: bytes(len(data)),
    "trailing junk": lambda data, path: data + b"junk",
    "trailing zeros": lambda data, path: data + bytes(2000),
    "first byte of the first record": lambda data, path: b"\x0b" + data[1:],
    "first byte of a later record": lambda data, path: _flip(data, boundaries(path)[4]),
    "a name": lambda data, path: data.replace(b"blocks.0.qkv", b"blocks.0.qkV", 1),
    "bad crc": lambda data, path: data + crc_trailer(data + b"x"),
    "bit flip in content under a crc": lambda data, path: _flip(data, boundaries(path)[2] - 9) + crc_trailer(data),
    "zero tail in content under a crc": lambda data, path: data[:-300] + bytes(300) + crc_trailer(data),
    "empty": lambda data, path: b"",
    "trailer only": lambda data, path: crc_trailer(b""),
    "absurd length": lambda data, path: data + b"\x0a" + encode_varint(2**63),
}
SOUND_ALONE = ("cut at a record boundary", "a name")


def _flip(data, offset):
    return data[:offset] + bytes([data[offset] ^ 0x10]) + data[offset + 1 :]


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_and_repaired_from_the_peer(kind, fixture_tree, recover_ckpt):
    tree = fixture_tree("dp2_mp4")
    path = tree / SLICE
    damaged = DAMAGE[kind](path.read_bytes(), path)
    assert is_refused_and_repaired(tree, path, damaged, recover_ckpt, sound_alone=kind in SOUND_ALONE)


@pytest.mark.parametrize("kind", sorted(set(DAMAGE) - {"a name"}))
def test_a_damaged_slice_is_never_a_source(kind, fixture_tree, recover_ckpt):
    tree = fixture_tree("dp4_mp2_opt2")
    path = tree / "ckpt_dir0" / "test-1_77.ckpt"
    path.chmod(0o600)
    path.write_bytes(DAMAGE[kind](path.read_bytes(), path))
    (tree / "ckpt_dir4" / "test-1_77.ckpt").unlink()
    planned = recover_ckpt("plan", tree, "--json")
    assert planned.code == 4
    assert {rank["rank"] for rank in planned.json["ranks"] if rank["verdict"] == "unrecoverable"} == {0, 4}


@pytest.mark.parametrize("what", ["missing", "a directory", "a suffix of another kind", "a pipe"])
def test_paths_that_are_no_slices(what, tmp_path, recover_ckpt):
    path = tmp_path / "test-1_77.ckpt"
    if what == "a directory":
        path.mkdir()
    elif what == "a pipe":
        os.mkfifo(path)
    elif what == "a suffix of another kind":
        path = tmp_path / "test-1_77.txt"
        path.write_text("hello")
    assert recover_ckpt("inspect", path, timeout=20).code == 3
    assert recover_ckpt("inspect", path, "--json", timeout=20).code == 3


def test_encrypted_slices_are_named_as_such(recover_ckpt, fixtures):
    for mode in ("AES-GCM", "AES-CBC", "SM4-CBC"):
        found = recover_ckpt("inspect", fixtures.parent / "formats" / f"encrypted_{mode}.ckpt", "--json")
        assert found.code == 0
        assert found.json["kind"] == "encrypted-ckpt"
        assert found.json["encryption"] == mode
