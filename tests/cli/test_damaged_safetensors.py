"""What can be wrong with a safetensors slice is refused by inspect, treated as damaged by plan, and repaired."""

import json
import random

import pytest

from ms_recover.formats.header import read_header
from tests.support.convert import METADATA, as_safetensors
from tests.support.damaged_tree import is_refused_and_repaired

SLICE = "ckpt_dir0/test-2_77.safetensors"


def header_end(data):
    return 8 + int.from_bytes(data[:8], "little")


def rewritten(change):
    """Damage that changes the decoded header; the contents stay."""

    def damage(data, path):
        end = header_end(data)
        header = json.loads(data[8:end])
        names = [name for name in header if name != "__metadata__"]
        change(header, names)
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text + data[end:]

    return damage


def moved(header, name, start=0, end=0):
    offsets = header[name]["data_offsets"]
    offsets[0] += start
    offsets[1] += end


def exchanged(header, names):
    one, other = header[names[2]], header[names[3]]
    one["data_offsets"], other["data_offsets"] = other["data_offsets"], one["data_offsets"]


def last_removed(header, names):
    del header[names[-1]]


def last_of_both_removed(data, path):
    whole = rewritten(last_removed)(data, path)
    return whole[: -read_header(path).contents[-1][0].length]


def flip(data, offset):
    return data[:offset] + bytes([data[offset] ^ 0x10]) + data[offset + 1 :]


def length(value):
    return lambda data, path: value.to_bytes(8, "little") + data[8:]


def at_boundary(number):
    return lambda data, path: data[: read_header(path).contents[number][0].start]


DAMAGE = {
    "cut inside contents": lambda data, path: data[:-5],
    "cut at a boundary": at_boundary(10),
    "cut before the first contents": at_boundary(0),
    "cut inside the header": lambda data, path: data[:200],
    "cut inside the length": lambda data, path: data[:5],
    "trailing junk": lambda data, path: data + b"junk",
    "trailing zeros": lambda data, path: data + bytes(4096),
    "length one less": lambda data, path: (int.from_bytes(data[:8], "little") - 8).to_bytes(8, "little") + data[8:],
    "length one more": lambda data, path: (int.from_bytes(data[:8], "little") + 8).to_bytes(8, "little") + data[8:],
    "length of nothing": length(0),
    "length beyond the file": length(90_000_000),
    "length beyond the format": length(1 << 40),
    "length of 64 bits": length((1 << 64) - 1),
    "overlap": rewritten(lambda header, names: moved(header, names[3], -4, -4)),
    "gap": rewritten(lambda header, names: moved(header, names[3], 4, 4)),
    "all moved": rewritten(lambda header, names: [moved(header, name, 8, 8) for name in names]),
    "end before begin": rewritten(lambda header, names: header[names[1]]["data_offsets"].reverse()),
    "exchanged": rewritten(exchanged),
    "too few bytes": rewritten(lambda header, names: moved(header, names[-1], 0, -4)),
    "shape": rewritten(lambda header, names: header[names[1]]["shape"].append(2)),
    "negative shape": rewritten(lambda header, names: header[names[1]].update(shape=[-1, -4])),
    "unknown type": rewritten(lambda header, names: header[names[1]].update(dtype="F99")),
    "type of another width": rewritten(lambda header, names: header[names[1]].update(dtype="F64")),
    "no type": rewritten(lambda header, names: header[names[1]].pop("dtype")),
    "a tensor is not listed": rewritten(last_removed),
    "a tensor is missing": last_of_both_removed,
    "name twice": lambda data, path: data.replace(b"blocks.0.down", b"blocks.1.down", 1),
    "a name": lambda data, path: data.replace(b"blocks.0.qkv", b"blocks.0.qkV", 1),
    "brace of the header": lambda data, path: flip(data, 8),
    "quote in the header": lambda data, path: flip(data, data.index(b'"F32"')),
    "zeros in the header": lambda data, path: data[:100] + bytes(200) + data[300:],
    "header of zeros": lambda data, path: bytes(header_end(data)) + data[header_end(data) :],
    "not UTF-8": lambda data, path: data.replace(b"blocks.0.qkv", b"blocks.0.qk\xff", 1),
    "all zeros": lambda data, path: bytes(len(data)),
    "garbage": lambda data, path: random.Random(7).randbytes(len(data)),
    "empty": lambda data, path: b"",
    "the other format": lambda data, path: path.with_suffix(".was.ckpt").read_bytes(),
}
SOUND_ALONE = ("a name", "a tensor is missing")


@pytest.fixture
def tree(fixture_tree):
    def convert(name, **options):
        root = fixture_tree(name)
        for path in sorted(root.rglob("test-*.ckpt")):
            as_safetensors(path, **options)
            if path.parent.name == "ckpt_dir0":
                path.rename(path.with_suffix(".was.ckpt"))
            else:
                path.unlink()
        return root

    return convert


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_and_repaired_from_the_peer(kind, tree, recover_ckpt):
    root = tree("dp2_mp4")
    path = root / SLICE
    damaged = DAMAGE[kind](path.read_bytes(), path)
    assert is_refused_and_repaired(root, path, damaged, recover_ckpt, sound_alone=kind in SOUND_ALONE)


FLIPS = {
    "first byte of the contents": lambda data, path: flip(data, header_end(data)),
    "last byte": lambda data, path: flip(data, len(data) - 1),
    "inside": lambda data, path: flip(data, len(data) // 2),
    "zero tail": lambda data, path: data[:-300] + bytes(300),
    "type of the same width": rewritten(lambda header, names: header[names[0]].update(dtype="I32")),
}


@pytest.mark.parametrize("kind", FLIPS)
def test_flipped_contents_are_told_by_the_manifest(kind, tree, recover_ckpt):
    root = tree("dp2_mp4")
    assert recover_ckpt("seal", root).code == 0
    path = root / SLICE
    data = path.read_bytes()
    damaged = FLIPS[kind](data, path)
    assert damaged != data
    path.write_bytes(damaged)
    assert recover_ckpt("verify", root).code == 5
    planned = recover_ckpt("plan", root, "--json")
    assert planned.code == 0, planned.err
    assert planned.json["ranks"][0]["state"] == "damaged"
    assert recover_ckpt("apply", root).code == 0
    assert path.read_bytes() == data
    assert recover_ckpt("verify", root).code == 0


@pytest.mark.parametrize("kind", sorted(set(FLIPS) - {"type of the same width"}))
def test_flipped_contents_are_told_by_the_crc(kind, tree, recover_ckpt):
    root = tree("dp2_mp4", crc=True)
    path = root / SLICE
    assert recover_ckpt("inspect", path, "--json").json["metadata"].keys() == {*dict(METADATA), "crc_num"}
    data = path.read_bytes()
    damaged = FLIPS[kind](data, path)
    assert damaged != data
    path.write_bytes(damaged)
    assert recover_ckpt("inspect", path).code == 3
    assert recover_ckpt("inspect", path, "--no-crc").code == 0
    planned = recover_ckpt("plan", root, "--json")
    assert planned.json["ranks"][0]["state"] == "damaged"
    assert recover_ckpt("apply", root).code == 0
    assert path.read_bytes() == data


def test_strategy_files_are_shown(recover_ckpt, fixtures, tmp_path):
    shown = recover_ckpt("inspect", fixtures / "dp4_mp2_optfull" / "ckpt_dir0" / "strategy.ckpt")
    assert shown.code == 0
    assert "pipeline stage 0, 8 devices in it (ranks 0-7), 36 layouts" in shown.out
    assert "dim 1 by 2 over axis 0  all replicas" in shown.out
    layout = {"dev_matrix": [2, 2, 2], "tensor_map": [-1, 1, 0], "tensor_shape": [32, 2, 32], "field": 1}
    layout |= {"opt_weight_shard_size": 2, "opt_weight_shard_step": 4, "param_split_shape": [5], "indices_offset": [0]}
    path = tmp_path / "strategy.json"
    path.write_text(json.dumps({"current_stage": 1, "parallel_layout_item": {"w\x1b": layout}}))
    shown = recover_ckpt("inspect", path)
    assert "pipeline stage unknown" in shown.out
    assert "w\\x1b" in shown.out
    for text in ("dim 1 by 2 over axis 1; dim 2 by 2 over axis 0", "dim 0 by 2", "rows [5], field 1", "[32, 2, 32]"):
        assert text in shown.out
    (told,) = recover_ckpt("inspect", path, "--json").json["layouts"]
    assert (told["parts"], told["copies"]) == (8, 1)
    assert told["split_shape"] == [5]
    assert told["tensor_shape"] == [32, 2, 32]


def test_the_option_for_strategy_files(recover_ckpt, tree, tmp_path):
    root = tree("dp2_mp4")
    found = recover_ckpt("scan", root, "--json", "--strategy", root / "ckpt_dir{rank}" / "strategy.ckpt")
    assert len(found.json["strategy_files"]) == 16
    (tmp_path / "bad").write_bytes(b"junk")
    assert recover_ckpt("scan", root, "--strategy", tmp_path / "bad").code == 3
    assert recover_ckpt("scan", root, "--strategy", "none").code == 3
    assert recover_ckpt("scan", root, "--strategy", "{step}").code == 2
    planned = recover_ckpt("plan", root, "--strategy", root / "ckpt_dir0" / "strategy.ckpt", "--lost", "0")
    assert f"--strategy {root}/ckpt_dir0/strategy.ckpt" in planned.out
